"""What the algorithms with a replay buffer share: filtered Q networks, and checks of what they learn from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from kova_rl.head import Solution
from kova_rl.head.features import Features
from kova_rl.optimizer import Kova
from kova_rl.posterior import Belief
from kova_rl.sb3.bars import replayed
from kova_rl.sb3.critic import FilteredCritic, last_linear, release, solved_head
from kova_rl.sb3.exploration import Exploration
from kova_rl.targets import one_step

__all__ = ["Exploring", "FilteredQ", "Replaying", "bootstrapped", "flat", "lowest", "repeated", "step_actor"]


class Replaying(FilteredCritic, OffPolicyAlgorithm):
    """A mixin for algorithms with a replay buffer, from which a sample is drawn again and again."""

    use = "replay"

    def _replays(self, batch: int) -> float:
        """The samples of all updates over those collected. Updates by the episode can't be counted so: 1."""
        often = self.train_freq
        assert isinstance(often, TrainFreq)
        if self.gradient_steps < 0:  # as many updates as samples
            return float(batch)
        if often.unit is not TrainFrequencyUnit.STEP:
            return 1.0
        return max(1.0, batch * self.gradient_steps / (often.frequency * self.n_envs))


class Exploring(Replaying):
    """A mixin for algorithms that can explore by what the critic does not know."""

    exploration: Exploration | None

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> Any:
        if self.exploration is None or deterministic:
            return super().predict(observation, state, episode_start, deterministic)
        self.policy.set_training_mode(False)
        obs, vectorised = self.policy.obs_to_tensor(observation)
        taken = self._explore(obs, self.exploration)
        return (taken if vectorised else taken[0]), state

    def _explore(self, obs: Any, exploration: Exploration) -> np.ndarray:
        """An action for each observation."""
        raise NotImplementedError


