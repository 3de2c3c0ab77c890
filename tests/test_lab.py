"""The lab: files, runs, statistics, and the commands from end to end, in small."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kova_rl import cli, covariance, evolution
from kova_rl.envs import MAZE10, Layout
from kova_rl.lab import files, stats
from kova_rl.lab.figures import study
from kova_rl.lab.figures.beliefs import greedy_path
from kova_rl.lab.figures.fig1 import FIG1
from kova_rl.lab.figures.fig2 import FIG2
from kova_rl.lab.figures.study_table import Entry
from kova_rl.lab.log import read_log
from kova_rl.lab.mazes.critics import Adam, Filtered, Temporal
from kova_rl.lab.mazes.run import MazeRun, network
from kova_rl.lab.mazes.series import gather, history, markdown
from kova_rl.lab.pack import Folder
from kova_rl.lab.run import Run, make


class TestFiles:
    def test_arrays_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "run.npz"
        files.save(path, {"a": np.arange(5), "b": np.array([True])})
        arrays = files.load(path.read_bytes(), path)
        assert arrays["a"].tolist() == [0, 1, 2, 3, 4]
        assert arrays["b"].dtype == bool
        assert [p.name for p in path.parent.iterdir()] == ["run.npz"]

    def test_no_pickle(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "evil.npz", a=np.array([print], dtype=object))
        with pytest.raises(ValueError, match="damaged"):
            files.load((tmp_path / "evil.npz").read_bytes(), "evil.npz")

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
    def test_a_torn_file_is_damaged(self, share: float) -> None:
        content = files.content({"a": np.arange(500)})
        with pytest.raises(ValueError, match="delete it"):
            files.load(content[: int(share * len(content))], "run.npz")

    def test_a_flipped_bit_is_damage_and_nothing_else(self) -> None:
        content = files.content({"a": np.random.default_rng(0).normal(size=300)})
        for at in range(0, len(content), 37):
            flipped = content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]
            with contextlib.suppress(ValueError):
                files.load(flipped, "run.npz")

    def test_a_write_that_fails_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file"
        files.write(path, b"old")

        def full(*_: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr("os.replace", full)
        with pytest.raises(OSError, match="no space"):
            files.write(path, b"new")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]


class TestBootstrap:
    def test_it_covers_about_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(0)
        hits = []
        for _ in range(400):
            low, high = stats.bootstrap(rng.normal(3.0, 1.0, 30), draws=300)
            hits.append(low <= 3.0 <= high)
        assert 0.89 <= np.mean(hits) <= 0.98

    def test_it_is_deterministic_and_refuses_nonsense(self) -> None:
        assert stats.bootstrap([1.0, 5.0, 2.0]) == stats.bootstrap([1.0, 5.0, 2.0])
        with pytest.raises(ValueError, match="one number a seed"):
            stats.bootstrap([])


class TestOneRule:
    def test_a_deviation_is_of_a_sample(self) -> None:
        assert stats.deviation([1.0, 3.0]) == pytest.approx(np.sqrt(2))
        assert stats.with_deviation([0.0, 1.0]) == "0.50 ± 0.71"

    def test_one_seed_has_neither_deviation_nor_interval(self, tmp_path: Path) -> None:
        assert np.isnan(stats.deviation([2.0]))
        assert np.isnan(stats.bootstrap([2.0])).all()
        runs = [MazeRun("Adam", "maze4", Adam(), seed, 100) for seed in range(2)]
        folders = [made(run, tmp_path) for run in runs]
        one = markdown("one", gather(folders[:1])).splitlines()[-1]
        assert "±" not in one
        assert "[" not in one
        two = gather(folders)[0]
        assert f"± {two.final.std(ddof=1):.2f} |" in markdown("two", [two])


def made(run: Run, root: Path) -> Folder:
    """The folder of a run that is made in this process."""
    make(run, root)
    return Folder(root / run.name)


class TestRuns:
    def test_a_run_keeps_what_was_believed(self, tmp_path: Path) -> None:
        run = MazeRun("Kova", "maze4", Filtered(), 0, 150, looks=3)
        folder = made(run, tmp_path)
        arrays, summary = folder.arrays(), folder.json("summary.json")
        assert arrays["looks"].tolist() == [50, 100, 150]
        assert arrays["q_mean"].shape == arrays["q_std"].shape == (3, 16, 4)
        assert (arrays["q_std"] > 0).all()
        assert history(folder).window == 8
        assert summary["processor"] > 0
        records = read_log(folder.path / "log.jsonl")
        assert [record["step"] for record in records] == list(range(3, 151, 3))
        curve = history(folder).curve(np.arange(3, 151, 3))
        assert [record["success"] for record in records] == curve.tolist()
        assert summary["final_success"] == curve[-1]

    def test_looking_changes_nothing(self, tmp_path: Path) -> None:
        runs = [MazeRun("Kova", "maze4", Filtered(), 0, 300, looks=looks) for looks in (0, 7)]
        plain, looked = (history(made(run, tmp_path)) for run in runs)
        assert plain == looked

    def test_a_filter_that_breaks_down_leaves_a_record(self, tmp_path: Path) -> None:
        wound = Filtered(covariance.Full(), evolution.FadingMemory(0.5))
        folder = made(MazeRun("as printed", "maze4", wound, 0, 300), tmp_path)
        summary = folder.json("summary.json")
        assert summary["broken"]["error"].startswith("CovarianceWindup")
        assert 32 < summary["broken"]["step"] == summary["learned"] < 100
        (series,) = gather([folder])
        assert series.broken == ("CovarianceWindup",)
        assert read_log(folder.path / "log.jsonl")[-1]["step"] == 300

    def test_other_defaults_are_other_runs(self) -> None:
        run = MazeRun("Kova", "maze4", Filtered(), 0, 100)
        assert run.flat()["covariance"] == "kronecker"
        others = [
            MazeRun("Kova", "maze4", critic, 0, 100)
            for critic in (
                *(Filtered(covariance.Diagonal()), Adam(1e-3), Adam(1e-3, decaying=True)),
                *(Temporal(), Temporal(start="zeros")),
            )
        ]
        assert len({each.name for each in (run, *others)}) == 6
        assert MazeRun("Kova", "maze4", Filtered().complete(), 0, 100).name == run.name

    def test_the_networks_have_the_papers_size(self) -> None:
        assert sum(p.numel() for p in network(16).parameters()) == 340
        assert sum(p.numel() for p in network(100).parameters()) == 10_504


def test_what_the_figures_compare() -> None:
    assert {"Kova", "memoryless (released code)", "KTD as printed", "KTD, bounded", "Adam 1e-3"} <= set(
        FIG1.critics
    )
    assert FIG1.scales["paper"] == (5_000, 8)
    assert FIG2.scales["paper"] == (100_000, 8)
    assert sum(name.startswith("Kova") for name in FIG2.critics) == 3
    assert sum(name.startswith("memoryless") for name in FIG2.critics) == 3
    assert {"Adam 1e-3", "Adam 3e-4, decaying", "Adam 1e-4"} <= set(FIG2.critics)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("figure", ["fig1", "fig2"])
def test_a_figure_from_the_command_line(
    figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", figure, "--steps", "120", "--seeds", "1", "--out", str(tmp_path)]
    cli.main(command)
    printed = capsys.readouterr().out
    assert "memoryless" in printed
    assert "Adam" in printed
    with Image.open(tmp_path / f"{figure}.png") as image:
        assert image.width > 1_000
    assert (tmp_path / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / f"{figure}.md").read_text().count("\n|") >= 5
    made = sorted(path.parent for path in tmp_path.glob("*/summary.json"))
    assert len(made) == len({"fig1": FIG1, "fig2": FIG2}[figure].critics)
    times = [(path / "summary.json").stat().st_mtime_ns for path in made]
    (made[0] / "summary.json").unlink()
    cli.main(command)
    assert f"{len(made)} of {len(made)} runs done ({len(made) - 1} of them before)" in capsys.readouterr().out
    assert [(path / "summary.json").stat().st_mtime_ns for path in made[1:]] == times[1:]
    assert (made[0] / "summary.json").exists()
    cli.main(["report", str(tmp_path)])
    page = (tmp_path / "report.html").read_text()
    assert "Mazes: success rate" in page
    assert f"kova reproduce {figure}" in page
    table = (tmp_path / f"{figure}.md").read_text()
    cli.main(["pack", str(tmp_path)])
    assert not list(tmp_path.glob("*/summary.json"))
    cli.main(["reproduce", figure, "--draw", "--out", str(tmp_path)])
    assert (tmp_path / f"{figure}.md").read_text() == table


def test_what_a_packed_run_believed_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(MazeRun("Kova", "maze10", Filtered(), 0, 120, looks=4), tmp_path)
    cli.main(["pack", str(tmp_path)])
    run = tmp_path / "maze10_kova_seed0"
    cli.main(["show", "maze10", str(run), "--out", str(tmp_path)])
    assert f"{run.name}.png" in capsys.readouterr().out
    with Image.open(tmp_path / f"{run.name}.gif") as moving:
        assert moving.n_frames == 4
    with Image.open(tmp_path / f"{run.name}.png") as still:
        assert still.height > 800


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "maze10"], "which run"),
        (["show", "maze10", "nowhere"], "no run nowhere"),
        (["show", "maze10", "."], "is no single run"),
        (["reproduce", "fig1", "--steps", "0"], "--steps must be"),
        (["demo", "--seeds", "0"], "--seeds must be"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments, "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_of_another_maze_or_without_looks_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(MazeRun("Adam", "maze4", Adam(), 0, 50), tmp_path)
    for maze, message in (("maze10", "is a run in maze4"), ("maze4", "kept no beliefs")):
        with pytest.raises(SystemExit):
            cli.main(["show", maze, str(folder.path), "--out", str(tmp_path)])
        assert message in capsys.readouterr().err


def test_the_greedy_path() -> None:
    layout = Layout(MAZE10)
    best = np.zeros((100, 4), np.float32)
    for cell in layout.starts:
        after = layout.moves[cell]
        best[cell, int(np.argmin([layout.distances[to] if to >= 0 else 999 for to in after]))] = 1.0
    path, solved = greedy_path(layout, best, 0)
    assert solved
    assert len(path) - 1 == 42
    path, solved = greedy_path(layout, np.zeros((100, 4), np.float32), 0)  # left, against the border
    assert not solved
    assert path == [0]


FEW = ("Adam 0.001", "Memoryless, BatchSize, P0 I", "Diagonal, Leakage 0.01, BatchSize, P0 I")


class TestStudy:
    def test_every_setting_can_be_built_and_has_its_name(self) -> None:
        settings = list(study.configurations())
        assert (
            len({name for name, _ in settings})
            == len({repr((critic.kind, critic.table())) for _, critic in settings})
            == len(settings)
        )

    def test_the_default_is_one_of_them(self) -> None:
        assert dict(study.configurations())[study.DEFAULTS[0]].table() == Filtered().table()

    def test_of_some_structures(self, tmp_path: Path) -> None:
        some = [label for label, _ in study.configurations(["kronecker"]) if study.is_tracked(label)]
        assert some == [label for label, _ in study.configurations() if label.startswith("Kronecker")]
        with pytest.raises(SystemExit):
            cli.main(["study", "--structures", "kroneker", "--out", str(tmp_path)])
        assert not list(tmp_path.iterdir())

    def test_ranks(self) -> None:
        columns = {
            "maze4": {"a": [0.9, 0.7], "b": [0.5, 0.5], "c": [0.1, 0.1]},
            "chain": {"a": [0.2], "b": [0.1], "c": [0.2]},
        }
        entries = Entry.ranked(columns, {name: [1.0] for name in "abc"})
        assert [(entry.name, entry.rank) for entry in entries] == [("b", 1.5), ("a", 1.75), ("c", 2.75)]
        assert entries[1].cells()[2].startswith("0.800 [0.700, 0.900]")

    @pytest.mark.usefixtures("in_this_process")
    def test_it_runs_in_small(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        few = [pair for pair in study.configurations() if pair[0] in FEW]
        monkeypatch.setattr(study, "configurations", lambda structures=(): iter(few))
        monkeypatch.setattr(study, "SCALES", {"smoke": study.Size(60, 200, 1, 2, 60, 1)})
        monkeypatch.setattr(study, "TASKS", (("boyan", "on-policy"),))
        cli.main(["study", "--out", str(tmp_path)])
        assert "Adam 0.001" in capsys.readouterr().out
        report = (tmp_path / "study.md").read_text()
        assert "boyan, on-policy" in report
        assert "ranked among themselves" in report
        assert "The best on the 10x10 maze, 60 steps" in report
        cli.main(["pack", str(tmp_path)])
        cli.main(["study", "--draw", "--out", str(tmp_path)])
        assert (tmp_path / "study.md").read_text() == report


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "words",
    [
        ("demo", "--seeds", "1", "--steps", "100"),
        ("reproduce", "fig1", "--seeds", "1", "--steps", "60"),
        ("show", "chain", "--seeds", "1", "--updates", "30"),
        ("evaluate", "--task", "boyan", "--critics", "lstd", "--seeds", "1", "--samples", "160"),
    ],
)
def test_hints_name_the_extra(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    for module in ("drawing", *("figures." + name for name in ("beliefs", "maze_pictures", "chain_picture"))):
        monkeypatch.delitem(sys.modules, f"kova_rl.lab.{module}", raising=False)
    for module in ("evaluation.figure",):
        monkeypatch.delitem(sys.modules, f"kova_rl.lab.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "runs [1]"
    cli.main([*words, "--out", str(out)])
    printed = capsys.readouterr().out
    assert "without matplotlib: pip install 'kova-rl[plots]'" in printed
    assert str(out) in printed or words[:2] == ("show", "chain")


def test_the_lab_needs_no_matplotlib_until_it_draws() -> None:
    check = (
        "import sys, kova_rl.cli, kova_rl.lab.figures.study;"
        "assert 'matplotlib' not in sys.modules and 'stable_baselines3' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
