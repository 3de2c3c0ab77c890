"""A run of policy evaluation: a task, a condition, a critic and a seed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from kova_rl.lab import files, spec
from kova_rl.lab.evaluation.critics import CRITICS, describe
from kova_rl.lab.evaluation.protocol import Curves, Tick, evaluate_one
from kova_rl.lab.run import Work, hashed
from kova_rl.lab.store import DATA

__all__ = ["TUNING_SEEDS", "EvaluationRun", "Setting"]

TUNING_SEEDS = (1000, 1001)
"""Never among the seeds that are reported."""


class Setting(Protocol):
    """A critic that is described by its settings, and not by a name."""

    @property
    def kind(self) -> str:
        """What it is called in records and colours."""

    def table(self) -> dict[str, Any]:
        """All its settings."""

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """What improves the network."""


@dataclass(frozen=True)
class EvaluationRun:
    """What is run. The label is for people."""

    kind: ClassVar[str] = "evaluation"

    label: str
    task: str
    condition: str
    critic: Any
    """A name of ``critics.CRITICS``, or a :class:`Setting`."""
    seed: int
    samples: int
    setting: float | None = None
    """Of what is tuned of a named critic."""

    @classmethod
    def named(
        cls, task: str, condition: str, critic: str, seed: int, samples: int, setting: float
    ) -> EvaluationRun:
        """Of a critic that has a name."""
        return cls(CRITICS[critic].label, task, condition, critic, seed, samples, setting)

    @property
    def steps(self) -> int:
        return self.samples

    @cached_property
    def name(self) -> str:
        """Of its folder."""
        tuned = isinstance(self.critic, str) and len(CRITICS[self.critic].choices) > 1
        called = self.critic if isinstance(self.critic, str) else self.label
        words = (f"{called} {self.setting:g}" if tuned else called, f"seed{self.seed}")
        return hashed(self.flat(), self.task, self.condition, *words)

    def flat(self) -> dict[str, Any]:
        """All settings, defaults written out."""
        named = isinstance(self.critic, str)
        return {
            **{"label": self.label, "algorithm": "evaluation"},
            **{"environment": f"{self.task} {self.condition}", "task": self.task},
            **{"condition": self.condition, "critic": self.critic if named else self.critic.kind},
            **{"seed": self.seed, "steps": self.samples, "setting": self.setting},
            **({"tuning": True} if self.seed in TUNING_SEEDS else {}),
            **({"described": describe(self.critic)} if named else spec.flatten(self.critic.table())),
        }

    def learn(self, tick: Tick) -> Curves:
        """The curves of error and coverage."""
        make: str | Callable[[nn.Module], torch.optim.Optimizer] = self.critic
        if not isinstance(self.critic, str):
            make = self.critic.optimizer
        setting = self.setting
        return evaluate_one(
            self.task, self.condition, make, self.seed, self.samples, setting=setting, tick=tick
        )

    def perform(self, work: Work) -> dict[str, Any]:
        """Learn from the beginning, and keep what came out, in single precision."""
        torch.set_num_threads(1)
        clock, processor, seen = time.perf_counter(), time.process_time(), 0

        def tick(count: int) -> None:
            nonlocal seen
            seen += count
            if seen * 20 // self.samples > (seen - count) * 20 // self.samples:
                work.progress({"step": seen, "error": None})

        curves = self.learn(tick)
        single = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in curves.items()}
        files.save(work.path / DATA, single)
        for at, error in zip(curves["samples"].tolist(), curves["error"].tolist(), strict=True):
            work.record({"step": at, "error": error if np.isfinite(error) else None})
        return {
            "steps": self.samples,
            "seconds": round(time.perf_counter() - clock, 3),
            "processor": round(time.process_time() - processor, 3),
        }
