"""A critic with dead inputs and dead units, and a million updates of it: ``make stress``.

``python -m benchmarks.stress 100000`` makes fewer. Cases are made at once, one a processor.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from kova_rl import Kova, covariance, evolution, observation

INPUTS, DEAD, WIDTH = 4, 2, 12


class DeadCritic(nn.Module):
    """A ReLU network of which some inputs are always 0 and some units never fire.

    Nothing ever excites their weights, which is where an unbounded covariance winds up.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, 1)
        with torch.no_grad():
            self.first.bias[: WIDTH // 4] = -100.0
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.first(states))).squeeze(-1)
        return out

    def batch(self, size: int, sign: float = 1.0) -> tuple[Tensor, Tensor]:
        """States, the last of whose inputs are dead, and targets that ``sign`` turns round."""
        like = self.first.weight
        states = torch.randn(size, INPUTS, generator=self.generator)
        states[:, INPUTS - DEAD :] = 0.0
        targets = sign * (states[:, 0].abs() - states[:, 1])
        return states.to(like), targets.to(like)


@dataclass(frozen=True)
class Extremes:
    """What became of a covariance, in units of the prior's variance."""

    finite: bool
    asymmetry: float
    """Largest entry of ``P - P'``, relative to the deviations of its row and column."""
    smallest: float
    """Smallest eigenvalue."""
    largest: float
    """Largest eigenvalue."""


def extremes(optimizer: Kova) -> Extremes:
    """Look at all of P, as it is stored."""
    (memory,) = optimizer.state.values()
    state = memory["covariance"]
    if "factor" in state:
        v, W = state["diagonal"].double(), state["factor"].double()
        if not bool(torch.isfinite(W).all() and torch.isfinite(v).all()):
            return Extremes(False, float("nan"), float("nan"), float("nan"))
        information = torch.linalg.eigvalsh(v.diag() + W @ W.T)
        if information[0] > 1e-9 * information[-1]:  # below, its own rounding would show
            return Extremes(True, 0.0, float(1 / information[-1]), float(1 / information[0]))
        return Extremes(True, 0.0, float(1 / information[-1]), float(1 / v.min()))  # P <= diag(1/v)
    if "layers" in state:
        return _of_products(list(state["layers"].values()))
    if "variance" in state:
        blocks = [state["variance"].double().diag()]
    else:
        blocks = [block.double() for key, run in state.items() if not key.startswith("root") for block in run]
    roots = [root.double() for key, run in state.items() if key.startswith("root") for root in run]
    if not all(bool(torch.isfinite(block).all()) for block in blocks + roots):
        return Extremes(False, float("nan"), float("nan"), float("nan"))
    # As correlations: what is lost in a small variance is not hidden behind a large one.
    deviations = [block.diagonal().clamp(min=torch.finfo(block.dtype).tiny).sqrt() for block in blocks]
    scaled = [block / (s * s[:, None]) for block, s in zip(blocks, deviations, strict=True)]
    asymmetry = max((float((block - block.T).abs().max()) for block in scaled), default=0.0)
    values = [torch.linalg.eigvalsh(block) for block in blocks]
    values += [torch.linalg.svdvals(root).square() for root in roots]  # of P = L L'
    return Extremes(True, asymmetry, float(torch.cat(values).min()), float(torch.cat(values).max()))


def _of_products(layers: list[dict[str, Tensor]]) -> Extremes:
    """Of Kronecker products, which are kept as roots of the inverses of their factors."""
    roots = [(layer["inputs root"].double(), layer["outputs root"].double()) for layer in layers]
    if not all(bool(torch.isfinite(root).all()) for pair in roots for root in pair):
        return Extremes(False, float("nan"), float("nan"), float("nan"))
    values = [[1 / torch.linalg.svdvals(root).square() for root in pair] for pair in roots]
    smallest = min(float(a.min() * b.min()) for a, b in values)
    return Extremes(True, 0.0, smallest, max(float(a.max() * b.max()) for a, b in values))


Case = tuple[covariance.Covariance, evolution.Evolution]

CASES: list[Case] = [
    (covariance.Full(), evolution.DirectionalForgetting(0.01)),
    (covariance.LowRank(8), evolution.Leakage(0.01)),
    (covariance.NeuronBlocks(), evolution.PriorAnchored(0.01)),
    (covariance.Kronecker(), evolution.Leakage(0.01)),
    (covariance.NeuronBlocks(), evolution.Stationary()),
    (covariance.Full(), evolution.PriorAnchored(0.01)),
]
"""Those that take longest come first, so that no processor waits for one of them at the end."""

LOOK = 10_000
"""Updates between two looks at the covariance."""


def endure(case: Case, updates: int, looked: Callable[[int], object]) -> tuple[str, ...]:
    """A row of the table; ``looked`` is told of the updates that went well since it was told before.

    Raises:
        RuntimeError: The covariance is not finite, not positive definite, not symmetric or above its prior.
    """
    torch.set_num_threads(1)
    structure, kind = case
    critic = DeadCritic()
    optimizer = Kova(critic, 1.0, structure, kind, observation.BatchSize())
    smallest, largest, asymmetry, start = 1.0, 0.0, 0.0, time.process_time()
    for t in range(updates):
        x, y = critic.batch(16, -1.0 if t // 100_000 % 2 else 1.0)
        info = optimizer.step(partial(critic, x), y)
        if t % LOOK == LOOK - 1 or t == updates - 1:
            found = extremes(optimizer)
            sound = found.finite and found.smallest > 0.0 and found.largest <= 1.0 + 1e-4
            if not sound or found.asymmetry > 1e-5:
                raise RuntimeError(f"{type(structure).__name__}, {kind}, after {t + 1} updates: {found}")
            smallest = min(smallest, found.smallest)
            largest = max(largest, found.largest)
            asymmetry = max(asymmetry, found.asymmetry)
            looked(t % LOOK + 1)
    seconds = time.process_time() - start
    numbers = f"{smallest:.3g}", f"{largest:.9g}", f"{asymmetry:.1e}", f"{info.loss:.2g}", f"{seconds:.0f}"
    eta = f"({kind.eta})" if hasattr(kind, "eta") else ""
    return type(structure).__name__, type(kind).__name__ + eta, *numbers


def main(updates: int = 1_000_000, cases: list[Case] = CASES, jobs: int | None = None) -> None:
    """Make all cases, ``jobs`` at once (one a processor if None), and print what became of each."""
    table = Table(title=f"{updates:,} updates in float32, the target turned round every 100,000")
    headings = (
        "covariance",
        "evolution",
        "smallest eigenvalue",
        "largest",
        "asymmetry",
        "loss at the end",
        "s",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("covariance", "evolution") else "right")
    context = multiprocessing.get_context("spawn")
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(jobs or os.cpu_count(), context) as pool,
        Progress(*Progress.get_default_columns(), console=Console(stderr=True)) as progress,
    ):
        done = manager.Queue()
        rows = [pool.submit(endure, case, updates, done.put) for case in cases]
        bar = progress.add_task("updates", total=updates * len(cases))
        running = set(rows)
        while running:
            ended, running = wait(running, timeout=1.0)
            for row in ended:
                if (error := row.exception()) is not None:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise error
            while not done.empty():
                progress.advance(bar, done.get())
    for row in rows:
        table.add_row(*row.result())
    Console().print(table)


if __name__ == "__main__":
    main(int(sys.argv[1])) if len(sys.argv) > 1 else main()
