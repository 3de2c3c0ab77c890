"""Walking through a finite MDP."""

from __future__ import annotations

from bisect import bisect

import numpy as np

from kova_rl.lab.evaluation.tasks import Task
from kova_rl.lab.evaluation.transitions import Array, Transitions


def _ladder(probabilities: Array) -> list[float]:
    """Cumulated probabilities, whose last is 1 and catches rounding."""
    total = np.cumsum(probabilities)
    total[-1] = np.inf
    ladder: list[float] = total.tolist()
    return ladder


class Walker:
    """Follows the task's behaviour policy, episode after episode."""

    def __init__(self, task: Task, rng: np.random.Generator) -> None:
        self.rng = rng
        self._state: int | None = None
        self.enter(task)

    def enter(self, task: Task) -> None:
        """Go on in another task, from the state that was reached."""
        self.task = task
        states, actions = task.policy.shape
        self._start = _ladder(task.start)
        self._act = [_ladder(task.behaviour[s]) for s in range(states)]
        self._move = [[_ladder(task.moves[a, s]) for a in range(actions)] for s in range(states)]
        self._features = np.vstack([task.features, np.zeros_like(task.features[:1])])
        self._ratios = task.ratios()

    def walk(self, steps: int) -> Transitions:
        """The next transitions."""
        end, walked = len(self.task.features), np.empty((steps, 3), dtype=np.int64)
        s = self._begin() if self._state is None else self._state
        for t, (act, move) in enumerate(self.rng.random((steps, 2)).tolist()):
            a = bisect(self._act[s], act)
            after = bisect(self._move[s][a], move)
            walked[t] = s, a, after
            s = after if after != end else self._begin()
        self._state = s
        before, action, after_ = walked.T
        over = after_ == end
        return Transitions(
            states=self._features[before],
            rewards=self.task.rewards[action, before, after_],
            next_states=self._features[after_],
            terminated=over,
            truncated=np.zeros(steps, dtype=np.bool_),
            weights=self._ratios[before, action],
        )

    def _begin(self) -> int:
        return bisect(self._start, self.rng.random())
