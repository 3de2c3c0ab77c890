"""What a run in the 10x10 maze costs, over the same run with Adam. ``python -m benchmarks.maze``.

The whole loop is timed: environment, exploration, replay, targets, update.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Timing, interleaved
from kova_rl import evolution
from kova_rl.agents import DoubleQ
from kova_rl.lab.mazes.critics import Adam, Critic, Filtered
from kova_rl.lab.mazes.run import make, network

CRITICS: dict[str, tuple[Critic, float | None]] = {
    "Adam": (Adam(1e-3), None),
    "Memoryless (the released code)": (Filtered(evolution=evolution.Memoryless(0.01)), 1.1),
    "Kova, the default": (Filtered(), 4.0),
}
"""Critics, and the ratio to Adam that they may cost."""
PAPER = "the paper: Kova 1.29 x Adam, where a step of Adam took 77 ms (7,710 s for 100,000 steps)"


def measure(rounds: int = 25, steps: int = 200) -> dict[str, Timing]:
    """Seconds for so many steps in the maze, after as many to warm up five times."""
    torch.set_num_threads(1)
    turns: dict[str, Callable[[], object]] = {}
    for name, (critic, _) in CRITICS.items():
        torch.manual_seed(0)
        q = network(100)
        agent = DoubleQ(make("maze10"), q, critic.learner(q, 100_000, 0.95), seed=0)
        turns[name] = partial(agent.learn, steps)
    return interleaved(turns, rounds=rounds, seconds=0.0)


def main() -> None:
    steps = 200
    times = measure(steps=steps)
    table = Table(title="A step in the 10x10 maze, whole loop, one thread", caption=PAPER)
    for heading in ("critic", "ms", "over Adam", "bar", "noise"):
        table.add_column(heading, justify="left" if heading == "critic" else "right")
    for name, timing in times.items():
        bar = CRITICS[name][1]
        ratio = timing.typical / times["Adam"].typical
        shown = (f"{1e3 * timing.typical / steps:.2f}", f"{ratio:.2f}", f"{bar or ''}", f"{timing.noise:.0%}")
        table.add_row(name, *shown)
    Console().print(table)


if __name__ == "__main__":
    main()
