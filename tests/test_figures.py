"""The paper's figures by one command: what is planned at each scale, what is refused, and TensorBoard."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kova_rl import cli
from kova_rl.lab import figures
from kova_rl.lab.figures import FIGURES, SCALES
from kova_rl.lab.figures.sweeps import SweepFigure
from kova_rl.lab.log import read_log
from kova_rl.lab.run import make as train
from kova_rl.lab.store import Store
from kova_rl.lab.sweep.noted import add_command, read_commands
from kova_rl.lab.sweep.presets import sweep_names
from kova_rl.lab.training.tensorboard import write_events
from tests.runs import TIMES, ppo

COUNTS = {
    "fig3": (8, 3 * 3 * 3 * 3, 5 * 8 * (3 * 3 + 3)),
    "control": (4, 4 * (4 * 10 + 2 * 5), 4 * 2 * 3 * 10),
    "changing": (4, 2 * 2 * 10, 2 * 2 * 10),
    "sac": (2, 2 * 3, 2 * 10),
    "ablation": (7, 2 * 3 * 13, 2 * 8 * 13),
    "times": (8, 5 * 3 * 3 * 3, 5 * 3 * 3),
    "grid": (8, 3 * 2 * 24, 5 * 8 * 24),
}
SWEEPS = {name: figure for name, figure in FIGURES.items() if isinstance(figure, SweepFigure)}
EVERY = [(name, scale) for name in SWEEPS for scale in SCALES]


def planned(name: str, scale: str, **changes: int) -> list[Any]:
    return list(FIGURES[name].runs(scale, **changes))


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_sweep_that_is_shipped_expands(name: str, scale: str) -> None:
    runs = planned(name, scale)
    assert len(runs) == len({run.name for run in runs}) == COUNTS[name][SCALES.index(scale)]
    hours = FIGURES[name].hours(runs)
    if scale == "smoke":
        assert len(runs) <= 8
        assert hours * 3600 < 80, "a minute on two cores, which load the libraries first"
    if scale == "desk":
        assert (0.5 if name == "times" else 1) < hours < 8  # times are told by short runs
    if scale == "paper":
        assert {run.steps for run in runs} <= {1_000_000, 2_000_000}
        seeds = range(10 if name in ("control", "changing", "sac") else 8)
        assert name == "times" or {run.seed for run in runs} == set(seeds)
    if name == "times":
        assert {run.critic for run in runs} == {"adam", "memoryless", "kova"}


def test_no_sweep_is_forgotten() -> None:
    assert set(sweep_names()) == {
        name for figure in SWEEPS for name in (figure, f"{figure}-desk", f"{figure}-smoke")
    }


def test_what_matters_comes_first_at_the_desk() -> None:
    runs = planned("fig3", "desk")
    first = [(run.algorithm, run.environment, run.critic) for run in runs[:12]]
    assert set(first[:6]) == {("ppo", "HalfCheetah-v5", critic) for critic in ("kova", "adam")}
    assert set(first[6:]) == {("sac", "HalfCheetah-v5", critic) for critic in ("kova", "adam")}
    steps = {(run.algorithm, run.steps) for run in runs}
    assert steps == {("ppo", 300_000), ("trpo", 300_000), ("sac", 50_000)}


def test_fig3_has_the_horizons_of_acktr() -> None:
    horizons = Counter(run.host["n_steps"] for run in planned("fig3", "paper") if run.algorithm == "acktr")
    assert horizons == {250: 40, 2500: 40, 25000: 40}


def test_critics_take_turns_where_times_are_measured() -> None:
    assert [run.critic for run in planned("times", "desk")][:4] == ["adam", "memoryless", "kova", "adam"]


def test_seeds_and_steps_of_the_command_win() -> None:
    runs = planned("grid", "smoke", seeds=2, steps=512)
    assert len(runs) == 16
    assert {(run.seed, run.steps) for run in runs} == {(0, 512), (1, 512)}


def test_the_list_says_what_each_makes_and_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    cli.main(["reproduce", "--list"])
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in FIGURES)
    assert "core-hours" in printed
    numbers = re.search(r"paper +480 +8 +1M to 2M +(\d+)", printed)
    assert numbers
    assert int(numbers[1]) == round(FIGURES["fig3"].hours(planned("fig3", "paper")))


def test_the_documentation_has_the_same_hours() -> None:
    page = (Path(__file__).parent.parent / "docs" / "lab.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert {row[0] for row in rows} == set(FIGURES)
    for name, *said in rows:
        assert said == [figures.hours(FIGURES[name].hours(planned(name, scale))) for scale in SCALES[1:]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig33"], "did you mean fig3?"),
        (["ablaton"], "did you mean ablation?"),
        (["fig3", "--scale", "dekst"], "did you mean desk?"),
        (["fig1", "--scale", "papr"], "did you mean paper?"),
        ([], "which figure?"),
        (["fig3", "--seeds", "0"], "--seeds must be a whole number, at least 1"),
        (["grid", "--steps", "0"], "--steps must be a whole number, at least 1"),
        (["fig3", "--jobs", "0"], "--jobs must be a whole number, at least 1"),
        (["times", "--jobs", "2"], "side by side do not compare"),
        (["fig2", "--jobs", "0"], "--jobs must be a whole number, at least 1"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new"
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", *arguments, "--out", str(out)])
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_a_trial_is_kept_apart() -> None:
    assert figures.folder("fig3", "smoke") == Path("results/fig3-smoke")
    assert figures.folder("fig3", "desk") == figures.folder("fig3", "paper") == Path("results/fig3")


def test_commands_are_noted_once(tmp_path: Path) -> None:
    add_command(tmp_path, ("kova", "sweep", "my file.toml", "--out", tmp_path))
    add_command(tmp_path, ("kova", "reproduce", "fig3"))
    add_command(tmp_path, ("kova", "sweep", "my file.toml", "--out", tmp_path))
    assert read_commands(tmp_path) == [f"kova sweep 'my file.toml' --out {tmp_path}", "kova reproduce fig3"]
    assert [path.name for path in tmp_path.iterdir()] == ["commands.txt"]


def shown(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A figure of two runs that take a second, one of which may be broken."""
    pytest.importorskip("stable_baselines3")
    runs = [ppo(critic=critic, steps=128, segments=2) for critic in ("adam", "kova")]
    monkeypatch.setattr(SweepFigure, "runs", lambda *given: runs)
    return runs


