"""A random walk whose true values are known, evaluated with error bars, beside Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from kova_rl import evolution, observation
from kova_rl.lab.terminal import say
from kova_rl.optimizer import Kova
from kova_rl.posterior import Belief, calibration
from kova_rl.targets import one_step

STATES, INPUTS, GAMMA, BATCH = 30, 12, 0.98, 32
LOOKS = (10, 100, 1_000)
"""Updates after which the belief is drawn."""


def values(critic: nn.Module, features: Tensor) -> Tensor:
    """V of each state, of shape (N,)."""
    out: Tensor = critic(features).squeeze(-1)
    return out


class Chain:
    """A random walk on 30 states that ends beyond either end: reward -1 on the left, +1 on the right.

    Episodes begin in the middle, so that the ends are seen late. ``sign`` turns the rewards round.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        place = torch.linspace(-1.0, 1.0, STATES)
        centres = torch.linspace(-1.0, 1.0, INPUTS)
        self.features = torch.exp(-0.5 * ((place[:, None] - centres) / 0.15).square())
        step = 0.5 * (torch.diag(torch.ones(STATES - 1), 1) + torch.diag(torch.ones(STATES - 1), -1))
        reward = torch.zeros(STATES)
        reward[0], reward[-1] = -0.5, 0.5
        self.truth: Tensor = torch.linalg.solve(torch.eye(STATES) - GAMMA * step, reward)
        self._seen, self._count = torch.empty(1024, 2, dtype=torch.int64), 0
        self._state = STATES // 2

    def walk(self, steps: int) -> None:
        """Go on walking, and remember what was seen."""
        moves = torch.randint(0, 2, (steps,), generator=self.generator).mul(2).sub(1).tolist()
        walked = []
        for move in moves:
            after = self._state + move
            walked.append((self._state, after))
            self._state = after if 0 <= after < STATES else STATES // 2
        while self._count + steps > len(self._seen):
            self._seen = torch.cat([self._seen, torch.empty_like(self._seen)])
        self._seen[self._count : self._count + steps] = torch.tensor(walked)
        self._count += steps

    def batch(self, critic: nn.Module, sign: float) -> tuple[Tensor, Tensor]:
        """States that were seen, drawn at random, and their one-step targets."""
        chosen = torch.randint(0, self._count, (BATCH,), generator=self.generator)
        before, after = self._seen[chosen].T
        over = (after < 0) | (after >= STATES)
        rewards = sign * torch.where(over, after.clamp(-1, 1).to(torch.float32), 0.0)
        with torch.no_grad():
            following = values(critic, self.features[after.clamp(0, STATES - 1)])
        return self.features[before], one_step(rewards, following, over, GAMMA)


@dataclass
class Result:
    """What became of one critic, with one seed."""

    name: str
    errors: list[float] = field(default_factory=list)
    """Root mean square error of the values, after each update."""
    beliefs: dict[int, Belief] = field(default_factory=dict)
    """What the critic believed of all states, at each look; tracked critics only."""


Make = Callable[[nn.Module], torch.optim.Optimizer]


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


def train(name: str, make: Make, seed: int, updates: int, tick: Callable[[], None]) -> Result:
    """Learn the chain; after two thirds of the updates the rewards change sign."""
    torch.manual_seed(seed)
    critic = nn.Sequential(nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 1))
    chain, result, optimizer = Chain(seed), Result(name), make(critic)
    for t in range(updates):
        sign = 1.0 if t < 2 * updates // 3 else -1.0
        chain.walk(BATCH)
        x, y = chain.batch(critic, sign)
        if isinstance(optimizer, Kova):
            optimizer.step(partial(values, critic, x), y)
        else:
            optimizer.zero_grad()
            nn.functional.mse_loss(values(critic, x), y).backward()
            optimizer.step()
        with torch.no_grad():
            error = values(critic, chain.features) - sign * chain.truth
        result.errors.append(float(error.square().mean().sqrt()))
        if t + 1 in LOOKS and isinstance(optimizer, Kova):
            belief = optimizer.posterior(partial(values, critic, chain.features))
            if belief.tracked:
                result.beliefs[t + 1] = belief
        tick()
    return result


def run(out: Path, seeds: int, updates: int, console: Console) -> None:
    """Train all critics, print the table and save the picture."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    made, results = critics(), []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("learning", total=len(made) * seeds * updates)
        for name, make in made.items():
            progress.update(task, description=name)
            runs = [train(name, make, seed, updates, lambda: progress.advance(task)) for seed in range(seeds)]
            results.append(runs)
    console.print(table([mean(runs) for runs in results], updates, seeds))
    truth = Chain(0).truth
    for runs in results:
        pairs = [(belief, truth) for run in runs for belief in run.beliefs.values()]
        if pairs:
            say(console, f"Error bars of {runs[0].name}: {calibration(pairs)}")
    path = out / "chain.png"
    try:
        from kova_rl.lab.chain_figure import draw
    except ImportError:
        say(console, "No picture without matplotlib: pip install 'kova-rl[plots]'")
        return
    draw(path, [mean(runs) for runs in results], truth, updates)
    say(console, f"Picture: {path}")


def mean(runs: list[Result]) -> Result:
    """Errors averaged over the seeds and the last 25 updates; the beliefs of the first seed."""
    errors = torch.tensor([run.errors for run in runs], dtype=torch.float64).mean(0)
    total = torch.cat([torch.zeros(1), errors.cumsum(0)])
    at = torch.arange(1, len(errors) + 1)
    start = (at - 25).clamp(min=0)
    return Result(runs[0].name, ((total[at] - total[start]) / (at - start)).tolist(), runs[0].beliefs)


def table(results: list[Result], updates: int, seeds: int) -> Table:
    """Errors at a few updates, the best in each column in bold."""
    switch = 2 * updates // 3
    points = {f"{at:,}": at for at in (switch // 10, switch // 2, switch)}
    points |= {f"+{at:,}": switch + at for at in (switch // 10, updates - switch)}
    out = Table(
        title=f"Value error (RMS) on a chain of {STATES} states, mean of {seeds} seeds",
        caption=f"by update; at {switch:,} the rewards turn round, and columns with a + count from there",
    )
    out.add_column("critic", no_wrap=True)
    columns = []
    for heading, at in points.items():
        out.add_column(heading, justify="right")
        columns.append([result.errors[at - 1] for result in results])
    for i, result in enumerate(results):
        cells = [f"[bold]{c[i]:.3f}[/]" if c[i] == min(c) else f"{c[i]:.3f}" for c in columns]
        out.add_row(result.name, *cells)
    return out
