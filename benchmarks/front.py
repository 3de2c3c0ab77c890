"""How close to the exact filter, and at what price: every structure on the same recorded batches.

``python -m benchmarks.front`` draws ``docs/_static/kronecker.png``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import gymnasium
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.chain import INPUTS, Chain, values
from benchmarks.speed import adam_step, kova_step
from benchmarks.timing import interleaved
from kova_rl import Kova, covariance, evolution, observation
from kova_rl.filter.change import Change, Leak
from kova_rl.filter.covariance import kronecker
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evidence import DenseJacobian, Evidence, Factors, Noise
from kova_rl.filter.layout import Segment
from kova_rl.filter.step import State, Update, cholesky

PICTURE = Path(__file__).parents[1] / "docs" / "_static" / "kronecker.png"
SETTLED = 60
"""Batches before the errors are counted."""


@dataclass(frozen=True)
class Recorded(DenseJacobian):
    """A Jacobian as a matrix that knows its factors too."""

    layers: list[Factors]

    def factors(self) -> list[Factors]:
        return self.layers


class Batch(NamedTuple):
    jacobian: Recorded
    innovation: Tensor
    variance: Tensor


class Stream(NamedTuple):
    name: str
    eta: float
    segments: tuple[Segment, ...]
    batches: list[Batch]


Draw = Callable[[], tuple[Tensor, Tensor]]


def network(inputs: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)]
    return nn.Sequential(*layers).double()


def record(
    name: str, critic: nn.Sequential, draw: Draw, eta: float, count: int, prior: Prior = 1.0
) -> Stream:
    """What a filter that learns from ``draw`` is fed with, in float64."""
    noise = observation.Adaptive()
    optimizer = Kova(critic, 1.0, covariance.LowRank(64, prior), evolution.Leakage(eta), noise)
    (memory,) = optimizer.state.values()
    batches = []
    for _ in range(count):
        x, y = draw()
        predict = partial(values, critic, x)
        with torch.no_grad():
            predictions, jacobian = optimizer._tracker.jacobian(predict, torch.float64)
        innovation = y - predictions
        variance = noise.covariance(memory["observation"], innovation, {}).clone()
        layers = jacobian.factors()
        assert layers is not None
        batches.append(Batch(Recorded(jacobian.dense(), layers), innovation, variance))
        optimizer.step(predict, y)
    return Stream(name, eta, optimizer._tracker.parameters.segments, batches)


def evaluation(count: int = 180) -> Stream:
    """Policy evaluation on the demo's chain by a 12-32-32-1 critic."""
    critic, chain = network(INPUTS, 32), Chain(0)

    def draw() -> tuple[Tensor, Tensor]:
        chain.walk(32)
        return chain.batch(critic)

    return record("policy evaluation", critic, draw, 0.001, count)