def test_a_figure_that_is_finished_is_only_shown(
    tiny: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console, folders = Console(file=io.StringIO(), width=120), []
    monkeypatch.setattr(SweepFigure, "show", lambda self, root, *rest: folders.append(root))
    for run in tiny:  # in this process, which has the libraries already
        train(run, tmp_path)
    assert figures.reproduce("ablation", "smoke", out=tmp_path, console=console)
    assert "2 of 2 runs done (2 of them before), 0 failed" in shown(console)
    assert folders == [tmp_path]


@pytest.mark.usefixtures("in_this_process")
def test_a_figure_with_a_failed_run_has_its_page_and_says_so(tiny: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    console = Console(file=io.StringIO(), width=120)
    train(tiny[0], tmp_path)
    tiny[1] = ppo(environment="Nowhere-v0", steps=128)
    assert not figures.reproduce("times", "smoke", steps=128, out=tmp_path, console=console)
    assert "1 of 2 runs done (1 of them before), 1 failed" in shown(console)
    assert "PPO: final returns" in shown(console)
    page = (tmp_path / "report.html").read_text()
    assert f"<pre>kova reproduce times --scale smoke --steps 128 --out {tmp_path}</pre>" in page
    assert "Nowhere" in page
    assert (tmp_path / "figures" / "policy_ppo.png").exists()


class TestTensorBoard:
    """The event file of a run."""

    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("tensorboard")
        pytest.importorskip("stable_baselines3")

    def test_has_each_record_once(self, tmp_path: Path) -> None:
        config = ppo(steps=256, segments=4)
        train(config, tmp_path)
        store = Store(tmp_path, config.name)
        records = read_log(store.log_path)
        assert len(events(store.path)) == len(records) > 3
        for (step, seen), record in zip(events(store.path), records, strict=True):
            known = {k: v for k, v in record.items() if v is not None and k not in ("step", *TIMES)}
            assert step == record["step"]
            assert seen == pytest.approx(known, rel=1e-6)

    def test_goes_on_without_duplicates(self, tmp_path: Path) -> None:
        log = [{"step": step, "seconds": step / 10, "return": float(step)} for step in range(1, 9)]
        path = write_events(tmp_path, log[:3])
        assert path is not None
        inode = path.stat().st_ino
        assert write_events(tmp_path, log[:6]) == path
        assert path.stat().st_ino == inode, "appended, so that a TensorBoard which is looking goes on"
        assert [step for step, _ in events(tmp_path)] == [1, 2, 3, 4, 5, 6]
        write_events(tmp_path, log[:4])  # the run went back to an earlier checkpoint
        assert [step for step, _ in events(tmp_path)] == [1, 2, 3, 4]
        path.write_bytes(path.read_bytes()[:-3])  # torn, and what a killed write left
        (tmp_path / f".{path.name}.abc").write_bytes(b"torn")
        write_events(tmp_path, log)
        assert [step for step, _ in events(tmp_path)] == list(range(1, 9))
        assert [each.name for each in tmp_path.iterdir()] == [path.name]

    def test_is_left_out_without_tensorboard(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "tensorboard", None)
        assert write_events(tmp_path, [{"step": 1, "seconds": 0.1, "return": 1.0}]) is None
        assert not list(tmp_path.iterdir())


def events(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Step and values of each event, as TensorBoard's own reader finds them."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    found = [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]
    assert found[0].file_version == "brain.Event:2"
    return [(e.step, {v.tag: v.simple_value for v in e.summary.value}) for e in found[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_at_smoke_scale(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    cli.main(["reproduce", name, "--scale", "smoke", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    if name not in SWEEPS:
        assert f"{name}.md" in printed
        return
    count = COUNTS[name][0]
    assert f"{count} of {count} runs done, 0 failed" in printed
    assert (tmp_path / "report.html").exists()
    assert len(list(tmp_path.glob("*/events.out.tfevents.*"))) == count
    for path in tmp_path.glob("*/summary.json"):
        assert json.loads(path.read_text())["final_return"] is not None
    cli.main(["reproduce", name, "--scale", "smoke", "--out", str(tmp_path)])
    assert f"({count} of them before)" in capsys.readouterr().out
