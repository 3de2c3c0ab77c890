"""A critic with dead inputs and dead units, and a million updates of it: ``make stress``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
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


CASES: list[tuple[covariance.Covariance, evolution.Evolution]] = [
    (covariance.Full(), evolution.PriorAnchored(0.01)),
    (covariance.Full(), evolution.DirectionalForgetting(0.01)),
    (covariance.NeuronBlocks(), evolution.Stationary()),
    (covariance.NeuronBlocks(), evolution.PriorAnchored(0.01)),
    (covariance.LowRank(8), evolution.Leakage(0.01)),
    (covariance.Kronecker(), evolution.Leakage(0.01)),
]


def main(
    updates: int = 1_000_000, cases: list[tuple[covariance.Covariance, evolution.Evolution]] = CASES
) -> None:
    torch.set_num_threads(1)
    table = Table(title=f"{updates:,} updates in float32, the target turned round every 100,000")
    for heading in (
        "covariance",
        "evolution",
        "smallest eigenvalue",
        "largest",
        "asymmetry",
        "loss at the end",
    ):
        table.add_column(heading, justify="left" if heading in ("covariance", "evolution") else "right")
    for structure, kind in cases:
        critic = DeadCritic()
        optimizer = Kova(critic, 1.0, structure, kind, observation.BatchSize())
        smallest, largest, asymmetry, start = 1.0, 0.0, 0.0, time.perf_counter()
        label = f"{type(structure).__name__}, {kind}"
        for t in track(range(updates), description=label, console=Console(stderr=True)):
            x, y = critic.batch(16, -1.0 if t // 100_000 % 2 else 1.0)
            info = optimizer.step(partial(critic, x), y)
            if t % 10_000 == 9_999:
                found = extremes(optimizer)
                sound = found.finite and found.smallest > 0.0 and found.largest <= 1.0 + 1e-4
                if not sound or found.asymmetry > 1e-5:
                    raise RuntimeError(f"{label}, after {t + 1} updates: {found}")
                smallest = min(smallest, found.smallest)
                largest = max(largest, found.largest)
                asymmetry = max(asymmetry, found.asymmetry)
        row = (f"{smallest:.3g}", f"{largest:.9g}", f"{asymmetry:.1e}", f"{info.loss:.2g}")
        table.add_row(type(structure).__name__, str(kind), *row)
        Console(stderr=True).print(f"{label}: {time.perf_counter() - start:.0f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