def rollouts(count: int = 180) -> Stream:
    """Rollouts of Pendulum-v1, three passes in batches of 64, as PPO's critic sees them; 3-24-24-1."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        env = gymnasium.make("Pendulum-v1")
        env.action_space.seed(0)
        state, _ = env.reset(seed=0)
        while True:
            states, rewards, ends = [], [], []
            for _ in range(1_024):
                states.append(torch.as_tensor(state).double())
                state, reward, _, truncated, _ = env.step(env.action_space.sample())
                rewards.append(float(reward) / 10)
                ends.append(truncated)
                if truncated:
                    state, _ = env.reset()
            returns = [0.0]
            for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
                returns.append(reward + (0.0 if end else 0.95 * returns[-1]))
            x = torch.stack(states) / torch.tensor([1.0, 1.0, 8.0])
            y = torch.tensor(returns[:0:-1]).double()
            for _ in range(3):
                for rows in torch.randperm(len(x)).split(64):
                    yield x[rows], y[rows]

    return record("rollouts", network(3, 24), partial(next, batches()), 0.003, count, covariance.FanIn())


Found = list[tuple[Tensor, Tensor]]
"""Updates, and the standard deviations that were predicted."""


def exact(stream: Stream) -> Found:
    """The dense filter, in float64."""
    information = torch.eye(stream.segments[-1].stop, dtype=torch.float64)
    found = []
    for (matrix, _), innovation, variance in ((_parts(b), b.innovation, b.variance) for b in stream.batches):
        information.mul_(1 - stream.eta).diagonal().add_(stream.eta)
        lower = torch.linalg.cholesky(information)
        X = torch.linalg.solve_triangular(lower, matrix, upper=False)
        z = torch.linalg.solve(X.T @ X + variance.diag(), innovation)
        update = torch.linalg.solve_triangular(lower.T, (X @ z)[:, None], upper=True)[:, 0]
        found.append((update, X.square().sum(0).sqrt()))
        information.addmm_(matrix / variance, matrix.T)
    return found


def _parts(batch: Batch) -> tuple[Tensor, list[Factors]]:
    return batch.jacobian.matrix, batch.jacobian.layers


def fed(structure: covariance.Covariance, stream: Stream) -> Found:
    state, found = structure.init(stream.segments, stream.batches[0].innovation, Leak), []
    for t, (jacobian, innovation, variance) in enumerate(stream.batches):
        evidence = Evidence(jacobian, innovation, Noise(variance), t)
        update = structure.step(state, Leak(stream.eta), evidence, 1.0)
        found.append((update.delta, update.predicted_variance().clamp(min=0.0).sqrt()))
        update.commit()
    return found


def errors(found: Found, truth: Found) -> tuple[float, float]:
    """Median relative error of the update, and of the std in its logarithm."""
    pairs = list(zip(found, truth, strict=True))[SETTLED:]
    updates = torch.stack([(a - b).norm() / b.norm() for (a, _), (b, _) in pairs])
    stds = torch.stack([(a / b).log().abs().median() for (_, a), (_, b) in pairs])
    return float(updates.median()), float(stds.median())


@dataclass(frozen=True)
class Diagonalised(covariance.Kronecker):
    """``(I + B x A / t)^-1`` itself, in the eigenbases of A and B; naive, with a matrix of d rows."""

    def step(self, state: State, change: Change, evidence: Evidence, lr: float) -> Update:
        assert isinstance(change, Leak)
        keep = 1 - change.eta
        factors = evidence.jacobian.factors()
        assert factors is not None
        layers = list(state["layers"].values())
        parts = []
        for layer, (_, a, b) in zip(layers, factors, strict=True):
            kernel = layer.get("kernel", a.new_ones(b.shape[1], a.shape[1]))
            U, V = layer["inputs root"], layer["outputs root"]
            half = (b @ V)[:, :, None] * (a @ U)[:, None, :] * kernel.sqrt()
            parts.append((half.flatten(1), U, V, kernel))
        S = evidence.noise.added_to(sum(half @ half.T for half, *_ in parts))
        lower, jitter = cholesky(S, evidence)
        z = torch.cholesky_solve(evidence.innovation[:, None], lower)[:, 0]
        moved = [(V @ ((half.T @ z).view_as(K) * K.sqrt()) @ U.T).flatten() for half, U, V, K in parts]
        batch = kronecker._Batch([(a, b) for _, a, b in factors], evidence, lr)

        def commit() -> None:
            state["age"] += 1
            for k, layer in enumerate(layers):
                batch.add_to(layer, k, keep)
                if state["age"] % self.refresh == 0 or state["age"] < self.refresh:
                    alpha, layer["inputs root"] = torch.linalg.eigh(layer["inputs"])
                    beta, layer["outputs root"] = torch.linalg.eigh(layer["outputs"])
                    layer["kernel"] = 1 / (1 + beta.clamp(min=0)[:, None] * alpha.clamp(min=0) / beta.sum())

        nis = float(evidence.innovation.dot(z)) / len(z)
        return Update(torch.cat(moved), nis, lambda: evidence.noise.taken_from(S), commit, jitter)


@contextmanager
def plainly_damped() -> Iterator[None]:
    """The textbook's product: ``c = 1``, balanced by the mean of the diagonals."""
    with (
        mock.patch.object(kronecker, "DAMPED", 1.0),
        mock.patch.object(kronecker, "_rebalance", return_value=1.0),
    ):
        yield


