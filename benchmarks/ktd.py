"""What a step of KTD costs, over its Cholesky factor and its forward passes. ``python -m benchmarks.ktd``."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.timing import interleaved
from kova_rl import evolution
from kova_rl.baselines import KTD

CELLS, WIDTH, ACTIONS = 16, 16, 4
"""The paper's 4x4 maze: a Q-network 16-16-4, 340 weights."""

BAR = 3.0
"""The most that a step may cost, over the factor and the forward passes."""

EVOLUTIONS = [
    evolution.FadingMemory(0.01 / 1.01, on_windup="reset"),
    evolution.PriorAnchored(0.01),
    evolution.DirectionalForgetting(0.01),
    evolution.Stationary(),
    evolution.Leakage(0.01),
]


def network(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(CELLS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS)).to(dtype)


def ktd_step(kind: evolution.Evolution, dtype: torch.dtype) -> Callable[[], object]:
    """Steps of a random walk over the cells."""
    ktd = KTD(network(dtype), evolution=kind)
    torch.manual_seed(1)
    cells, rewards = torch.eye(CELLS, dtype=dtype), torch.randn(64).tolist()
    pairs = itertools.cycle(zip(torch.randint(CELLS, (64, 3)).tolist(), rewards, strict=True))

    def run() -> object:
        (here, there, action), reward = next(pairs)
        return ktd.step(cells[here], reward, cells[there], False, action % ACTIONS)

    return run


def parts(dtype: torch.dtype) -> tuple[dict[str, Callable[[], object]], Callable[[], object]]:
    """The factor and the batched forward that every step needs; and the forward passes one by one."""
    ktd = KTD(network(dtype), dtype=dtype)
    states = torch.eye(CELLS, dtype=dtype)[:2].clone()
    P = ktd.covariance + 0.01
    points = ktd._points(torch.linalg.cholesky(P))
    module = network(dtype)
    rows: list[Tensor] = list(points)

    @torch.no_grad()
    def one_by_one() -> None:
        for row in rows:
            nn.utils.vector_to_parameters(row, module.parameters())
            for state in states:
                module(state)

    @torch.no_grad()
    def forward() -> Tensor:
        return ktd._network(points, states)

    return {"factor": lambda: torch.linalg.cholesky(P), "forward": forward}, one_by_one


def measure(console: Console, dtype: torch.dtype) -> bool:
    """A table of one dtype; whether its first row, the paper's evolution, meets the bar."""
    needed, one_by_one = parts(dtype)
    steps = {str(kind): ktd_step(kind, dtype) for kind in EVOLUTIONS}
    found = interleaved({**needed, **steps}, rounds=25)
    naive = interleaved({"one by one": one_by_one}, rounds=5, warm=1)["one by one"].typical
    factor, forward = (found.pop(name).typical for name in ("factor", "forward"))
    floor = factor + forward
    d = sum(p.numel() for p in network(dtype).parameters())
    table = Table(
        title=f"A step of KTD, d = {d}, {dtype}, over its Cholesky factor ({1e3 * factor:.2f} ms) and its "
        f"batched forward of {2 * (2 * d + 1):,} passes ({1e3 * forward:.2f} ms)"
    )
    for heading in ("evolution", "ms", "ratio", "bar", "noise"):
        table.add_column(heading, justify="left" if heading == "evolution" else "right")
    good = True
    for name, timing in found.items():
        ratio = timing.typical / floor
        bar = None if name.startswith("Leakage") else BAR  # it inverts P
        good &= bar is None or ratio <= bar
        shown = "" if bar is None else f"{bar:g}"
        table.add_row(name, f"{1e3 * timing.typical:.2f}", f"{ratio:.2f}", shown, f"{timing.noise:.0%}")
    first = next(iter(found.values())).typical
    table.caption = (
        f"The same passes one by one, without the rest of the step: {1e3 * naive:.0f} ms, "
        f"{naive / first:.0f} x the whole step."
    )
    console.print(table)
    return good


def main() -> None:
    torch.set_num_threads(1)
    console = Console()
    good = [measure(console, dtype) for dtype in (torch.float32, torch.float64)]
    console.print("The bar is met." if all(good) else "[bold red]The bar is missed.[/]")


if __name__ == "__main__":
    main()
