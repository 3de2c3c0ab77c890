"""A filtered V(s) for the algorithms whose policy and value are one ``ActorCriticPolicy``.

The host's ``train`` stays as it is. Three seams of it are watched while it runs: the minibatch that it draws,
the log-probabilities that it computes, and the step of its optimizer, after which the filter makes its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch import Tensor, nn

from kova_rl.filter.observation import MaxRatio
from kova_rl.head import Solution
from kova_rl.head.features import Features
from kova_rl.posterior import Belief
from kova_rl.sb3.bars import Cuts, rolled_out
from kova_rl.sb3.critic import FilteredCritic, last_linear, release, solved_head
from kova_rl.sb3.guard import check_rollout
from kova_rl.sb3.value_modules import value_modules

__all__ = ["FilteredValue"]


class FilteredValue(FilteredCritic, OnPolicyAlgorithm):
    """A mixin for PPO, A2C and TRPO: V(s) is filtered, the policy keeps the host's optimizer."""

    policy: ActorCriticPolicy
    _unfiltered: list[nn.Parameter]
    """The critic's own weights that its host keeps, where the last layer alone is filtered."""
    noise_inputs = ("ratio", "weight")
    explains_variance = False

    def _setup_model(self) -> None:
        super()._setup_model()
        self._cuts = Cuts()
        if self.kova is None:
            return
        module, self._unfiltered = value_modules(self.policy, self.kova.layers)
        self._add_filter("v", module, MaxRatio())
        release(self.policy.optimizer, module)

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: Any = None) -> None:
        """Called by the host after each step of a rollout, before the step is in the buffer."""
        super()._update_info_buffer(infos, dones)
        self._cuts.note(self.rollout_buffer.pos, infos, dones)

    def train(self) -> None:
        check_rollout(self.rollout_buffer)
        if self.kova is None:
            super().train()
        else:
            with self._filtering():
                super().train()
            self._note_loss()
        loss = self.logger.name_to_value.get("train/entropy_loss")
        if loss is not None:
            self.logger.record("train/entropy", -loss)

    def _note_loss(self) -> None:
        """The host saw no error of the critic; the mean comes when the logger is dumped."""
        if self._diagnostics["v"].updated:
            self.logger.record("train/value_loss", self._diagnostics["v"].last_loss)

    @contextmanager
    def _filtering(self) -> Iterator[None]:
        """Each step of the host's optimizer is followed by one of the filter, on the same minibatch."""
        buffer, policy = self.rollout_buffer, self.policy
        draw, evaluate = buffer.get, policy.evaluate_actions
        usual = type(policy).evaluate_actions is ActorCriticPolicy.evaluate_actions
        assert self.kova is not None
        layers = self.kova.layers
        whole = usual and layers == "all"
        seen: dict[str, Any] = {}

        def get(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for minibatch in draw(*args, **kwargs):
                seen["minibatch"] = minibatch
                yield minibatch

        def evaluate_actions(obs: Any, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            if whole:  # no error for the host's loss, which is not to move the critic, nor to evaluate it
                distribution = policy.get_distribution(obs)
                values, log_prob = seen["minibatch"].returns, distribution.log_prob(actions)
                entropy = distribution.entropy()
            else:
                values, log_prob, entropy = evaluate(obs, actions)
                values = values.detach() if layers == "all" else values
            seen["log_prob"] = log_prob.detach()
            return values, log_prob, entropy

        def after(*_: Any) -> None:
            self._filter_values(seen["minibatch"], seen["log_prob"])

        hook = policy.optimizer.register_step_post_hook(after)
        buffer.get, policy.evaluate_actions = get, evaluate_actions  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            hook.remove()
            del buffer.get, policy.evaluate_actions  # the instance's; the class has its own

    def _filter_values(self, minibatch: RolloutBufferSamples, log_prob: Tensor) -> None:
        """One update of V on a minibatch, with the ratio of the new policy to the one that acted."""
        ratio = torch.exp((log_prob - minibatch.old_log_prob).clamp(-80, 80))  # finite in float32
        if self.kova is not None and self.kova.layers == "last":
            self.filters.v.zero_grad()  # of the host's loss, which reaches the head when it alone is filtered
        predict = self.policy.predict_values
        self._filter(
            "v",
            lambda: predict(minibatch.observations).flatten(),
            minibatch.returns,
            ratio=ratio,
            weight=ratio,
        )

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_unfiltered", "_cuts"]

    def _heads(self) -> Features:
        return Features(self.policy.predict_values, last_linear(self.policy.value_net))

    def _solutions(self) -> list[Solution]:
        features = self._heads()
        stream = rolled_out(self, features, self._cuts)
        return [] if stream is None else [solved_head(features, stream)]

    def _judged(self, solutions: list[Solution], obs: Any, actions: Tensor | None) -> Belief:
        return solutions[0].belief(self._heads()(obs))

    def _belief(self, obs: Any, actions: Tensor | None) -> Belief:
        if actions is not None:
            raise ValueError("this critic is V(s), which has no actions: leave them out")
        return self._filter_of("v").posterior(lambda: self.policy.predict_values(obs).flatten())
