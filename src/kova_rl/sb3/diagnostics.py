"""What a filter has done since the last look, for the host's logger."""

from __future__ import annotations

from collections import deque

import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import explained_variance
from torch import Tensor

from kova_rl.info import StepInfo

__all__ = ["Diagnostics"]

KEPT = 1000
"""Updates that the averages reach back."""


class Diagnostics:
    """Remembers the innovations of one filter's updates, and gives averages of them when asked."""

    def __init__(self) -> None:
        self._seen: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=KEPT)
        self._last: StepInfo | None = None

    def add(self, info: StepInfo, targets: Tensor) -> None:
        """One more update."""
        self._seen.append((info.innovation, targets, info.nis))
        self._last = info

    def note(self, innovation: Tensor, targets: Tensor) -> None:
        """One more update, of a critic that is not filtered."""
        self._seen.append((innovation, targets, 0.0))

    @property
    def updated(self) -> bool:
        """Whether there was an update since the last record."""
        return bool(self._seen)

    @property
    def last_loss(self) -> float:
        """Mean squared innovation of the last update."""
        return float(self._seen[-1][0].square().mean())

    def record(self, logger: Logger, name: str) -> tuple[float, float] | None:
        """Write to the logger, and forget.

        Args:
            logger: The host's.
            name: Before each key, such as ``kova``.

        Returns:
            Mean squared innovation and explained variance; None if there was no update.
        """
        if not self._seen:
            return None
        innovation = torch.cat([innovation for innovation, _, _ in self._seen])
        if self._last is not None:
            logger.record(f"{name}/innovation_mean", float(innovation.mean()))
            logger.record(f"{name}/innovation_std", float(innovation.std(correction=0)))
            logger.record(f"{name}/nis", sum(nis for _, _, nis in self._seen) / len(self._seen))
            for key in ("update_norm", "variance_max", "variance_mean"):
                logger.record(f"{name}/{key}", getattr(self._last, key))
        targets = torch.cat([targets for _, targets, _ in self._seen])
        explained = explained_variance((targets - innovation).cpu().numpy(), targets.cpu().numpy())
        self._seen.clear()
        self._last = None
        return float(innovation.square().mean()), float(explained)
