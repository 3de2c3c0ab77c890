"""More finite MDPs with known answers: random ones, Baird's counterexample, and a chain that looks alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kova_rl.lab.evaluation.mdp import Task, bumps

__all__ = ["Garnet", "aliased", "baird"]


@dataclass(frozen=True)
class Garnet:
    """A random MDP that never ends: from each state, each action leads to one of a few others.

    Which, with which probabilities and for which reward (standard normal) is drawn once for each size, so
    that all seeds walk in the same one. Critics see random features, fewer than there are states; a constant
    is among them. Off-policy, the walker has no leaning; the deterministic one has one successor an action,
    and a policy without chance; at the switch the policy becomes another one.

    Reference:
        Archibald, McKinnon and Thomas, "On the generation of Markov decision processes", 1995.
    """

    states: int
    actions: int
    branches: int
    inputs: int
    gamma: float

    def __call__(self, condition: str) -> tuple[Task, ...]:
        n, certain = self.states, condition == "deterministic"
        rng = np.random.default_rng([n, self.actions, self.branches])
        step, reward = np.zeros((self.actions, n, n + 1)), np.zeros((self.actions, n, n + 1))
        for action in range(self.actions):
            for s in range(n):
                after = rng.choice(n, self.branches, replace=False)
                step[action, s, after] = rng.dirichlet(np.ones(self.branches))
                reward[action, s, after] = rng.normal()
                if certain:
                    step[action, s] = np.eye(n + 1)[after[0]]
        features = np.hstack([rng.normal(size=(n, self.inputs - 1)), np.ones((n, 1))])
        reward *= np.sqrt(1 - self.gamma**2)  # values of order 1 at any discount
        first, second = (rng.dirichlet(np.ones(self.actions), size=n) for _ in range(2))
        even, anywhere = np.full((n, self.actions), 1 / self.actions), np.full(n, 1 / n)
        task = Task(f"garnet-{n}", step, reward, features, first, first, anywhere, self.gamma)
        if certain:
            fixed = np.eye(self.actions)[first.argmax(1)]
            return (replace(task, policy=fixed, behaviour=fixed),)
        if condition == "off-policy":
            return (replace(task, behaviour=even),)
        return (task, replace(task, policy=second, behaviour=second)) if condition == "switch" else (task,)


def baird(condition: str) -> tuple[Task, ...]:
    """Baird's counterexample: seven states, and features on which off-policy TD diverges. All values are 0.

    The walker goes to one of the six upper states (6 of 7 times) or to the lower one; the policy only to the
    lower one. There are eight features, 2 in the state's own place and 1 in a shared one (1 and 2 in the
    lower state).

    Reference:
        Baird, "Residual algorithms: reinforcement learning with function approximation", 1995; Sutton and
        Barto, "Reinforcement learning: an introduction", 2018, section 11.2.
    """
    n = 7
    step = np.zeros((2, n, n + 1))
    step[0, :, : n - 1], step[1, :, n - 1] = 1 / (n - 1), 1.0
    features = np.hstack([2 * np.eye(n), np.ones((n, 1))])
    features[-1, n - 1 :] = 1.0, 2.0
    solid, walker = np.tile([0.0, 1.0], (n, 1)), np.tile([6 / 7, 1 / 7], (n, 1))
    task = Task("baird", step, np.zeros_like(step), features, solid, walker, np.full(n, 1 / n), 0.99)
    return (task,)


def aliased(condition: str) -> tuple[Task, ...]:
    """A random walk on 100 states of which four in a row look the same, in strides of one to eight.

    It ends beyond either end, with -1 on the left and +1 on the right, and begins anywhere. Critics see 25
    places through ten wide bumps: none can tell the states of a place from each other. Off-policy, the
    walker leans outwards (0.65); at the switch the rewards change sign.
    """
    n, alike, strides = 100, 4, range(1, 9)
    step, reward = np.zeros((2, n, n + 1)), np.zeros((2, n, n + 1))
    for s in range(n):
        for action, stride in ((a, k) for a in (0, 1) for k in strides):
            after = s + stride if action else s - stride
            inside = 0 <= after < n
            step[action, s, after if inside else n] += 1 / len(strides)
            if not inside:
                reward[action, s, n] = 1.0 if action else -1.0
    place = (np.arange(n) // alike + 0.5) * alike / n * 2 - 1
    features = bumps(place[:, None], np.linspace(-1.0, 1.0, 10)[:, None], 0.2)
    even = np.full((n, 2), 0.5)
    task = Task("aliased", step, reward, features, even, even, np.full(n, 1 / n), 0.98)
    if condition == "off-policy":
        return (replace(task, behaviour=np.where(place[:, None] < 0, [[0.65, 0.35]], [[0.35, 0.65]])),)
    return (task, replace(task, rewards=-reward)) if condition == "switch" else (task,)
