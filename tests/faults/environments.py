"""CartPole that goes wrong: in an exception, by SIGKILL, or on a full disk. Register by importing."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Faulty(CartPoleEnv):
    """Goes wrong at its ``at``-th step, unless the file ``marker`` is there."""

    def __init__(self, at: int, marker: str) -> None:
        super().__init__()
        self._at, self._marker, self._count = at, Path(marker), 0

    def step(self, action: Any) -> Any:
        self._count += 1
        if self._count == self._at and not self._marker.exists():
            self.fault()
        return super().step(action)

    def fault(self) -> None:
        raise RuntimeError(f"the pole broke at step {self._at}")


class Diverges(Faulty):
    def fault(self) -> None:
        raise ValueError("the simulator diverged")


class Killed(Faulty):
    def fault(self) -> None:
        self._marker.touch()  # once
        os.kill(os.getpid(), signal.SIGKILL)


class Full(Faulty):
    """No file may grow beyond 2 kB any more, as on a full disk."""

    def fault(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


for kind, name in (
    *((Faulty, "Raises-v0"), (Diverges, "Diverges-v0")),
    *((Killed, "Killed-v0"), (Full, "Full-v0")),
):
    if name not in gymnasium.registry:
        gymnasium.register(name, kind, max_episode_steps=500)
