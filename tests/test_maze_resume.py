"""A run in a maze that was killed goes on from its last checkpoint, to the bit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kova_rl.errors import StateMismatch
from kova_rl.lab.mazes import run as mazes
from kova_rl.lab.mazes.critics import BOUNDED, Adam, Critic, Filtered, Temporal
from kova_rl.lab.mazes.run import Lesson, MazeRun
from kova_rl.lab.run import make
from kova_rl.lab.store import Store
from tests.faults.critics import Faulty
from tests.test_any_run import ROOT, outcome

STEPS, EVERY = 400, 100


def a_run(critic: Critic) -> MazeRun:
    return MazeRun("critic", "maze4", critic, 3, STEPS, looks=5)


def doomed(folder: Path) -> MazeRun:
    """Killed at its 317th update, once; learning begins with a batch of 32, so that is step 348."""
    return a_run(Faulty("killed", 317, str(folder / "marker")))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mazes, "EVERY", EVERY)


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps at which lessons were gone on with."""
    steps, restore = [], Lesson.restore

    def watched(lesson: Lesson, content: bytes) -> None:
        restore(lesson, content)
        steps.append(lesson.agent.steps)

    monkeypatch.setattr(Lesson, "restore", watched)
    return steps


PROGRAM = f"""
import sys
from pathlib import Path
from kova_rl.lab.mazes import run
from kova_rl.lab.run import make
from tests.test_maze_resume import doomed
run.EVERY = {EVERY}
folder = Path(sys.argv[1])
make(doomed(folder), folder / "torn")
"""


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path: Path, restored: list[int]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    run = doomed(tmp_path)
    assert Store(tmp_path / "torn", run.name).started
    for folder in ("torn", "whole"):
        make(run, tmp_path / folder)
    assert restored == [300]
    assert outcome(tmp_path / "torn", run) == outcome(tmp_path / "whole", run)
    assert not Store(tmp_path / "torn", run.name).started, "checkpoints of a finished run are removed"


class Stopped(Exception):
    """In place of Ctrl-C."""


@pytest.mark.parametrize(
    "critic", [Filtered(), Adam(1e-3, decaying=True), Temporal(BOUNDED), Temporal()], ids=lambda c: c.kind
)
def test_every_critic_goes_on_to_the_bit(critic: Critic, tmp_path: Path, restored: list[int]) -> None:
    run = a_run(critic)

    def stop(record: dict[str, Any]) -> None:
        if record["step"] > 250:
            raise Stopped

    with pytest.raises(Stopped):
        make(run, tmp_path / "torn", stop)
    for folder in ("torn", "whole"):
        make(run, tmp_path / folder)
    assert restored == [200]
    assert outcome(tmp_path / "torn", run) == outcome(tmp_path / "whole", run)


def test_a_state_that_its_filter_refuses_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one with variances that have left all bounds: the run begins again, and its log too."""
    run = doomed(tmp_path)
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT)

    def refuse(lesson: Lesson, content: bytes) -> None:
        raise StateMismatch("variances that are not above 0")

    monkeypatch.setattr(Lesson, "restore", refuse)
    for folder in ("torn", "whole"):
        make(run, tmp_path / folder)
    assert outcome(tmp_path / "torn", run) == outcome(tmp_path / "whole", run)
