"""A filtered V(s) for the algorithms whose policy and value are one ``ActorCriticPolicy``.

The critic has a loop of its own beside the host's ``train``, which is called for the policy and left as it
is: while it runs, the critic's weights are frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import update_learning_rate
from torch import Tensor, nn

from kova_rl.filter.checks import check_real
from kova_rl.head import Solution
from kova_rl.head.features import Features
from kova_rl.info import StepInfo
from kova_rl.posterior import Belief
from kova_rl.sb3.apart import Apart, as_the_host_draws, frozen
from kova_rl.sb3.bars import rolled_out
from kova_rl.sb3.collected import Cuts, ratio_of
from kova_rl.sb3.critic import FilteredCritic, last_linear, release, solved_head
from kova_rl.sb3.guard import check_rollout
from kova_rl.sb3.value_modules import value_modules
from kova_rl.value_loop import PASSES, Learner, ValueLoop

__all__ = ["FilteredValue"]


class FilteredValue(FilteredCritic, OnPolicyAlgorithm):
    """A mixin for PPO, A2C and TRPO: V(s) is filtered, the policy keeps the host's optimizer."""

    policy: ActorCriticPolicy
    value: ValueLoop | None
    """What was given as ``value=``: the loop of a critic that keeps the host's optimizer."""
    loop: ValueLoop | None
    """The critic's loop, ``kova`` or ``value``; None if the critic learns in the host's."""
    passes: int
    """How often the critic goes through a rollout."""
    value_optimizer: torch.optim.Optimizer | None
    """The host's kind of optimizer for what of the critic is not filtered; None if there is nothing."""
    use = "rollouts"
    noise_inputs = ("ratio", "weight")
    explains_variance = False
    loops = True

    def __init__(self, *args: Any, value: ValueLoop | Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.value = ValueLoop.of(value)
        self.loop, self.value_optimizer, self.passes = None, None, 0
        self._own: list[nn.Parameter] = []
        self._unfiltered: list[nn.Parameter] = []
        self._cuts = Cuts()
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        self.value = ValueLoop.of(self.value)  # load may have been given a dict
        if self.kova is not None and self.value is not None:
            raise ValueError(
                f"value={self.value!r} is for kova=None: with a filter the same settings are kova's, "
                "kova=dict(value_passes=...)"
            )
        self.loop = self.value if self.kova is None else self.kova
        if self.loop is None:
            return
        layers = "none" if self.kova is None else self.kova.layers
        module, self._unfiltered = value_modules(self.policy, layers)
        if module is not None:
            self._add_filter("v", module)
        filtered = [] if module is None else [p for p in module.parameters() if p.requires_grad]
        self._own = [*filtered, *self._unfiltered]
        release(self.policy.optimizer, self._own)
        self._add_optimizer(self.loop.value_lr)
        if self.loop.head is not None:
            self._check_head()
        hosts = self.kova is None or bool(self._unfiltered) or not self._filter_of("v").tracked
        self.passes = int(self.loop.value_passes or (self._hosts_passes() if hosts else PASSES))
        self._check_loop(self.loop)

    def _check_loop(self, loop: ValueLoop) -> None:
        """Raise ``ValueError`` for what the host's arguments make of the loop, which the host does not."""
        check_real("gae_lambda", self.gae_lambda, "a number in [0, 1]", True)  # a number at all
        check_real("gae_lambda", self.gae_lambda, "a number in [0, 1]", 0 <= self.gae_lambda <= 1)
        if self.passes < 1:
            raise ValueError(
                f"the critic would go through a rollout {self.passes} times, as the host's arguments say "
                "(n_critic_updates): it must be at least once, or pass value_passes"
            )
        once = self.passes == self._epochs() == 1
        if loop.recompute == "each" and once and not loop.value_first:
            raise ValueError(
                "recompute='each' has nothing to compute anew: the critic goes through a rollout once, after "
                "the policy has. Pass value_first=True, or value_passes above 1"
            )

    def _add_optimizer(self, rate: float | None) -> None:
        """The host's kind of optimizer, for what of the critic is not filtered."""
        if not self._unfiltered:
            if rate is not None:
                raise ValueError(
                    f"value_lr={rate} is a rate of the host's optimizer, which has nothing of this critic: "
                    "leave it out, or pass kova=None and value=dict(value_lr=...)"
                )
            return
        kind: Any = self.policy.optimizer_class
        start = self.lr_schedule(1) if rate is None else rate
        self.value_optimizer = kind(self._unfiltered, lr=start, **self.policy.optimizer_kwargs)

    def _check_head(self) -> None:
        """Raise ``ValueError`` for a critic whose last layer can't be solved."""
        self.policy.set_training_mode(False)
        try:
            observation = copy.deepcopy(self.observation_space).sample()  # and its random numbers stay
            self._heads()(self.policy.obs_to_tensor(observation)[0])
        except (AttributeError, ValueError) as error:
            raise ValueError(f"head needs a critic that ends in an nn.Linear: {error}") from None

    # ------------------------------------------------------------------ learning

    def collect_rollouts(
        self, env: Any, callback: Any, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        self._cuts = Cuts()
        return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: Any = None) -> None:
        super()._update_info_buffer(infos, dones)
        if dones is not None and np.any(dones):
            self._cuts.add(self.rollout_buffer.pos, infos, dones)

    def train(self) -> None:
        check_rollout(self.rollout_buffer)
        if self.loop is None:
            super().train()
        else:
            if self.value_optimizer is not None:
                if self.loop.value_lr is None:
                    self._update_learning_rate(self.value_optimizer)
                else:  # the optimizer's state may be of a file with another
                    update_learning_rate(self.value_optimizer, self.loop.value_lr)
            Apart(self, self._permute()).learn()
            if self._diagnostics["v"].updated:  # the mean comes when the logger is dumped
                self.logger.record("train/value_loss", self._diagnostics["v"].last_loss)
        loss = self.logger.name_to_value.get("train/entropy_loss")
        if loss is not None:
            self.logger.record("train/entropy", -loss)

    def _learn_policy(self, epochs: int) -> bool:
        """So many epochs of the host's; gives whether it would go on."""
        with frozen(self._own):
            super().train()
        return True

    def _learner(self) -> Learner:
        kova = None if self.kova is None else self._filter_of("v")
        own = (self.value_optimizer, self._unfiltered, self.vf_coef, self.max_grad_norm)
        return Learner(self.policy.predict_values, kova, *own)

    def _noted(self, innovation: Tensor, targets: Tensor, info: StepInfo | None) -> None:
        """One step of the critic, for the logger."""
        if info is None:
            self._note("v", targets - innovation, targets)
        else:
            self._diagnostics["v"].add(info, targets)

    def _permute(self) -> Callable[[int], NDArray[Any]]:
        """Where the critic's minibatches get their order from."""
        return as_the_host_draws()

    def _ratio(self, observations: Any) -> Tensor:
        """Of the policy as it is to the one that acted."""
        return ratio_of(self, observations)

    def _epochs(self) -> int:
        """How often the policy goes through a rollout."""
        return 1

    def _hosts_passes(self) -> int:
        """How often the host's critic goes through a rollout."""
        return self._epochs()

    def _hosts_batch(self) -> int | None:
        """Samples in a minibatch of the host's; None for all."""
        return None

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, variables = super()._get_torch_save_params()
        return [*modules, *(["value_optimizer"] if self.value_optimizer is not None else [])], variables

    def _excluded_save_params(self) -> list[str]:
        ours = ("_unfiltered", "_own", "_cuts", "value_optimizer", "loop", "passes")
        return [*super()._excluded_save_params(), *ours]

    # ------------------------------------------------------------------ believing

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
