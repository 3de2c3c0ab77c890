"""What a step costs, as ratios: to Adam, to BLAS, and as the network grows. ``make bench``."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.accuracy import gain_errors
from benchmarks.timing import interleaved
from kova_rl import Kova, covariance, evolution, observation

INPUTS, WIDTH, BATCH = 17, 64, 64
"""The critic of the paper's PPO on HalfCheetah: 17-64-64-1, 5,377 weights."""


@dataclass(frozen=True)
class Bar:
    """A settings under test, and the most that it may cost."""

    name: str
    settings: dict[str, Any]
    limit: float | None


BARS = [
    Bar("Memoryless", {"evolution": evolution.Memoryless(0.01)}, 1.1),
    Bar("LowRank(32), Leakage", {"covariance": covariance.LowRank(32)}, 5.0),
    Bar("LowRank(64), Leakage", {"covariance": covariance.LowRank(64)}, 9.0),
    Bar(
        "NeuronBlocks, PriorAnchored",
        {"covariance": covariance.NeuronBlocks(), "evolution": evolution.PriorAnchored(0.01)},
        6.0,
    ),
    Bar("the default: Kronecker, Leakage, Adaptive", {"observation": None}, None),
    Bar(
        "NeuronBlocks, DirectionalForgetting",
        {"covariance": covariance.NeuronBlocks(), "evolution": evolution.DirectionalForgetting(0.01)},
        None,
    ),
    Bar(
        "Diagonal, PriorAnchored",
        {"covariance": covariance.Diagonal(), "evolution": evolution.PriorAnchored(0.01)},
        None,
    ),
]


def critic(width: int = WIDTH, inputs: int = INPUTS) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)]
    return nn.Sequential(*layers)


def values(module: nn.Module, states: Tensor) -> Tensor:
    out: Tensor = module(states).squeeze(-1)
    return out


