"""A random walk whose true values are known, evaluated with error bars, beside Adam."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from kova_rl import evolution, observation
from kova_rl.lab.evaluation.network import Make
from kova_rl.lab.evaluation.panel import Panel
from kova_rl.lab.evaluation.protocol import STEP, evaluate_one
from kova_rl.lab.evaluation.table import rich_table
from kova_rl.lab.evaluation.tasks import phases
from kova_rl.lab.terminal import NO_FIGURE, say
from kova_rl.optimizer import Kova

__all__ = ["LOOKS", "chain", "critics"]

LOOKS = (10, 100, 1_000)
"""Updates after which the belief of the first critic is drawn."""


def critics() -> dict[str, Make]:
    """The critics that are compared."""
    return {
        "Kova": Kova,
        "Kova, eta 0.01": partial(Kova, evolution=evolution.Leakage(0.01)),
        "Kova, the paper's noise": partial(Kova, observation=observation.BatchSize()),
        "memoryless (released code)": partial(Kova, evolution=evolution.Memoryless(0.01)),
        "Adam 0.01": lambda critic: torch.optim.Adam(critic.parameters(), 0.01),
        "Adam 0.003": lambda critic: torch.optim.Adam(critic.parameters(), 0.003),
        "Adam 0.001": lambda critic: torch.optim.Adam(critic.parameters(), 0.001),
    }


def chain(out: Path, seeds: int, updates: int, console: Console) -> None:
    """Let all critics learn, print the table and save the picture; half-way the rewards turn round."""
    torch.set_num_threads(1)
    made, samples = critics(), STEP * updates
    panel = Panel("chain", "switch", phases("chain", "switch")[-1].linear_floor(), samples // 2)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("learning", total=len(made) * seeds * samples)
        for name, make in made.items():
            progress.update(task, description=name)
            panel.curves[name] = [
                evaluate_one("chain", "switch", make, seed, samples, tick=partial(progress.advance, task))
                for seed in range(seeds)
            ]
    console.print(rich_table(panel))
    try:
        from kova_rl.lab.figures.chain_picture import draw
    except ImportError:
        say(console, NO_FIGURE)
        return
    looks = [look for look in LOOKS if look <= updates]
    beliefs = {look: evaluate_one("chain", "on-policy", Kova, 0, STEP * look) for look in looks}
    draw(out / "chain", panel, beliefs)
    say(console, f"Picture: {out / 'chain.png'}")
