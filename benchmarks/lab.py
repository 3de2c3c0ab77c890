"""What the lab's bookkeeping costs beside a bare ``learn``, and how fast 500 finished runs are read."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

from kova_rl.lab.training.config import RunConfig
from kova_rl.lab.training.grid import expand
from kova_rl.lab.training.live import report
from kova_rl.lab.training.run import open_session, train
from kova_rl.lab.training.store import Store, stored, write_json
from kova_rl.lab.training.sweep import Sweep

LIMIT = 0.03
"""Of the time of a bare run."""
SECONDS = 10.0
"""For 500 finished runs."""
RUN = RunConfig("ppo", "Pendulum-v1", critic="adam", steps=40_960)
"""Episodes of one length, so that both runs do the same work; Adam, the cheapest critic, is the strictest."""


def bare() -> None:
    """The same model and environments, and the host's ``learn``."""
    session = open_session(RUN)
    session.model.learn(RUN.steps)
    session.close()


def kept() -> None:
    """The run with its log, checkpoints and summary."""
    with tempfile.TemporaryDirectory() as folder:
        train(RUN, Path(folder))


def timed(call: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the clock, and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - processor


def overhead(rounds: int) -> tuple[float, float]:
    """The lab's time over the bare one's, less 1, median of the rounds: by the clock and the processor."""
    ratios = []
    for number in range(rounds):
        order = (bare, kept) if number % 2 else (kept, bare)
        times = {call: timed(call) for call in order}
        ratios.append([a / b - 1 for a, b in zip(times[kept], times[bare], strict=True)])
        print(f"  round {number + 1}: clock {ratios[-1][0]:+.1%}, processor {ratios[-1][1]:+.1%}", flush=True)
    return median(ratio[0] for ratio in ratios), median(ratio[1] for ratio in ratios)


def many(root: Path, count: int = 500) -> dict[str, float]:
    """Seconds to expand, list, resume and report so many finished runs."""
    sweep = {"algorithm": "ppo", "environment": "Pendulum-v1", "critic": "kova", "seed": list(range(count))}
    first, *others = expand({**sweep, "steps": 64, "host": {"n_steps": 32, "batch_size": 32}}, "bench")
    train(first, root)
    for run in others:
        shutil.copytree(Store(root, first).path, Store(root, run).path)
        write_json(Store(root, run).path / "config.json", run.flat())
    began = time.perf_counter()
    runs = expand({**sweep, "steps": 64, "host": {"n_steps": 32, "batch_size": 32}}, "bench")
    expanded = time.perf_counter()
    assert len(stored(root)) == count
    listed = time.perf_counter()
    resumed = Sweep(runs, root)
    report(resumed, Console(file=io.StringIO()))
    assert len(resumed.of("done")) == count
    return {"expand": expanded - began, "list": listed - expanded, "resume": time.perf_counter() - listed}


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