KINDS: dict[str, covariance.Covariance] = {
    "Kronecker": covariance.Kronecker(),
    "Kronecker, plainly damped": covariance.Kronecker(),
    "Kronecker, diagonalised": Diagonalised(),
    **{f"LowRank({rank})": covariance.LowRank(rank) for rank in (8, 16, 32, 64, 128)},
    "NeuronBlocks": covariance.NeuronBlocks(),
    "Diagonal": covariance.Diagonal(),
}


def _as_named(name: str) -> object:
    return plainly_damped() if "plainly" in name else nullcontext()


def prices() -> dict[str, float]:
    """A step on 17-64-64-1, N = 64, over Adam's."""
    steps = {
        name: kova_step(covariance=kind, observation=observation.Adaptive()) for name, kind in KINDS.items()
    }
    found = interleaved({"Adam": adam_step()} | steps, rounds=15, warm=12)
    floor = found.pop("Adam").typical
    return {name: timing.typical / floor for name, timing in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    streams = [evaluation(), rollouts()]
    price, console = prices(), Console()
    marks: dict[str, dict[str, tuple[float, float]]] = {}
    table = Table(
        title="Median error against the exact filter: of the update, and of the logarithm of the std"
    )
    for heading in (
        "structure",
        "step over Adam's",
        *(f"{s.name}: {e}" for s in streams for e in ("update", "std")),
    ):
        table.add_column(heading, justify="left" if heading == "structure" else "right")
    truths = [exact(stream) for stream in streams]
    for name, kind in KINDS.items():
        with _as_named(name):  # type: ignore[attr-defined]
            marks[name] = {
                stream.name: errors(fed(kind, stream), truth)
                for stream, truth in zip(streams, truths, strict=True)
            }
        cells = [f"{error:.2f}" for pair in marks[name].values() for error in pair]
        table.add_row(name, f"{price[name]:.1f}", *cells)
    console.print(table)
    draw(price, marks, PICTURE)


LOOKS = {
    "Kronecker": ("D", "#0072b2"),
    "Kronecker, plainly damped": ("s", "#56b4e9"),
    "Kronecker, diagonalised": ("^", "#009e73"),
    "NeuronBlocks": ("P", "#d55e00"),
    "Diagonal": ("X", "#cc79a7"),
}
"""Marker and colour."""


def draw(price: dict[str, float], marks: dict[str, dict[str, tuple[float, float]]], path: Path) -> None:
    """Error against price: what is on the lower left is on the front."""
    from matplotlib import pyplot

    names = list(next(iter(marks.values())))
    figure, rows = pyplot.subplots(2, len(names), figsize=(9, 6.4), sharex=True, layout="constrained")
    for column, stream in enumerate(names):
        for row, what in enumerate(("update", "logarithm of the std")):
            axes = rows[row][column]
            ranks = [name for name in marks if name.startswith("LowRank")]
            xs, ys = [price[name] for name in ranks], [marks[name][stream][row] for name in ranks]
            axes.plot(xs, ys, "o-", color="#7f7f7f", label="LowRank, by rank")
            for name, x, y in zip(ranks, xs, ys, strict=True):
                rank = name.removeprefix("LowRank")
                axes.annotate(rank, (x, y), textcoords="offset points", xytext=(5, 4), fontsize=7)
            for name, (marker, colour) in LOOKS.items():
                axes.plot(price[name], marks[name][stream][row], marker, color=colour, label=name)
            axes.set(xscale="log", yscale="log", title=f"{stream}: {what}")
            axes.set_xticks([2, 5, 10, 20], ["2", "5", "10", "20"])
            axes.xaxis.minorticks_off()
            axes.margins(x=0.1, y=0.1)
            axes.spines[["top", "right"]].set_visible(False)
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.supxlabel("step over Adam's, 17-64-64-1, N = 64", fontsize=9)
    figure.supylabel("median error against the exact filter", fontsize=9)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
