"""A Gymnasium environment, a policy in it, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces.utils import flatten

from kova_rl.envs import making
from kova_rl.lab.evaluation.transitions import Transitions

Env = gymnasium.Env[Any, Any]
Policy = Callable[[Any], Any]


def make_env(env: str | Callable[[], Env]) -> Env:
    """The registered environment of this name, or what the function returns.

    Raises:
        ValueError: No such environment, or one whose observations do not flatten to a fixed size.
    """
    if isinstance(env, str):
        made: Env = making.make_env(env)
    elif callable(env):
        made = env()
    else:
        raise ValueError(f"env must be a name or a function that makes one, got {type(env).__name__}")
    if not made.observation_space.is_np_flattenable:
        raise ValueError(
            f"observations must flatten to a fixed size (Box, Discrete, or a Dict of them), got "
            f"{made.observation_space}: wrap the environment"
        )
    return made


def acting(policy: Any, deterministic: bool) -> Policy:
    """The policy as a function of the observation; a Stable-Baselines3 model has ``predict``."""
    if hasattr(policy, "predict"):
        return lambda observation: policy.predict(observation, deterministic=deterministic)[0]
    if callable(policy):
        chosen: Policy = policy
        return chosen
    raise ValueError(
        f"policy must be a function of the observation, or have predict(), got {type(policy).__name__}"
    )


@dataclass
class Step:
    """One step of a walk."""

    before: Any
    reward: float
    after: Any
    terminated: bool
    truncated: bool


def walk(env: Env, policy: Policy, seed: int) -> Iterator[Step]:
    """Episode after episode, for ever. Each reset but the first goes on with the environment's own chance."""
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    while True:
        after, reward, terminated, truncated, _ = env.step(policy(observation))
        yield Step(observation, float(reward), after, bool(terminated), bool(truncated))
        observation = env.reset()[0] if terminated or truncated else after


def collect(env: Env, policy: Policy, samples: int, seed: int) -> Transitions:
    """Transitions of the policy, observations flattened. Where an episode is cut, the walk is too."""
    steps = list(islice(walk(env, policy, seed), samples))
    space = env.observation_space
    over = np.array([step.terminated for step in steps])
    after = np.array([flatten(space, step.after) for step in steps], dtype=np.float64)
    return Transitions(
        states=np.array([flatten(space, step.before) for step in steps], dtype=np.float64),
        rewards=np.array([step.reward for step in steps]),
        next_states=after,
        terminated=over,
        truncated=np.array([step.truncated for step in steps]) & ~over,
        weights=np.ones(samples),
    )
