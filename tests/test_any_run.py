"""Mazes and policy evaluation are runs as training is: killed, tried again, resumed, put on Ray, reported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kova_rl import cli
from kova_rl.lab.backends import Processes
from kova_rl.lab.evaluation.run import EvaluationRun
from kova_rl.lab.log import read_log
from kova_rl.lab.mazes.critics import Adam, Filtered
from kova_rl.lab.mazes.run import MazeRun
from kova_rl.lab.pack import DIGITS, FILE, Folder, found, one, pack
from kova_rl.lab.report import read
from kova_rl.lab.run import Run, make
from kova_rl.lab.store import Busy, Store
from kova_rl.lab.sweep.supervise import Sweep
from tests.faults.critics import Faulty
from tests.here import Here

ROOT = Path(__file__).parent.parent
KINDS = ("maze", "evaluation")


def a_run(kind: str, critic: Any, steps: int = 480, seed: int = 0) -> Run:
    label = type(critic).__name__
    if kind == "maze":
        return MazeRun(label, "maze4", critic, seed, steps, looks=2)
    return EvaluationRun(label, "boyan", "on-policy", critic, seed, steps)


def outcome(root: Path, run: Run) -> tuple[Any, Any]:
    """All that must be the same of an interrupted and an undisturbed run."""
    folder = one(root / run.name)
    times = ("seconds", "processor", "log_bytes")
    summary = {k: v for k, v in folder.json("summary.json").items() if k not in times}
    records = read_log(folder.path, folder.read("log.jsonl"))
    arrays = {name: np.nan_to_num(x, nan=-7).tolist() for name, x in folder.arrays().items()}
    return [{k: v for k, v in record.items() if k not in times} for record in records], (summary, arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_one_run_goes_wrong_and_the_others_finish(kind: str, tmp_path: Path) -> None:
    markers = {name: tmp_path / name for name in ("killed", "raises", "full")}
    runs = {"good": a_run(kind, Filtered())} | {
        name: a_run(kind, Faulty(name, 20, str(marker))) for name, marker in markers.items()
    }
    for name in ("killed", "full"):
        markers[name].touch()
        make(runs[name], tmp_path / "whole")
        markers[name].unlink()
    make(runs["good"], tmp_path / "whole")
    sweep = Sweep(list(runs.values()), tmp_path / "runs", retries=1)
    sweep.supervise(Processes(sweep.root, slots=2))
    known = dict(zip(runs, sweep.entries, strict=True))
    found_ = {name: (entry.status, entry.attempts) for name, entry in known.items()}
    assert found_ == {
        "good": ("done", 1),
        "killed": ("done", 2),
        "raises": ("failed", 2),
        "full": ("failed", 2),
    }
    assert known["raises"].message == "RuntimeError: the critic broke"
    assert "no space left in" in known["full"].message
    failure = json.loads((sweep.root / runs["raises"].name / "failure.json").read_text())
    assert "in raises" in failure["log"], "the end of its log: the traceback"
    for name in ("good", "killed"):
        assert outcome(sweep.root, runs[name]) == outcome(tmp_path / "whole", runs[name])
    assert {run.status for run in read(sweep.root, tell=lambda line: None)} == {"done", "failed"}

    markers["full"].touch()  # there is space again
    again = Sweep([runs["good"], runs["full"]], sweep.root)
    assert [entry.before for entry in again.entries] == [True, False]
    again.supervise(Here(again.root, slots=1))
    assert outcome(again.root, runs["full"]) == outcome(tmp_path / "whole", runs["full"])


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_never_work_on_one_run(kind: str, tmp_path: Path) -> None:
    run = a_run(kind, Adam())
    with Store(tmp_path, run.name).locked():
        sweep = Sweep([run], tmp_path)
        sweep.supervise(Processes(tmp_path, slots=1))
        assert sweep.entries[0].status == "busy"
        with pytest.raises(Busy):
            make(run, tmp_path)


COMMANDS = {
    "maze": ["reproduce", "fig1", "--steps", "400", "--seeds", "1", "--jobs", "2"],
    "evaluation": [
        "evaluate",
        "--samples",
        "8000",
        "--seeds",
        "2",
        "--critics",
        "kova",
        "lstd",
        "--jobs",
        "2",
    ],
}


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_parent_is_killed(kind: str, tmp_path: Path) -> None:
    """By SIGKILL, once runs are under way; the same command again leaves what an undisturbed one does."""
    command = [*COMMANDS[kind], "--out"]
    torn = [sys.executable, "-m", "kova_rl.cli", *command, str(tmp_path / "torn")]
    parent = subprocess.Popen(torn, stdout=subprocess.DEVNULL, cwd=ROOT)
    until = time.monotonic() + 120
    while time.monotonic() < until and not list((tmp_path / "torn").glob("*/config.json")):
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    names = [path.parent.name for path in (tmp_path / "torn").glob("*/config.json")]
    assert names
    for name in names:
        with Store(tmp_path / "torn", name).locked(patience=20):  # the workers have ended with their parent
            pass
    for out in ("torn", "whole"):
        cli.main([*command, str(tmp_path / out)])
    whole = found(tmp_path / "whole")
    assert [folder.name for folder in found(tmp_path / "torn")] == [folder.name for folder in whole]
    for folder in whole:
        mine, theirs = folder.arrays(), Folder(tmp_path / "torn" / folder.name).arrays()
        assert all(np.array_equal(mine[key], theirs[key], equal_nan=True) for key in mine | theirs)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_of_ray_is_killed(kind: str, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    from kova_rl.lab.backends.on_ray import RayTasks

    marker = tmp_path / "marker"
    runs = [a_run(kind, Filtered()), a_run(kind, Faulty("killed", 20, str(marker)))]
    marker.touch()
    for run in runs:
        make(run, tmp_path / "whole")
    marker.unlink()
    sweep = Sweep(runs, tmp_path / "runs", retries=1)
    sweep.supervise(RayTasks(sweep.root, slots=2))
    assert [(entry.status, entry.attempts) for entry in sweep.entries] == [("done", 1), ("done", 2)]
    for run in runs:
        assert outcome(sweep.root, run) == outcome(tmp_path / "whole", run)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_maze_on_ray_by_command_and_its_page(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    kova = [sys.executable, "-m", "kova_rl.cli"]
    words = ["reproduce", "fig1", "--steps", "200", "--seeds", "1", "--on", "ray", "--out", str(tmp_path)]
    subprocess.run([*kova, *words], check=True, cwd=ROOT)
    cli.main(["report", str(tmp_path)])
    assert "Mazes: success rate" in (tmp_path / "report.html").read_text()


# ---------------------------------------------------------------------- one file of runs


def test_packed_runs_are_the_runs(tmp_path: Path) -> None:
    runs = [a_run(kind, Adam(), seed=seed) for kind in KINDS for seed in (0, 1)]
    for run in runs:
        make(run, tmp_path)
    before = {run.name: outcome(tmp_path, run) for run in runs}
    records = [(r.name, r.final, r.steps.tolist()) for r in read(tmp_path)]
    (tmp_path / runs[0].name / "model.zip").write_bytes(b"large")
    path = pack(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [FILE]
    near = 0.5 * 10.0 ** (1 - DIGITS)
    for run in runs:
        (records_then, kept_then), (records_now, kept_now) = before[run.name], outcome(tmp_path, run)
        assert kept_now == kept_then
        assert [list(record) for record in records_now] == [list(record) for record in records_then]
        for now, then in zip(records_now, records_then, strict=True):
            assert now == {k: pytest.approx(v, rel=near, nan_ok=True) for k, v in then.items()}
    for where in (tmp_path, path):
        assert [(r.name, r.final, r.steps.tolist()) for r in read(where)] == records
    content = path.read_bytes()
    assert pack(tmp_path).read_bytes() == content, "packed again it is the same"
    assert Sweep(runs, tmp_path).of("waiting") == [], "they count as done"
    make(a_run("maze", Adam(), seed=2), tmp_path)
    assert len(found(tmp_path)) == 5
    assert len(found(pack(tmp_path))) == 5
    path.write_bytes(content[:-50])
    with pytest.raises(ValueError, match="is damaged"):
        found(tmp_path)


def test_only_finished_runs_are_packed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no runs"):
        pack(tmp_path)
    run = a_run("maze", Adam())
    make(run, tmp_path)
    (tmp_path / run.name / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"is not finished: give the command"):
        pack(tmp_path)
    assert (tmp_path / run.name).is_dir()


def test_a_run_is_found_by_the_begin_of_its_name(tmp_path: Path) -> None:
    runs = [a_run("maze", Adam(), seed=seed) for seed in (1, 12)]
    for run in runs:
        make(run, tmp_path)
    assert one(tmp_path / "maze4_adam_seed12").name == runs[1].name
    assert one(tmp_path / "maze4_adam_seed1_").name == runs[0].name
    with pytest.raises(ValueError, match="no single run; name one of these"):
        one(tmp_path / "maze4_adam_seed1")
    with pytest.raises(ValueError, match="there is no run"):
        one(tmp_path / "maze6")


def test_runs_of_an_earlier_version_are_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "maze4_kova_seed0.npz", ends=np.arange(3))
    with pytest.raises(ValueError, match="an earlier version wrote"):
        read(tmp_path)


# ---------------------------------------------------------------------- other systems

WITHOUT = """
import sys
sys.modules["fcntl"] = None  # as on Windows
from kova_rl import cli
cli.main(sys.argv[1:])
"""


def test_runs_are_made_without_fcntl(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    words = "train ppo CartPole-v1 --steps 64 --network 8 --host n_steps=32 batch_size=32 n_epochs=1 --out"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", WITHOUT, *words.split(), str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
    assert "finished before" in done.stdout
    assert not list(tmp_path.glob("*/lock"))