class FilteredQ(Replaying):
    """A mixin for critics of state and continuous action: one filter for each Q network."""

    critic: ContinuousCritic

    def _add_q_filters(self) -> None:
        assert self.kova is not None
        extractor = self.critic.features_extractor
        if self.kova.layers == "all" and any(p.requires_grad for p in extractor.parameters()):
            raise ValueError(
                f"the Q networks share the features extractor {type(extractor).__name__}, which "
                "filters of one network each can't move: filter their last layers alone, with "
                "kova=dict(layers='last')"
            )
        for index, network in enumerate(self.critic.q_networks):
            module = network if self.kova.layers == "all" else last_linear(network)
            self._add_filter(f"q{index}", module)
            release(self.critic.optimizer, module.parameters())

    def _learn_q(self, data: Any, targets: Tensor, factor: float) -> float:
        """The critic's step: the host's loss for what its optimizer keeps, the filters for the rest.

        Args:
            data: A batch of the replay buffer.
            targets: N x 1.
            factor: Of the host's loss.

        Returns:
            The host's loss, before the step.
        """
        filtered = [name for name in vars(self.filters) if name.startswith("q")]
        loss = 0.0
        if not filtered or (self.kova is not None and self.kova.layers == "last"):
            self.critic.zero_grad()
            values = self.critic(data.observations, data.actions)
            for index, q in enumerate(values):
                self._note(f"q{index}", q, targets)
            critic_loss = factor * sum(mse_loss(q, targets) for q in values)
            assert isinstance(critic_loss, Tensor)
            loss = critic_loss.item()
            critic_loss.backward()
            self.critic.optimizer.step()
        if filtered:
            inputs = self._q_inputs(data.observations, data.actions)
            loss = 0.0
            for name, network in zip(filtered, self.critic.q_networks, strict=True):
                self._filter(name, partial(flat, network, inputs), targets.flatten())
                loss += factor * self._diagnostics[name].last_loss
        return loss

    def _q_inputs(self, obs: Any, actions: Tensor) -> Tensor:
        """What the Q networks see: features and actions side by side."""
        with torch.no_grad():
            features = self.critic.extract_features(obs, self.critic.features_extractor)
        return torch.cat([features, actions], dim=1)

    def _q_belief(self, obs: Any, actions: Tensor) -> Belief:
        """Of each action, by the network that thinks less of it."""
        inputs = self._q_inputs(obs, actions)
        beliefs = [kova.posterior(partial(flat, network, inputs)) for kova, network in self._q_pairs()]
        return lowest(beliefs)

    def _q_heads(self) -> list[Features]:
        return [Features(network, last_linear(network)) for network in self.critic.q_networks]

    def _solutions(self) -> list[Solution]:
        """Of each Q network: Q of the action that was taken, from Q of the policy's own after it."""
        data = replayed(self.replay_buffer, self._vec_normalize_env, self.device)
        if data is None:
            return []
        with torch.random.fork_rng(devices=[]):  # the host's random numbers are not to move
            actions, bonus = self._policy_actions(data.next_observations)
        before = self._q_inputs(data.observations, data.actions)
        after = self._q_inputs(data.next_observations, actions)
        return [
            solved_head(head, data.stream(head(before), head(after), self.gamma, bonus))
            for head in self._q_heads()
        ]

    def _policy_actions(self, obs: Any) -> tuple[Tensor, Tensor | float]:
        """Actions of the policy, scaled, and what is added to their Q, such as an entropy."""
        return self.actor(obs), 0.0

    def _judged(self, solutions: list[Solution], obs: Any, actions: Tensor | None) -> Belief:
        own = self.actor(obs) if actions is None else self._scaled(actions)
        inputs = self._q_inputs(obs, own)
        pairs = zip(solutions, self._q_heads(), strict=True)
        return lowest([solution.belief(head(inputs)) for solution, head in pairs])

    def _q_filters(self) -> list[Kova]:
        return [kova for name, kova in vars(self.filters).items() if name.startswith("q")]

    def _q_pairs(self) -> list[tuple[Kova, nn.Module]]:
        """Each filter and its network."""
        return list(zip(self._q_filters(), self.critic.q_networks, strict=True))

    def _scaled(self, actions: Tensor) -> Tensor:
        """Actions of the environment as the critic sees them, in [-1, 1]."""
        flat = actions.reshape(-1, *(self.action_space.shape or ())).cpu().numpy()
        scaled = self.policy.scale_action(flat)
        return torch.as_tensor(scaled, dtype=torch.float32, device=self.device).flatten(1)


def step_actor(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """The host's step of the actor, without the gradients of the critic's weights, which nobody reads."""
    optimizer.zero_grad()
    inputs = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    loss.backward(inputs=inputs)
    optimizer.step()


def flat(network: nn.Module, inputs: Tensor) -> Tensor:
    """One value a row."""
    values: Tensor = network(inputs)
    return values.flatten()


def lowest(beliefs: list[Belief]) -> Belief:
    """Of several independent beliefs about the same predictions, for each the one with the lowest mean."""
    means = torch.stack([belief.mean for belief in beliefs])
    chosen = means.argmin(0, keepdim=True)

    def joint() -> Tensor:
        covariance = torch.zeros_like(beliefs[0].covariance)
        for index, belief in enumerate(beliefs):
            own = (chosen[0] == index).to(covariance)
            covariance += own[:, None] * own * belief.covariance
        return covariance

    std = torch.stack([belief.std for belief in beliefs]).gather(0, chosen)[0]
    return Belief(means.gather(0, chosen)[0], std, joint, all(belief.tracked for belief in beliefs))


def bootstrapped(data: Any, next_values: Tensor, gamma: float) -> Tensor:
    """``r + gamma V(s')``, N x 1; with gamma's powers where a buffer of n-step returns gives them."""
    return one_step(
        data.rewards, next_values, data.dones, gamma if data.discounts is None else data.discounts
    )


def repeated(obs: Any, times: int) -> Any:
    """Each observation this many times, one after the other."""
    if isinstance(obs, Mapping):
        return {name: repeated(value, times) for name, value in obs.items()}
    return obs.repeat_interleave(times, dim=0)
