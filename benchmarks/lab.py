"""What the lab's bookkeeping costs beside a bare ``learn``, and how fast 500 finished runs are read."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import torch
from gymnasium.envs.classic_control import PendulumEnv
from rich.console import Console

from kova_rl.lab.commands.sweep import listed
from kova_rl.lab.report.write import report as write_report
from kova_rl.lab.run import make as train
from kova_rl.lab.store import Store, write_json
from kova_rl.lab.sweep.grid import expand
from kova_rl.lab.sweep.live import report
from kova_rl.lab.sweep.supervise import Sweep
from kova_rl.lab.training.config import RunConfig
from kova_rl.lab.training.run import open_session

LIMIT = 0.03
"""Of the time of a bare run."""
SECONDS = 20.0
"""For 500 finished runs."""
TURN = 256
"""Steps until the other one's turn."""
RUN = RunConfig("ppo", "Pendulum-v1", critic="adam", steps=40_960)
"""Adam, the cheapest critic, is the strictest."""
GRID = {
    "algorithm": ["ppo", "a2c"],
    "environment": ["Pendulum-v1", "MountainCarContinuous-v0", "CartPole-v1", "Acrobot-v1", "MountainCar-v0"],
    "critic": ["kova", "adam"],
    "seed": list(range(25)),
    "steps": 12_800,
    "host": {"n_steps": 64},
}
"""500 runs with 200 records each."""


class Turns:
    """Two threads that work in turn, so that what slows the machine down slows both; sums their times."""

    def __init__(self) -> None:
        self._given = threading.Condition()
        self._whose, self._left = 0, {0, 1}
        self._mine = threading.local()
        self.times = [[0.0, 0.0], [0.0, 0.0]]
        """Of each thread: seconds of the clock, and of the processor."""

    def step(self) -> None:
        """Count a step; after some, it is the other one's turn."""
        self._mine.steps += 1
        if self._mine.steps % TURN == 0:
            self._give()
            self._take()

    def whole(self, me: int, call: Callable[[RunConfig], None], run: RunConfig) -> None:
        """Do this run, in turns, to its end."""
        self._mine.me, self._mine.steps = me, 0
        self._take()
        try:
            call(run)
        finally:
            self._left.remove(me)
            self._give()

    def _take(self) -> None:
        with self._given:
            self._given.wait_for(lambda: self._whose == self._mine.me)
        self._mine.began = time.perf_counter(), time.thread_time()

    def _give(self) -> None:
        me, now = self._mine.me, (time.perf_counter(), time.thread_time())
        self.times[me] = [
            t + end - began for t, end, began in zip(self.times[me], now, self._mine.began, strict=True)
        ]
        with self._given:
            self._whose = 1 - me if 1 - me in self._left else me
            self._given.notify_all()


class PendulumInTurns(PendulumEnv):
    """Its episodes have one length, so both runs do the same work."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def step(self, action: Any) -> Any:
        """The host's, and the next one's turn."""
        self._turns.step()
        return super().step(action)


def registered(name: str, turns: Turns) -> str:
    """The name, now of an environment that takes these turns."""
    gymnasium.register(name, lambda **_: PendulumInTurns(turns), max_episode_steps=200)
    return name


def overhead(rounds: int) -> tuple[float, float]:
    """The lab's time over the bare one's, less 1, median of the rounds: by the clock and the processor."""
    ratios = []
    for number in range(rounds):
        first = number % 2
        turns = Turns()
        run = replace(RUN, environment=registered(f"PendulumInTurns-v{number}", turns))
        other = threading.Thread(target=turns.whole, args=(first, bare, run))
        other.start()
        turns.whole(1 - first, kept, run)
        other.join()
        ratios.append([a / b - 1 for a, b in zip(turns.times[1 - first], turns.times[first], strict=True)])
        print(f"  round {number + 1}: clock {ratios[-1][0]:+.1%}, processor {ratios[-1][1]:+.1%}", flush=True)
    return median(ratio[0] for ratio in ratios), median(ratio[1] for ratio in ratios)


def bare(run: RunConfig) -> None:
    """The same model and environments, and the host's ``learn``."""
    session = open_session(run)
    session.model.learn(run.steps)
    session.close()


def kept(run: RunConfig) -> None:
    """The run with its log, checkpoints and summary."""
    with tempfile.TemporaryDirectory() as folder:
        train(run, Path(folder))


def many(root: Path) -> dict[str, float]:
    """Seconds to expand, list, resume and report 500 finished runs."""
    first, *others = expand(GRID, "bench")
    train(first, root)
    for run in others:
        shutil.copytree(Store(root, first.name).path, Store(root, run.name).path)
        write_json(Store(root, run.name).path / "config.json", run.flat())
    times = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        times[name] = time.perf_counter() - began
        return result

    runs = timed("expand", lambda: expand(GRID, "bench"))
    silent = Console(file=io.StringIO())
    timed("list", lambda: listed(Sweep(runs, root), silent))
    sweep = timed("resume", lambda: Sweep(runs, root))
    report(sweep, silent)
    assert len(sweep.of("done")) == len(runs)
    timed("report", lambda: write_report(root))
    return times


def main(rounds: int = 3) -> None:
    """Measure, print, and fail if a bar is not met."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        times = many(Path(folder))
    print("500 finished runs: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items()))
    clock, processor = overhead(rounds)
    print(f"overhead of {RUN.steps:,} steps of PPO: clock {clock:+.1%}, processor {processor:+.1%}")
    met = clock <= LIMIT and sum(times.values()) <= SECONDS
    print("All bars are met." if met else f"Bars: {LIMIT:.0%} by the clock, {SECONDS:.0f} s for 500 runs.")
    if not met:
        raise SystemExit(1)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
