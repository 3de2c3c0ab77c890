"""DQN and double DQN with a filtered critic."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from kova_rl.head import Solution
from kova_rl.head.features import Features
from kova_rl.posterior import Belief
from kova_rl.sb3.bars import replayed
from kova_rl.sb3.critic import last_linear, release, solved_head
from kova_rl.sb3.exploration import Draws, Exploration, check_exploration, check_posterior
from kova_rl.sb3.guard import check_batch
from kova_rl.sb3.off_policy import Exploring, bootstrapped, repeated

__all__ = ["KovaDQN"]


class KovaDQN(Exploring, DQN):
    """Stable-Baselines3's ``DQN``, double by default, whose Q(s, a) is tracked by a Kalman filter.

    The filter sees the innovation as it is. The Huber loss, which clips it, is used with the host's optimizer
    alone: with ``kova=None``, or for the other layers with ``layers="last"``.

    Args:
        double: Whether the online network chooses the action of the target, as in double Q-learning.
        exploration: :class:`~kova_rl.sb3.Thompson` or :class:`~kova_rl.sb3.Optimism` in place of
            epsilon-greedy; None keeps that.
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.

    ``value_distribution(obs)`` has shape (n, actions); with ``actions`` given, (n,).

    Example:
        >>> model = KovaDQN("MlpPolicy", "CartPole-v1", seed=0, buffer_size=1000).learn(200)
        >>> model.value_distribution(model.get_env().reset()).std.shape
        torch.Size([1, 2])
    """

    def __init__(
        self, *args: Any, double: bool = True, exploration: Exploration | None = None, **kwargs: Any
    ) -> None:
        self.double = double
        self.exploration = check_exploration(exploration, kwargs.get("kova", {}) is not None)
        self._draws = Draws()
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.kova is not None:
            module = self.q_net if self.kova.layers == "all" else last_linear(self.q_net)
            self._add_filter("q", module)
            check_posterior(self.exploration, self._filter_of("q"))
            release(self.policy.optimizer, module.parameters())

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        for _ in range(gradient_steps):
            assert self.replay_buffer is not None
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            check_batch(data)
            losses.append(self._learn(data, self._targets(data)))
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

    @torch.no_grad()
    def _targets(self, data: Any) -> Tensor:
        """``r + gamma Q(s', argmax_a' Q(s', a'); theta')``, N x 1; if not double, of the target's own max."""
        next_q = self.q_net_target(data.next_observations)
        if self.double:
            best = self.q_net(data.next_observations).argmax(dim=1, keepdim=True)
            next_values = next_q.gather(1, best)
        else:
            next_values = next_q.max(dim=1).values.reshape(-1, 1)
        return bootstrapped(data, next_values, self.gamma)

    def _learn(self, data: Any, targets: Tensor) -> float:
        """The host's step for what its optimizer keeps, the filter's for the rest; the loss before it."""
        actions, loss = data.actions.long(), None
        if self.kova is None or self.kova.layers == "last":
            values = self.q_net(data.observations).gather(1, actions)
            self._note("q", values, targets)
            huber = smooth_l1_loss(values, targets)
            loss = huber.item()
            self.policy.optimizer.zero_grad()
            huber.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        if self.kova is not None:
            self.q_net.zero_grad()
            self._filter(
                "q", lambda: self.q_net(data.observations).gather(1, actions).squeeze(1), targets.flatten()
            )
            loss = self._diagnostics["q"].last_loss
        assert loss is not None
        return loss

    def _on_step(self) -> None:
        super()._on_step()
        if self.exploration is not None:
            self.exploration_rate = 0.0
            self.logger.record("rollout/exploration_rate", 0.0)

    def _explore(self, obs: Any, exploration: Exploration) -> np.ndarray:
        count = int(self.action_space.n)  # type: ignore[attr-defined]
        seed = self._draws.seed(self)
        scores = exploration.scores(self.filters.q, self._all_actions(obs), seed).reshape(-1, count)
        best: np.ndarray = scores.argmax(1).cpu().numpy()
        return best

    def _all_actions(self, obs: Any) -> Any:
        """A prediction for each action of each observation, one row each."""
        count = int(self.action_space.n)  # type: ignore[attr-defined]
        rows = repeated(obs, count)

        def predict() -> Tensor:
            q: Tensor = self.q_net(rows)
            return q.gather(1, torch.arange(len(q), device=q.device).remainder(count)[:, None]).squeeze(1)

        return predict

    def _heads(self) -> Features:
        return Features(self.q_net, last_linear(self.q_net))

    def _solutions(self) -> list[Solution]:
        """Of the greedy policy: Q of the action that was taken, from Q of the best one after it."""
        data, features = replayed(self.replay_buffer, self._vec_normalize_env, self.device), self._heads()
        if data is None:
            return []
        best = self.q_net(data.next_observations).argmax(1)
        before = features.of_actions(features(data.observations), data.actions.long().flatten())
        after = features.of_actions(features(data.next_observations), best)
        return [solved_head(features, data.stream(before, after, self.gamma))]

    def _judged(self, solutions: list[Solution], obs: Any, actions: Tensor | None) -> Belief:
        features = self._heads()
        seen, count = features(obs), int(self.action_space.n)  # type: ignore[attr-defined]
        if actions is None:
            every = torch.arange(count, device=seen.device).repeat(len(seen))
            return solutions[0].belief(features.of_actions(seen.repeat_interleave(count, 0), every))
        return solutions[0].belief(features.of_actions(seen, actions.long().flatten()))

    def _belief(self, obs: Any, actions: Tensor | None) -> Belief:
        if actions is None:
            belief = self._filter_of("q").posterior(self._all_actions(obs))
            return belief.reshaped(-1, int(self.action_space.n))  # type: ignore[attr-defined]
        chosen = actions.long().reshape(-1, 1)
        return self._filter_of("q").posterior(lambda: self.q_net(obs).gather(1, chosen).squeeze(1))