def batches(
    count: int = 64, inputs: int = INPUTS, size: int = BATCH, noisy: bool = True
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Random batches in turn: with one batch the innovation would vanish, and denormals are slow.

    States meet other targets each time, which makes these noise; or always the same, which a wide critic
    learns by heart, so that a learned noise goes to its floor.
    """
    torch.manual_seed(1)
    states = itertools.cycle([torch.randn(size, inputs) for _ in range(count)])
    targets = itertools.cycle([torch.randn(size) for _ in range(count + noisy)])
    return lambda: (next(states), next(targets))


def adam_step(width: int = WIDTH, inputs: int = INPUTS, size: int = BATCH) -> Callable[[], object]:
    module, batch = critic(width, inputs), batches(16, inputs, size)
    optimizer = torch.optim.Adam(module.parameters(), 3e-4)

    def run() -> None:
        x, y = batch()
        optimizer.zero_grad()
        nn.functional.mse_loss(values(module, x), y).backward()
        optimizer.step()

    return run


def kova_step(
    width: int = WIDTH, inputs: int = INPUTS, size: int = BATCH, noisy: bool = True, **settings: Any
) -> Callable[[], object]:
    module, batch = critic(width, inputs), batches(16, inputs, size, noisy)
    optimizer = Kova(module, **{"observation": observation.BatchSize(), **settings})

    def run() -> object:
        x, y = batch()
        return optimizer.step(partial(values, module, x), y)

    return run


def against_adam(console: Console) -> bool:
    """A step of each structure over a step of Adam, with its forward and backward."""
    found = interleaved(
        {"Adam": adam_step()} | {bar.name: kova_step(**bar.settings) for bar in BARS}, rounds=25
    )
    floor = found.pop("Adam")
    table = Table(
        title=f"A step on {INPUTS}-{WIDTH}-{WIDTH}-1, N = {BATCH}, over Adam's {1e3 * floor.typical:.2f} ms"
    )
    for heading in ("settings", "ratio", "bar", "noise"):
        table.add_column(heading, justify="left" if heading == "settings" else "right")
    table.add_row("Adam, with forward and backward", "1.00", "", f"{floor.noise:.0%}")
    good = True
    for bar, timing in zip(BARS, found.values(), strict=True):
        ratio = timing.typical / floor.typical
        good &= bar.limit is None or ratio <= bar.limit
        limit = "" if bar.limit is None else f"{bar.limit:g}"
        table.add_row(bar.name, f"{ratio:.2f}", limit, f"{timing.noise:.0%}")
    console.print(table)
    return good


SIZES = [
    (17, 64, 64, 2.0),
    (17, 256, 64, None),
    (17, 256, 256, 3.0),
    (376, 400, 256, 3.0),
    (17, 2_048, 64, None),
]
"""Inputs, width and batch of Kronecker's critics, and the most that a step may cost over Adam's."""
GROWTH = 2.0
"""How much larger Kronecker's ratio may be at 2,048 units than at 64."""


def kronecker(console: Console) -> bool:
    """A step of the default over a step of Adam, from narrow critics to wide ones.

    Beside it, where targets have no noise: then nothing but float64, or the roots of P, is exact enough; and
    with a fan-in prior.
    """
    table = Table(title="A step of Kronecker, with learned noise, over Adam's")
    for heading in (
        "critic",
        "N",
        "Adam, ms",
        "the default",
        "bar",
        "exact targets",
        "fan-in prior",
        "noise",
    ):
        table.add_column(heading, justify="left" if heading == "critic" else "right")
    fan_in = covariance.Kronecker(covariance.FanIn())
    ratios, good = {}, True
    for inputs, width, size, limit in SIZES:
        steps = {
            "Adam": adam_step(width, inputs, size),
            "default": kova_step(width, inputs, size, observation=None),
            "exact": kova_step(width, inputs, size, noisy=False, observation=None),
            "fan-in": kova_step(width, inputs, size, observation=None, covariance=fan_in),
        }
        found = interleaved(steps, rounds=15, seconds=0.1, warm=16)
        adam = found["Adam"].typical
        ratio = ratios[width, size] = found["default"].typical / adam
        good &= limit is None or ratio <= limit
        cells = (f"{1e3 * adam:.2f}", f"{ratio:.2f}", "" if limit is None else f"{limit:g}")
        others = [f"{found[name].typical / adam:.2f}" for name in ("exact", "fan-in")]
        table.add_row(
            f"{inputs}-{width}-{width}-1", str(size), *cells, *others, f"{found['default'].noise:.0%}"
        )
    growth = ratios[2_048, 64] / ratios[64, 64]
    table.caption = f"the ratio grows by {growth:.2f} from 64 to 2,048 units, bar {GROWTH:g}"
    console.print(table)
    return good and growth <= GROWTH


def against_blas(console: Console) -> bool:
    """A step of Full over its two unavoidable BLAS calls."""
    d = sum(p.numel() for p in critic().parameters())
    P, H, PH = torch.eye(d), torch.randn(d, BATCH) * 0.01, torch.empty(d, BATCH)

    def blas() -> None:
        torch.mm(P, H, out=PH)
        P.addmm_(H, H.T, beta=0.99, alpha=-1e-6)

    kinds = [evolution.PriorAnchored(0.01), evolution.DirectionalForgetting(0.01), evolution.Stationary()]
    steps = {str(kind): kova_step(covariance=covariance.Full(), evolution=kind) for kind in kinds}
    found = interleaved({"two BLAS calls": blas} | steps, rounds=9, warm=2)
    floor = found.pop("two BLAS calls")
    table = Table(title=f"A step of Full, d = {d:,}, over its two BLAS calls, {1e3 * floor.typical:.0f} ms")
    for heading in ("evolution", "ratio", "bar", "noise"):
        table.add_column(heading, justify="left" if heading == "evolution" else "right")
    ratios = {name: timing.typical / floor.typical for name, timing in found.items()}
    for name, ratio in ratios.items():
        table.add_row(name, f"{ratio:.2f}", "1.25", f"{found[name].noise:.0%}")
    console.print(table)
    return max(ratios.values()) <= 1.25


def measure_width(width: int) -> None:
    """In a process of its own: time and peak memory of LowRank(32) at one width, as JSON."""
    torch.set_num_threads(1)
    kova_step(8)()  # so that what the libraries allocate for themselves is not counted
    module, batch = critic(width), batches()
    values(module, batch()[0])
    before = _memory("VmRSS")
    optimizer = Kova(
        module, covariance=covariance.LowRank(32, covariance.FanIn(1.0)), observation=observation.BatchSize()
    )

    def run() -> object:
        x, y = batch()
        return optimizer.step(partial(values, module, x), y)

    run()
    run()
    peak = _memory("VmHWM") - before
    timing = interleaved({"step": run}, rounds=7, seconds=0.1, warm=1)["step"]
    print(json.dumps({"seconds": timing.best, "peak": peak}))


def _memory(field: str) -> int:
    """Bytes of this process, from the kernel's account."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


def _slope(points: list[tuple[int, float]]) -> float:
    """Least-squares slope of log y against log x."""
    x = torch.tensor([math.log(a) for a, _ in points], dtype=torch.float64)
    y = torch.tensor([math.log(b) for _, b in points], dtype=torch.float64)
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def as_the_network_grows(console: Console) -> bool:
    """Time and memory of LowRank(32) from a thousand to a million weights."""
    table = Table(title=f"LowRank(32) as the network grows, N = {BATCH}")
    for heading in ("weights", "ms a step", "peak memory, MB", "over W and H"):
        table.add_column(heading, justify="right")
    points = []
    for width in (23, 64, 217, 716, 992):
        code = f"from benchmarks.speed import measure_width; measure_width({width})"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        d = sum(p.numel() for p in critic(width).parameters())
        size = 4 * d * (32 + BATCH)
        points.append((d, found["seconds"], found["peak"], found["peak"] / size))
        table.add_row(
            f"{d:,}", f"{1e3 * points[-1][1]:.1f}", f"{points[-1][2] / 1e6:.0f}", f"{points[-1][3]:.2f}"
        )
    slope = _slope([(d, seconds) for d, seconds, _, _ in points])
    large = [point for point in points if point[0] > 50_000]  # below, a megabyte here or there is all of it
    memory = _slope([(d, peak) for d, _, peak, _ in large])
    over = points[-1][3]
    table.caption = (
        f"log-log slope of time {slope:.2f}, of memory {memory:.2f} from {large[0][0]:,} weights on, "
        "bar 1.15; "
        f"peak over W and H at a million weights {over:.2f} (bar 1.5)"
    )
    console.print(table)
    return slope <= 1.15 and memory <= 1.15 and over <= 1.5


def against_the_exact_filter(console: Console) -> None:
    """How far LowRank's update is from the exact filter's, on recorded batches of policy evaluation."""
    table = Table(title="LowRank against the exact filter: median relative error of the update")
    table.add_column("noise")
    ranks = (16, 32, 64, 128)
    for rank in ranks:
        table.add_column(f"rank {rank}", justify="right")
    noises = {"BatchSize, Leakage(0.01)": (observation.BatchSize(), 0.01)}
    noises |= {"Adaptive, Leakage(0.001)": (observation.Adaptive(), 0.001)}  # type: ignore[dict-item]
    for name, (noise, eta) in noises.items():
        for how, errors in gain_errors(noise, eta, ranks).items():
            table.add_row(f"{name}, {how}", *(f"{error:.2g}" for error in errors))
    console.print(table)


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "a step of .* will cost about")  # which is what is measured here
    console = Console()
    good = [against_adam(console), kronecker(console), against_blas(console), as_the_network_grows(console)]
    against_the_exact_filter(console)
    console.print("All bars are met." if all(good) else "[bold red]A bar is missed.[/]")


if __name__ == "__main__":
    main()
