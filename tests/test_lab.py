"""The lab: files, pool, statistics, and the commands from end to end, in small."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kova_rl import cli, covariance, evolution
from kova_rl.envs import MAZE10, Layout
from kova_rl.lab import files, pool, stats, study
from kova_rl.lab.critics import Adam, Filtered, Temporal
from kova_rl.lab.maze import Run, run, run_file
from kova_rl.lab.reproduce import FIG1, FIG2
from kova_rl.lab.series import gather, markdown
from kova_rl.lab.show import greedy_path
from kova_rl.lab.study_table import Entry


class TestFiles:
    def test_arrays_and_meta_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "run.npz"
        files.save(path, {"a": np.arange(5), "b": np.array([True])}, {"config": {"x": [1, "é"]}})
        arrays, meta = files.load(path)
        assert arrays["a"].tolist() == [0, 1, 2, 3, 4]
        assert meta == {"config": {"x": [1, "é"]}}
        assert files.finished(path, {"x": (1, "é")})  # as JSON has it
        assert not files.finished(path, {"x": [2]})
        assert [p.name for p in path.parent.iterdir()] == ["run.npz"]

    def test_no_pickle(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "evil.npz", a=np.array([print], dtype=object), meta=np.zeros(0, np.uint8))
        with pytest.raises(ValueError, match="damaged"):
            files.load(tmp_path / "evil.npz")

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
    def test_a_torn_file_is_run_again(self, tmp_path: Path, share: float) -> None:
        path = tmp_path / "run.npz"
        files.save(path, {"a": np.arange(500)}, {"config": {}})
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        assert not files.finished(path, {})
        with pytest.raises(ValueError, match="delete it"):
            files.load(path)

    def test_a_flipped_bit_is_damage_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "run.npz"
        files.save(path, {"a": np.random.default_rng(0).normal(size=300)}, {"config": {}})
        content = path.read_bytes()
        for at in range(0, len(content), 37):
            path.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
            files.finished(path, {})  # says yes or no, and does not raise

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


def square(job: int, tick: Callable[[int], None]) -> int:
    tick(1)
    if job < 0:
        raise ValueError(f"{job} is below 0")
    return job * job


class TestPool:
    def test_results_come_in_order(self) -> None:
        assert pool.run_all(square, list(range(7)), title="t", ticks=7, workers=2) == [
            x * x for x in range(7)
        ]
        assert pool.run_all(square, [], title="t", ticks=0) == []

    def test_without_a_terminal_it_says_how_far_it_is(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("kova_rl.lab.terminal.EVERY", 0.0)
        pool.run_all(square, [1, 2], title="squares", ticks=2, workers=1)
        assert "squares: 100%, 2 of 2 runs" in capsys.readouterr().out

    def test_an_error_reaches_the_caller(self) -> None:
        with pytest.raises(ValueError, match="-1 is below 0"):
            pool.run_all(square, [1, -1, 2], title="t", ticks=3, workers=1)


def wait_for_ever(job: Path, tick: Callable[[int], None]) -> None:
    (job / f"{os.getpid()}").touch()
    time.sleep(600)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from kova_rl.lab import pool; from tests.test_lab import wait_for_ever\n"
        "if __name__ == '__main__':\n"
        f"    pool.run_all(wait_for_ever, [Path({str(tmp_path)!r})] * 2, title='t', ticks=2, workers=2)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(code)
    root = Path(__file__).parent.parent
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(root)})
    until = time.monotonic() + 120
    while len(pids := [int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()]) < 2:
        assert parent.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.1)


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
        jobs = [Run("Adam", "maze4", Adam(), seed, 100, tmp_path) for seed in range(2)]
        for job in jobs:
            run(job, lambda n: None)
        one = markdown("one", gather(jobs[:1])).splitlines()[-1]
        assert "±" not in one
        assert "[" not in one
        two = gather(jobs)[0]
        assert f"± {two.final.std(ddof=1):.2f} |" in markdown("two", [two])


class TestRuns:
    def test_a_run_keeps_what_was_believed(self, tmp_path: Path) -> None:
        job = Run("Kova", "maze4", Filtered(), 0, 150, tmp_path, looks=3)
        run(job, lambda n: None)
        history, arrays, meta = run_file(job.path)
        assert arrays["looks"].tolist() == [50, 100, 150]
        assert arrays["q_mean"].shape == arrays["q_std"].shape == (3, 16, 4)
        assert (arrays["q_std"] > 0).all()
        assert history.window == 8
        assert files.finished(job.path, job.config)
        assert meta["cpu_seconds"] > 0

    def test_looking_changes_nothing(self, tmp_path: Path) -> None:
        plain = Run("plain", "maze4", Filtered(), 0, 300, tmp_path)
        looked = Run("looked", "maze4", Filtered(), 0, 300, tmp_path, looks=7)
        for job in (plain, looked):
            run(job, lambda n: None)
        assert run_file(plain.path)[0] == run_file(looked.path)[0]

    def test_a_filter_that_breaks_down_leaves_a_record(self, tmp_path: Path) -> None:
        wound = Filtered(covariance.Full(), evolution.FadingMemory(0.5))
        job = Run("as printed", "maze4", wound, 0, 300, tmp_path)
        ticks: list[int] = []
        run(job, ticks.append)
        assert sum(ticks) == 300
        _, _, meta = run_file(job.path)
        assert meta["broken"]["error"].startswith("CovarianceWindup")
        assert 32 < meta["broken"]["step"] < 100
        (series,) = gather([job])
        assert series.broken == ("CovarianceWindup",)

    def test_other_defaults_are_other_runs(self, tmp_path: Path) -> None:
        job = Run("Kova", "maze4", Filtered(), 0, 100, tmp_path)
        assert "Kronecker" in job.config["critic"]
        other = Run("Kova", "maze4", Filtered(covariance.Diagonal()), 0, 100, tmp_path)
        assert job.config != other.config
        assert repr(Adam(1e-3)) != repr(Adam(1e-3, decaying=True))
        assert repr(Temporal()) != repr(Temporal(start="zeros"))

    def test_the_networks_have_the_papers_size(self) -> None:
        from kova_rl.lab.maze import network

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
    data = sorted((tmp_path / "data").iterdir())
    assert len(data) == len({"fig1": FIG1, "fig2": FIG2}[figure].critics)
    times = [path.stat().st_mtime_ns for path in data]
    data[0].unlink()
    cli.main(command)
    assert f"{len(data) - 1} of {len(data)} runs are finished already" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in data[1:]] == times[1:]
    assert data[0].exists()
    if figure == "fig2":
        picture(tmp_path, next(p for p in data if "kova" in p.name), capsys)


def picture(out: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["show", "maze10", str(data), "--out", str(out)])
    assert data.stem in capsys.readouterr().out
    with Image.open(out / f"{data.stem}.gif") as moving:
        assert moving.n_frames > 10
    with Image.open(out / f"{data.stem}.png") as still:
        assert still.height > 800


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "maze10"], "which run"),
        (["show", "maze10", "nowhere.npz"], "no run nowhere.npz"),
        (["show", "maze10", "."], "is a folder"),
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
    job = Run("Adam", "maze4", Adam(), 0, 50, tmp_path)
    run(job, lambda n: None)
    for maze, message in (("maze10", "is a run in maze4"), ("maze4", "kept no beliefs")):
        with pytest.raises(SystemExit):
            cli.main(["show", maze, str(job.path), "--out", str(tmp_path)])
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
            == len({repr(critic) for _, critic in settings})
            == len(settings)
        )

    def test_the_default_is_one_of_them(self) -> None:
        assert repr(dict(study.configurations())[study.DEFAULTS[0]]) == repr(Filtered())

    def test_ranks(self) -> None:
        columns = {
            "maze4": {"a": [0.9, 0.7], "b": [0.5, 0.5], "c": [0.1, 0.1]},
            "chain": {"a": [0.2], "b": [0.1], "c": [0.2]},
        }
        entries = Entry.ranked(columns, {name: [1.0] for name in "abc"})
        assert [(entry.name, entry.rank) for entry in entries] == [("b", 1.5), ("a", 1.75), ("c", 2.75)]
        assert entries[1].cells()[2].startswith("0.800 [0.700, 0.900]")

    def test_it_runs_in_small(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        few = [pair for pair in study.configurations() if pair[0] in FEW]
        monkeypatch.setattr(study, "configurations", lambda: iter(few))
        monkeypatch.setattr(study, "SCALES", {"smoke": study.Size(60, 200, 1, 2, 60, 1)})
        monkeypatch.setattr(study, "TASKS", (("boyan", "on-policy"),))
        cli.main(["study", "--out", str(tmp_path)])
        assert "Adam 0.001" in capsys.readouterr().out
        report = (tmp_path / "study.md").read_text()
        assert "boyan, on-policy" in report
        assert "ranked among themselves" in report
        assert "The best on the 10x10 maze, 60 steps" in report


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
    for module in ("show", "maze_figures", "chain_figure", "evaluation.figure"):
        monkeypatch.delitem(sys.modules, f"kova_rl.lab.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "runs [1]"
    cli.main([*words, "--out", str(out)])
    printed = capsys.readouterr().out
    assert "without matplotlib: pip install 'kova-rl[plots]'" in printed
    assert str(out) in printed or words[:2] == ("show", "chain")


def test_the_lab_needs_no_matplotlib_until_it_draws() -> None:
    check = (
        "import sys, kova_rl.cli, kova_rl.lab.reproduce, kova_rl.lab.study;"
        "assert 'matplotlib' not in sys.modules and 'stable_baselines3' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
