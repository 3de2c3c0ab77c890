"""The rollout that a model has just collected, as tensors, one environment after the other."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor

from kova_rl.value_loop import Rollout, in_chunks

__all__ = [
    "Cuts",
    "actions_of",
    "by_env",
    "observations_of",
    "ratio_of",
    "rollout_of",
    "tensors",
    "write_advantages",
]


@dataclass
class Cuts:
    """What was observed where a time limit cut an episode; the host keeps the critic's value of it alone."""

    found: list[tuple[int, int, Any]] = field(default_factory=list)

    def add(self, step: int, infos: list[dict[str, Any]], dones: Any) -> None:
        """Remember the ends of this step that the host adds a value to."""
        for env in np.flatnonzero(dones):
            end = infos[env].get("terminal_observation")
            if end is not None and infos[env].get("TimeLimit.truncated", False):
                self.found.append((int(env), step, copy.deepcopy(end)))  # some write the next into it

    def mask(self, steps: int, envs: int) -> NDArray[np.bool_]:
        """True where an episode was cut, steps x environments."""
        found = np.zeros((steps, envs), dtype=np.bool_)
        for env, step, _ in self.found:
            if step < steps:  # the last may have been noted and not kept
                found[step, env] = True
        return found

    def observations(self, model: OnPolicyAlgorithm) -> Any:
        """In the order of the flat rollout; None if there is none."""
        if not self.found:
            return None
        rows: list[Any] = [
            model.policy.obs_to_tensor(end)[0] for _, _, end in sorted(self.found, key=lambda cut: cut[:2])
        ]
        if isinstance(rows[0], Mapping):
            return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        return torch.cat(rows)


def rollout_of(model: OnPolicyAlgorithm, cuts: Cuts) -> Rollout:
    """The rollout, before the critic has moved: the values that the host added to rewards are taken out."""
    buffer: Any = model.rollout_buffer
    device, shape = model.device, buffer.rewards.shape
    observations = observations_of(model)
    rewards = torch.as_tensor(buffer.rewards, device=device).clone()
    assert model._last_obs is not None
    assert model._last_episode_starts is not None
    over = np.concatenate([buffer.episode_starts[1:], np.asarray(model._last_episode_starts)[None]])
    truncated = torch.as_tensor(cuts.mask(*shape), device=device)
    cut = cuts.observations(model)
    if cut is not None:
        with torch.no_grad():
            added = in_chunks(model.policy.predict_values, cut)
        env, step = truncated.T.nonzero(as_tuple=True)
        rewards[step, env] -= model.gamma * added
    terminated = torch.as_tensor(over, device=device).bool() & ~truncated
    last = model.policy.obs_to_tensor(model._last_obs)[0]
    return Rollout(observations, rewards, terminated, truncated, last, cut)


def observations_of(model: OnPolicyAlgorithm) -> Any:
    """What was observed at each step, flat."""
    buffer: Any = model.rollout_buffer
    flat = by_env(buffer.observations, buffer.buffer_size, buffer.generator_ready)
    return tensors(flat, model.device)


def actions_of(model: OnPolicyAlgorithm, steps: int | None = None) -> Tensor:
    """What was done at each step, or at so many, flat, as a distribution takes it."""
    buffer: Any = model.rollout_buffer
    rows = by_env(buffer.actions, steps or buffer.buffer_size, buffer.generator_ready)
    found: Tensor = tensors(rows.astype(np.float32), model.device)
    return found.long().flatten() if isinstance(model.action_space, spaces.Discrete) else found


@torch.no_grad()
def ratio_of(model: OnPolicyAlgorithm, observations: Any, steps: int | None = None) -> Tensor:
    """Of the policy as it is to the one that acted, at each step, or at so many, flat."""
    buffer: Any = model.rollout_buffer
    policy: Any = model.policy

    def log_probs(obs: Any, chosen: Tensor) -> Tensor:
        found: Tensor = policy.get_distribution(obs).log_prob(chosen)
        return found

    old = by_env(buffer.log_probs, steps or buffer.buffer_size, buffer.generator_ready)
    now = in_chunks(log_probs, observations, actions_of(model, steps))
    ratio: Tensor = (now - tensors(old, model.device).flatten()).clamp(-80, 80).exp()  # finite in float32
    return ratio


def write_advantages(model: OnPolicyAlgorithm, advantages: Tensor) -> None:
    """Give the host other advantages than it computed."""
    buffer: Any = model.rollout_buffer
    found = advantages.to(torch.float32).cpu().numpy()
    buffer.advantages = found.T.reshape(-1, 1).copy() if buffer.generator_ready else found.copy()


def by_env(stored: Any, steps: int, flat: bool) -> Any:
    """An array of the buffer, one environment after the other; ``flat`` if the host has made it so."""
    if isinstance(stored, Mapping):
        return {name: by_env(value, steps, flat) for name, value in stored.items()}
    return stored if flat else stored[:steps].swapaxes(0, 1).reshape(-1, *stored.shape[2:])


def tensors(rows: Any, device: torch.device) -> Any:
    """Arrays as tensors on the device."""
    if isinstance(rows, Mapping):
        return {name: torch.as_tensor(value, device=device) for name, value in rows.items()}
    return torch.as_tensor(rows, device=device)
