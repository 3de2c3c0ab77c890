"""Error bars that hold: a critic's last layer solved from the transitions that the model has at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from kova_rl.head import Stream
from kova_rl.sb3.collected import Cuts, by_env, ratio_of, tensors

__all__ = ["LATEST", "Replayed", "replayed", "rolled_out"]

LATEST = 10_000
"""Transitions of a replay buffer that are looked at."""
LARGEST_RATIO = 10.0


def rolled_out(model: OnPolicyAlgorithm, features: Callable[[Any], Tensor], cuts: Cuts) -> Stream | None:
    """The last rollout through the critic as it is, weighted by the policy's ratio; None if there is none.

    Where a time limit cut an episode, the host adds the value that the critic of that time had for what
    follows to the reward. Taken for a reward it would pull the solution to what the critic believed: in
    episodes of 200 steps at a discount of 0.99, by 0.4 of its error. Such a step is left out.
    """
    buffer: Any = model.rollout_buffer
    steps, envs = (buffer.buffer_size if buffer.full else buffer.pos), buffer.n_envs
    if steps < 2:
        return None
    flat = buffer.generator_ready  # the host has put one environment after the other
    seen = tensors(by_env(buffer.observations, steps, flat), model.device)
    last = model._last_obs if buffer.full else None
    found = features(seen).reshape(envs, steps, -1)
    after, ends = found.roll(-1, 1), np.roll(buffer.episode_starts[:steps], -1, 0)
    ends[-1] = True  # what follows the last is not in the buffer
    if last is not None and model._last_episode_starts is not None:
        after[:, -1] = features(model.policy.obs_to_tensor(last)[0])
        ends[-1] = model._last_episode_starts
    over = torch.as_tensor(ends.T.copy(), device=after.device).bool().flatten()
    rewards = torch.as_tensor(buffer.rewards[:steps].T.copy(), device=after.device).double().flatten()
    ratio = ratio_of(model, seen, steps).double().clamp(max=LARGEST_RATIO)
    borders = over.reshape(envs, steps).clone()
    borders[:, -1] = True
    cut = torch.as_tensor(cuts.mask(steps, envs).T.copy(), device=after.device)
    borders[:, :-1] |= cut[:, 1:]  # what follows the step before is not there any more
    keep = ~cut
    keep[:, -1] &= last is not None
    rows = keep.flatten()
    if not bool(rows.any()):
        return None
    discounts = model.gamma * (~over).double()
    columns = (found.flatten(0, 1), after.flatten(0, 1), rewards, discounts, borders.flatten(), ratio)
    before, next_, reward, discount, border, weight = (x[rows] for x in columns)
    return Stream(before, next_, reward, discount, border, weight, torch.ones_like(reward))


class Replayed:
    """The latest transitions of a replay buffer, environment after environment, normalised as in training."""

    def __init__(self, buffer: Any, env: VecNormalize | None, device: torch.device) -> None:
        size = buffer.buffer_size if buffer.full else buffer.pos
        steps = min(size, max(LATEST // buffer.n_envs, 2))
        rows = (np.arange(buffer.pos - steps, buffer.pos)) % buffer.buffer_size
        compact = getattr(buffer, "optimize_memory_usage", False)
        if compact:
            rows = rows[:-1]  # what follows the last is not in the buffer

        def taken(stored: Any) -> Any:
            if isinstance(stored, Mapping):
                return {name: taken(value) for name, value in stored.items()}
            return stored[rows].swapaxes(0, 1).reshape(-1, *stored.shape[2:])

        def normalised(stored: Any) -> Any:
            return tensors(buffer._normalize_obs(taken(stored), env), device)

        self.observations = normalised(buffer.observations)
        if compact:
            after = buffer.observations[(rows + 1) % buffer.buffer_size]
            after = after.swapaxes(0, 1).reshape(-1, *after.shape[2:])
            self.next_observations = tensors(buffer._normalize_obs(after, env), device)
        else:
            self.next_observations = normalised(buffer.next_observations)
        self.actions = torch.as_tensor(taken(buffer.actions), device=device)
        rewards = buffer._normalize_reward(taken(buffer.rewards), env)
        self.rewards = torch.as_tensor(rewards, device=device).double().flatten()
        dones, cut = (torch.as_tensor(taken(x), device=device) > 0 for x in (buffer.dones, buffer.timeouts))
        self.terminated = dones & ~cut
        last = torch.arange(len(self.rewards), device=device) % len(rows) == len(rows) - 1
        self.borders = dones | last

    def stream(self, features: Tensor, after: Tensor, gamma: float, bonus: Tensor | float = 0.0) -> Stream:
        """These transitions with features; ``bonus`` is added to what follows, discounted."""
        discounts = gamma * (~self.terminated).double()
        rewards = self.rewards + discounts * bonus
        ones = torch.ones_like(rewards)
        return Stream(features, after, rewards, discounts, self.borders, ones, ones)


def replayed(buffer: ReplayBuffer | None, env: VecNormalize | None, device: torch.device) -> Replayed | None:
    """The latest transitions; None if there are none, or the buffer is of another kind."""
    if buffer is None or not all(hasattr(buffer, name) for name in ("timeouts", "dones", "rewards")):
        return None
    if buffer.pos < 3 and not buffer.full:
        return None
    return Replayed(buffer, env, device)
