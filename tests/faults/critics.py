"""Critics of mazes and policy evaluation that go wrong: in an exception, by SIGKILL, or on a full disk."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from kova_rl.agents import FromReplay


class Breaking(torch.optim.Adam):
    """Calls ``fault`` at its ``at``-th step, unless the file ``marker`` is there."""

    def __init__(self, parameters: Any, fault: Any, at: int, marker: Path) -> None:
        super().__init__(parameters, 1e-3)
        self._fault, self._at, self._marker, self._count = fault, at, marker, 0

    def step(self, closure: Any = None) -> Any:
        self._count += 1
        if self._count == self._at and not self._marker.exists():
            self._fault(self._marker)
        return super().step(closure)


def raises(marker: Path) -> None:
    raise RuntimeError("the critic broke")


def killed(marker: Path) -> None:
    marker.touch()  # once
    os.kill(os.getpid(), signal.SIGKILL)


def full(marker: Path) -> None:
    """No file may grow beyond half a kilobyte any more, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


FAULTS = {"raises": raises, "killed": killed, "full": full}


@dataclass(frozen=True)
class Faulty:
    """Adam that goes wrong."""

    kind: ClassVar[str] = "adam"

    fault: str
    at: int
    marker: str

    def table(self) -> dict[str, Any]:
        return asdict(self)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return Breaking(network.parameters(), FAULTS[self.fault], self.at, Path(self.marker))

    def learner(self, network: nn.Module, steps: int, gamma: float) -> FromReplay:
        return FromReplay(network, self.optimizer(network))
