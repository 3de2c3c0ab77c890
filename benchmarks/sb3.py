"""What a filtered critic costs in training, over the host with Adam. ``python -m benchmarks.sb3 [ppo ...]``.

Each class and its host train in slices that take turns, with the paper's networks and batches or with the
host's own; the time is that of one thread's processor, which other work on the machine does not add to.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sb3_contrib import TRPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3

from kova_rl import Kova, evolution
from kova_rl.filter.step import Update
from kova_rl.sb3 import KovaA2C, KovaDDPG, KovaDQN, KovaPPO, KovaSAC, KovaTD3, KovaTRPO

HOST = "the host, with Adam"
Critics = dict[str, dict[str, Any]]
"""Arguments of our class, by what they are called in the table."""

CRITICS: Critics = {
    "kova=None": {"kova": None},
    "default": {"kova": {}},
    "memoryless": {"kova": {"evolution": evolution.Memoryless(0.01)}},
}


@dataclass(frozen=True)
class Case:
    """An algorithm with its settings, the steps of a slice, and what the filter may cost, in percent."""

    make: Callable[..., Any]
    host: Callable[..., Any]
    settings: dict[str, Any]
    slice: int
    bars: dict[str, int]
    critics: Critics
    watched: str
    """The critic whose filter's parts are timed."""
    paper: int | None = None
    environment: str = "Hopper-v5"


def tanh(width: int) -> dict[str, Any]:
    return {"net_arch": {"pi": [width] * 2, "vf": [width] * 2}, "activation_fn": torch.nn.Tanh}


def as_in_the_paper(
    make: Any, host: Any, settings: dict[str, Any], steps: int, paper: int, bars: tuple[int, int]
) -> Case:
    """The paper's networks and batches."""
    limits = dict(zip(("default", "memoryless"), bars, strict=True))
    return Case(make, host, settings, steps, limits, CRITICS, "default", paper)


def as_the_host_has_it(make: Any, host: Any, bar: int, steps: int = 100, **settings: Any) -> Case:
    """The host's own networks and batches, with every Q network filtered."""
    settings = {"buffer_size": 20_000, **settings}
    critics = {name: CRITICS[name] for name in ("kova=None", "default")}
    return Case(make, host, settings, steps, {"default": bar}, critics, "default")


CASES = {
    "ppo": as_in_the_paper(
        KovaPPO, PPO, {"n_steps": 2048, "batch_size": 64, "policy_kwargs": tanh(64)}, 2048, 47, (5, 15)
    ),
    "trpo": as_in_the_paper(
        KovaTRPO,
        TRPO,
        {
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "n_critic_updates": 5,
            "policy_kwargs": tanh(32),
        },
        1024,
        60,
        (10, 15),
    ),
    "a2c": Case(KovaA2C, A2C, {"policy_kwargs": tanh(64)}, 500, {"default": 50}, CRITICS, "default", None),
    "sac": as_in_the_paper(
        KovaSAC,
        SAC,
        {
            "buffer_size": 50_000,
            "batch_size": 64,
            "learning_starts": 200,
            "policy_kwargs": {"net_arch": [64, 64]},
        },
        300,
        450,
        (60, 60),
    ),
    "sac-host": replace(
        as_the_host_has_it(KovaSAC, SAC, 60),
        critics={
            "V": {"kova": {}},
            "both Q": {"kova": {}, "value_network": False},
        },
        bars={"V": 60},
        watched="both Q",
    ),
    "td3-host": as_the_host_has_it(KovaTD3, TD3, 100),
    "td3-256": as_the_host_has_it(KovaTD3, TD3, 100, policy_kwargs={"net_arch": [256, 256]}),
    "ddpg-host": as_the_host_has_it(KovaDDPG, DDPG, 100),
    "dqn-host": replace(as_the_host_has_it(KovaDQN, DQN, 60, steps=1000), environment="CartPole-v1"),
}


class Stopwatch:
    """Stands before an object, and adds up the processor's time of some of its methods."""

    def __init__(self, inner: Any, spent: dict[str, float], **names: str) -> None:
        self._inner, self._spent, self._names = inner, spent, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._timed(self._names[name], found) if name in self._names else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._timed(self._names["call"], self._inner)(*args, **kwargs)

    def __len__(self) -> int:
        return len(self._inner)

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._spent[label] = self._spent.get(label, 0.0) + time.process_time() - start

        return timed


def watch(kova: Kova, spent: dict[str, float]) -> None:
    """Take the time of a filter's parts."""
    tracker = kova._tracker
    tracker.jacobian = Stopwatch(tracker.jacobian, spent, call="Jacobian")  # type: ignore[assignment]
    tracker.structure = structure = Stopwatch(tracker.structure, spent, step="filter")  # type: ignore[assignment]
    begin = structure.step

    def step(*args: Any) -> Update:
        update: Update = begin(*args)
        return update._replace(commit=structure._timed("filter", update.commit))

    vars(structure)["step"] = step
    tracker.parameters = Stopwatch(tracker.parameters, spent, add_="write-back")  # type: ignore[assignment]
    vars(kova)["step"] = Stopwatch(kova.step, spent, call="the whole step")


def measure(case: Case, rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each slice for each critic, and where the time of the watched one goes."""
    spent: dict[str, float] = {}
    models = {}
    for critic, own in {HOST: {}, **case.critics}.items():
        make = case.host if critic == HOST else case.make
        settings = copy.deepcopy({**case.settings, **own})
        model = models[critic] = make("MlpPolicy", case.environment, seed=0, device="cpu", **settings)
        model.learn(case.slice + getattr(model, "learning_starts", 0))
    for kova in vars(models[case.watched].filters).values():
        watch(kova, spent)
    taken: dict[str, list[float]] = {critic: [] for critic in models}
    for _ in range(rounds):
        for critic, model in models.items():
            start = time.process_time()
            model.learn(case.slice, reset_num_timesteps=False)
            taken[critic].append(time.process_time() - start)
    return taken, spent


def main(names: list[str], rounds: int = 9) -> bool:
    torch.set_num_threads(1)
    console, met = Console(), True
    for name in names:
        case = CASES[name]
        taken, spent = measure(case, rounds)
        base = median(taken[HOST])
        table = Table(title=f"{name.upper()} on {case.environment}, slices of {case.slice} steps")
        table.caption = None if case.paper is None else f"the paper: +{case.paper}% over Adam"
        for heading in ("critic", "ms a step", "over Adam", "bar", "spread"):
            table.add_column(heading, justify="left" if heading == "critic" else "right")
        for critic, times in taken.items():
            over = 100 * (median(times) / base - 1)
            bar = case.bars.get(critic)
            met &= bar is None or over <= bar
            spread = (max(times) - min(times)) / median(times)
            shown = (f"{1e3 * median(times) / case.slice:.2f}", f"{over:+.0f}%", f"+{bar}%" if bar else "")
            table.add_row(critic, *shown, f"{spread:.0%}")
        console.print(table)
        whole = spent.pop("the whole step")
        spent["the rest"] = whole - sum(spent.values())
        parts = ", ".join(f"{part} {seconds / whole:.0%}" for part, seconds in spent.items())
        share = whole / sum(taken[case.watched])
        console.print(f"The filter of {case.watched!r} is {share:.0%} of its run: {parts}.\n")
    console.print("All bars are met." if met else "Not all bars are met.")
    return met


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name not in CASES:
            sys.exit(f"there is no case {name!r}: take some of {', '.join(CASES)}, or none for all")
    sys.exit(not main(sys.argv[1:] or list(CASES)))
