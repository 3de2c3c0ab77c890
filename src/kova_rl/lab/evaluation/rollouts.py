"""Monte-Carlo returns, and what they say of the true values."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces.utils import flatten
from gymnasium.utils import EzPickle
from gymnasium.wrappers import TimeLimit

from kova_rl.lab.evaluation.environment import Env, Policy, Step, walk
from kova_rl.lab.evaluation.transitions import Array

TAIL = 1e-3
"""A return counts as known once the discount of what is missing is below it."""
APART = 25
"""Steps of a walk between two states that are examined."""
LONGEST = 10_000
"""Steps of a rollout after which it is given up, where the discount does not end it."""


@dataclass(frozen=True)
class Truth:
    """Estimates of the true values of visited states."""

    states: Array
    """Flattened observations, n x k."""
    values: Array
    """Mean discounted returns, of shape (n,)."""
    doubt: Array
    """Standard error of each; NaN if there was a single return."""
    note: str
    """How they were found."""


def truth(env: Env, policy: Policy, gamma: float, seed: int, states: int, rollouts: int) -> Truth:
    """True values of states that fresh episodes visit: from copies of the environment if it has any."""
    if can_copy(env, seed):
        return from_copies(env, policy, gamma, seed, states, rollouts)
    return from_episodes(env, policy, gamma, seed, states)


def can_copy(env: Env, seed: int) -> bool:
    """Whether a copy goes on exactly as the original does, from a state on its way, and leaves it alone."""
    try:
        env.action_space.seed(seed)
        env.reset(seed=seed)
        for _ in range(3):
            env.step(env.action_space.sample())
        actions = [env.action_space.sample() for _ in range(3)]
        ways = []
        for one in (copied(env), copied(env), env):
            seen = [flatten(env.observation_space, one.step(action)[0]) for action in actions]
            ways.append(np.array(seen))
        return bool(np.array_equal(ways[0], ways[1]) and np.array_equal(ways[0], ways[2]))
    except Exception:  # whatever an environment of others raises, it can't be copied
        return False


def copied(env: Env) -> Env:
    """A deep copy that is where the original is.

    ``EzPickle``, which MuJoCo's environments are, would make it a new environment at its beginning.
    """
    base = env.unwrapped
    memo: dict[int, Any] = {}
    if isinstance(base, EzPickle):
        same = object.__new__(type(base))
        memo[id(base)] = same
        vars(same).update(copy.deepcopy(vars(base), memo))
    return copy.deepcopy(env, memo)


def from_copies(env: Env, policy: Policy, gamma: float, seed: int, states: int, rollouts: int) -> Truth:
    """Several rollouts from each of the states, every 25th of a walk, on copies with chance of their own."""
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    seen, values, doubt = [], [], []
    for t in range(APART * states):
        if t % APART == 0:
            returns = [rollout(twin(env, [seed, t, i]), observation, policy, gamma) for i in range(rollouts)]
            if None not in returns:
                known = np.array(returns, dtype=np.float64)
                seen.append(flatten(env.observation_space, observation))
                values.append(known.mean())
                doubt.append(known.std(ddof=1) / math.sqrt(len(known)))
        observation, _, terminated, truncated, _ = env.step(policy(observation))
        if terminated or truncated:
            observation, _ = env.reset()
    _check_known(len(seen), gamma)
    note = f"truth: mean of {rollouts} rollouts from each of {len(seen)} states"
    return Truth(np.array(seen, dtype=np.float64), np.array(values), np.array(doubt), note)


def twin(env: Env, seed: list[int]) -> Env:
    """A copy with a random generator of its own, and no time limit."""
    made = copied(env)
    made.unwrapped.np_random = np.random.default_rng(seed)
    layer: Any = made
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, TimeLimit):
            vars(layer).update(_max_episode_steps=LONGEST + 1, _elapsed_steps=0)
        layer = layer.env
    return made


def rollout(env: Env, observation: Any, policy: Policy, gamma: float) -> float | None:
    """The discounted return from here; None if it was cut before the rest is negligible."""
    total, discount = 0.0, 1.0
    for _ in range(LONGEST):
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        total += discount * float(reward)
        discount *= gamma
        if terminated or discount <= TAIL:
            return total
        if truncated:
            return None
    return None


def from_episodes(env: Env, policy: Policy, gamma: float, seed: int, states: int) -> Truth:
    """One return each, of states of fresh episodes; those whose return was cut are left out."""
    steps: list[Step] = []
    for step in walk(env, policy, seed):
        steps.append(step)
        if len(steps) >= APART * states and (step.terminated or step.truncated):
            break
        if len(steps) >= LONGEST:
            break
    seen, values = [], []
    total, missing = 0.0, 1.0
    for step in reversed(steps):
        if step.terminated:
            total, missing = 0.0, 0.0
        elif step.truncated or step is steps[-1]:
            total, missing = 0.0, 1.0
        total, missing = step.reward + gamma * total, gamma * missing
        if missing <= TAIL:
            seen.append(flatten(env.observation_space, step.before))
            values.append(total)
    _check_known(len(seen), gamma)
    note = f"truth: one return of each of {len(seen)} states, whose own scatter is in the error"
    return Truth(np.array(seen, dtype=np.float64), np.array(values), np.full(len(seen), np.nan), note)


def _check_known(count: int, gamma: float) -> None:
    if not count:
        raise ValueError(
            f"no return is known: episodes are cut before gamma^k, with gamma {gamma:g}, falls below {TAIL}. "
            "Use a smaller gamma, or an environment that terminates"
        )
