"""Should a head keep transitions, or sums of features that it has seen? ``python -m benchmarks.head_memory``.

While a critic learns its features move, and sums of old ones go stale. Compared on the same samples, with the
same critic and the same solver:

* replay: transitions are kept, the latest 2,000 where the truth may switch, and pass through the critic as it
  is when the head is asked (what ``Head`` does);
* forget: features are kept as they were when they were seen, which is what sums keep. The forgetting is
  1/2,000 a sample, also where nothing switches, because features age in any case; ``frozen`` has it only at
  a switch;
* transport: the same as frozen, and after each update of the critic what is kept is mapped by the linear map
  that takes the old features of the latest 256 states to the new ones, in the sense of least squares.

Prints the final value error and the coverage of the 95% intervals, a line a panel and way.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kova_rl import Kova
from kova_rl.head import Stream, solve
from kova_rl.head.prior import prior_variance
from kova_rl.lab.evaluation.headed import HeadedCritic
from kova_rl.lab.evaluation.protocol import STEP, Exam, follow
from kova_rl.lab.evaluation.tasks import phases
from kova_rl.lab.evaluation.transitions import Array, Transitions
from kova_rl.lab.evaluation.walk import Walker

PANELS = (("chain", "on-policy"), ("chain", "switch"), ("grid", "switch"))
WINDOW, LATEST, SAMPLES = 2_000, 256, 10_000


class KeepsFeatures(HeadedCritic):
    """A head on features as they were seen, which may be transported when the critic moves."""

    def __init__(self, inputs: int, gamma: float, seed: int, window: int | None, forgetting: float) -> None:
        super().__init__(Kova, inputs, gamma, seed, window=window, weighted=False)
        self.forgetting = forgetting
        self.rows: list[tuple[Tensor, ...]] = []
        self.latest = np.empty((0, inputs))

    def show(self, batch: Transitions) -> None:
        before, after = (self.seen(x) for x in (batch.states, batch.next_states))
        rest = map(torch.from_numpy, (batch.rewards, batch.terminated, batch.truncated))
        self.rows.append((before, after, *rest))

    def seen(self, states: Array) -> Tensor:
        return self.head.features(torch.as_tensor(states, dtype=torch.float32))

    def kept(self) -> tuple[Tensor, ...]:
        self.rows = [tuple(torch.cat(column) for column in zip(*self.rows, strict=True))]
        return self.rows[0]

    def mean_std(self, states: Array) -> tuple[Array, Array]:
        before, after, rewards, over, cut = self.kept()
        n, tracked = len(rewards), self.head.features.weights
        counts = (1 - self.forgetting) ** torch.arange(n - 1, -1, -1, dtype=torch.float64)
        discounts = self.gamma * (~over).double()
        ones = torch.ones_like(rewards)
        stream = Stream(before, after, rewards, discounts, over | cut, ones, counts)
        solution = solve(stream, tracked, prior=prior_variance(stream, tracked))
        belief = solution.belief(self.seen(states))
        return belief.mean.numpy(), belief.std.numpy()


class Transports(KeepsFeatures):
    """The same, in the features of today as far as a linear map goes."""

    def observe(self, batch: Transitions) -> None:
        self.latest = np.concatenate([self.latest, batch.states])[-LATEST:]
        old = self.seen(self.latest)
        super().observe(batch)
        new = self.seen(self.latest)
        before, after, *rest = self.kept()
        moved = slice(0, len(before) - len(batch))  # the batch itself was seen after the update
        ridge = 1e-6 * old.square().sum() / old.shape[1]
        eye = torch.eye(old.shape[1], dtype=old.dtype)
        change = torch.linalg.solve(old.T @ old + ridge * eye, old.T @ (new - old))
        for column in (before, after):
            column[moved] += column[moved] @ change
        self.rows = [(before, after, *rest)]


def replay(inputs: int, gamma: float, seed: int, switch: bool) -> HeadedCritic:
    """What ``kova-head`` is."""
    return HeadedCritic(Kova, inputs, gamma, seed, window=WINDOW if switch else None, weighted=False)


def keeps(kind: type[KeepsFeatures], always: bool) -> Callable[[int, float, int, bool], HeadedCritic]:
    """Features that are kept; forgotten always, or where the truth may switch."""

    def build(inputs: int, gamma: float, seed: int, switch: bool) -> HeadedCritic:
        rate = 1 / WINDOW if switch or always else 0.0
        return kind(inputs, gamma, seed, WINDOW if switch else None, rate)

    return build


WAYS = {
    "replay": replay,
    "frozen": keeps(KeepsFeatures, always=False),
    "forget": keeps(KeepsFeatures, always=True),
    "transport": keeps(Transports, always=False),
}


def run(way: str, task: str, condition: str, seed: int) -> tuple[float, float]:
    """Error and coverage of the 95% intervals at the end."""
    parts, switch = phases(task, condition), condition == "switch"
    critic = WAYS[way](parts[0].features.shape[1], parts[0].gamma, seed, switch)
    walker, seen = Walker(parts[0], np.random.default_rng([seed, 0])), 0
    for part in parts:
        walker.enter(part)
        exam = Exam(part.features, part.values())
        end = seen + SAMPLES // len(parts) // STEP * STEP
        (marks,) = follow(critic, lambda: walker.walk(STEP), seen, [end], exam, lambda n: None)
        seen = end
    return float(marks["error"]), float(marks["coverage"][-1])


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[200, 201])
    seeds = parser.parse_args().seeds
    print("| panel | way | error | 95% intervals hold |\n|---|---|---:|---:|")
    for task, condition in PANELS:
        for way in WAYS:
            if way == "frozen" and condition == "switch":
                continue  # that is forget
            found = np.array([run(way, task, condition, seed) for seed in seeds])
            error, held = found.mean(0)
            each = ", ".join(f"{x:.3f}" for x in found[:, 0])
            print(f"| {task}, {condition} | {way} | {error:.3f} ({each}) | {held:.2f} |", flush=True)


if __name__ == "__main__":
    main()
