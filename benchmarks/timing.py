"""Ratios of times measured in one run: candidates take turns, so that the machine's noise hits all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Timing:
    """Seconds a call, of each round."""

    rounds: list[float]

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def typical(self) -> float:
        """The median round: what ratios are made of."""
        return median(self.rounds)

    @property
    def noise(self) -> float:
        """How much slower the median round was than the best."""
        return self.typical / self.best - 1


def interleaved(
    candidates: dict[str, Callable[[], object]],
    rounds: int = 15,
    seconds: float = 0.03,
    warm: int = 5,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, Timing]:
    """Time each candidate in turn, about ``seconds`` a turn, ``rounds`` times.

    The time is that of the processor, to which what others do on the machine adds little.
    """
    repeats = {}
    for name, run in candidates.items():
        for _ in range(warm):
            run()
        start = clock()
        run()
        repeats[name] = max(1, int(seconds / (clock() - start)))
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = clock()
            for _ in range(repeats[name]):
                run()
            taken[name].append((clock() - start) / repeats[name])
    return {name: Timing(values) for name, values in taken.items()}
