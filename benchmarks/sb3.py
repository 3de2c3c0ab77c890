"""What a filtered critic costs in training, over the host with Adam. ``python -m benchmarks.sb3 [ppo ...]``.

Each class and its host train on Hopper-v5 with the paper's networks and batches, in slices that take turns;
the time is that of one thread's processor, which other work on the machine does not add to.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sb3_contrib import TRPO
from stable_baselines3 import A2C, PPO, SAC

from kova_rl import Kova, evolution
from kova_rl.sb3 import KovaA2C, KovaPPO, KovaSAC, KovaTRPO

HOST = "the host"
ENVIRONMENT = "Hopper-v5"


@dataclass(frozen=True)
class Case:
    """An algorithm with the paper's settings, the steps of a slice, and what the filter may cost."""

    make: Callable[..., Any]
    host: Callable[..., Any]
    settings: dict[str, Any]
    slice: int
    paper: int
    bars: dict[str, int]


def tanh(width: int) -> dict[str, Any]:
    return {"net_arch": {"pi": [width] * 2, "vf": [width] * 2}, "activation_fn": torch.nn.Tanh}


CASES = {
    "ppo": Case(
        KovaPPO,
        PPO,
        {"n_steps": 2048, "batch_size": 64, "policy_kwargs": tanh(64)},
        2048,
        47,
        {"default": 5, "memoryless": 15},
    ),
    "trpo": Case(
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
        {"default": 10, "memoryless": 15},
    ),
    "a2c": Case(KovaA2C, A2C, {"policy_kwargs": tanh(64)}, 500, 0, {"default": 50}),
    "sac": Case(
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
        {"default": 250, "memoryless": 60},
    ),
}
CRITICS: dict[str, Any] = {
    "the host, with Adam": HOST,
    "kova=None": None,
    "default": {},
    "memoryless": {"evolution": evolution.Memoryless(0.01)},
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
    kova._jacobian = Stopwatch(kova._jacobian, spent, call="Jacobian")  # type: ignore[assignment]
    kova._structure = Stopwatch(kova._structure, spent, step="filter")  # type: ignore[assignment]
    kova._parameters = Stopwatch(kova._parameters, spent, add_="write-back")  # type: ignore[assignment]
    vars(kova)["step"] = Stopwatch(kova.step, spent, call="the whole step")


def measure(name: str, rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each slice for each critic, and where the default's time goes."""
    case = CASES[name]
    spent: dict[str, float] = {}
    models = {}
    for critic, kova in CRITICS.items():
        own = {} if kova is HOST else {"kova": kova}
        make = case.host if kova is HOST else case.make
        settings = copy.deepcopy(case.settings)
        models[critic] = make("MlpPolicy", ENVIRONMENT, seed=0, device="cpu", **own, **settings)
        models[critic].learn(case.slice + case.settings.get("learning_starts", 0))
    watch(models["default"].filters.v, spent)
    taken: dict[str, list[float]] = {critic: [] for critic in CRITICS}
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
        taken, spent = measure(name, rounds)
        base = median(next(iter(taken.values())))
        table = Table(
            title=f"{name.upper()} on {ENVIRONMENT}, slices of {case.slice} steps",
            caption=f"the paper: +{case.paper}% over Adam" if case.paper else None,
        )
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
        share = whole / sum(taken["default"])
        console.print(f"The default's filter is {share:.0%} of its run: {parts}.\n")
    console.print("All bars are met." if met else "Not all bars are met.")
    return met


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:] or list(CASES)))
