"""ACKTR: A2C with a Kronecker-factored natural gradient, the paper's comparator."""

from __future__ import annotations

import math
from typing import Any

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from torch import Tensor

from kova_rl.baselines.kfac import KFAC
from kova_rl.filter.checks import check_positive
from kova_rl.sb3.guard import GuardedEnvironment, check_rollout
from kova_rl.sb3.saving import SafeSaving

__all__ = ["ACKTR"]


class ACKTR(GuardedEnvironment, SafeSaving, A2C):
    r"""Actor Critic using Kronecker-Factored Trust Region.

    A2C's rollouts, loss and gradient clipping, with :class:`~kova_rl.baselines.KFAC` as the optimizer. Before
    each update the Fisher factors see one sample a state from the model's own distribution,

    .. math:: a \sim \pi(\cdot | s), \quad y \sim \mathcal{N}(V(s), 1/c), \quad
        \log p(a, y | s) = \log \pi(a | s) - \tfrac{c}{2} (y - V(s))^2

    with ``c = fisher_coef``, so that the value's Fisher matrix is c times that of a unit Gaussian. Everything
    else, from ``learn`` to ``save`` and ``load``, is the host's. The defaults are the paper's table.

    Args:
        policy: ``"MlpPolicy"``, or ``"MultiInputPolicy"`` without images: convolutions have no factors.
        env: As the host's.
        learning_rate: Of KFAC, a number or a schedule of the remaining progress.
        n_steps: Steps of each environment in a rollout, which is one batch.
        gamma: Discount.
        gae_lambda: Of the advantages; 1 for the n-step return.
        ent_coef: Weight of the entropy in the loss.
        vf_coef: Weight of the value's squared error in the loss.
        max_grad_norm: Length at which the gradient is clipped, before it is made natural.
        fisher_coef: c, above 0.
        damping: As KFAC's.
        kl_clip: As KFAC's.
        momentum: As KFAC's.
        decay: As KFAC's.
        refresh: As KFAC's.
        normalize_advantage: As the host's.
        policy_kwargs: As the host's, without an optimizer.
        **host: ``verbose``, ``seed``, ``device``, ``tensorboard_log``, ``stats_window_size`` and what else
            :class:`stable_baselines3.A2C` takes, except RMSprop's settings and gSDE.

    Raises:
        ValueError: A setting out of range, a CnnPolicy, or a policy with an optimizer of its own.

    Example:
        >>> from kova_rl.sb3 import ACKTR
        >>> model = ACKTR("MlpPolicy", "CartPole-v1", n_steps=32, seed=0, device="cpu").learn(64)
        >>> bool(0 < model.policy.optimizer.info.nu <= 1)
        True

    Reference:
        Wu, Mansimov, Liao, Grosse and Ba, Scalable trust-region method for deep reinforcement learning using
        Kronecker-factored approximation, 2017.
    """

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 0.25,
        n_steps: int = 250,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        ent_coef: float = 0.01,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        fisher_coef: float = 1.0,
        damping: float = 0.01,
        kl_clip: float = 0.001,
        momentum: float = 0.9,
        decay: float = 0.99,
        refresh: int = 10,
        normalize_advantage: bool = False,
        policy_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **host: Any,
    ) -> None:
        _check(policy, policy_kwargs, host)
        check_positive("fisher_coef", fisher_coef)
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            normalize_advantage=normalize_advantage,
            policy_kwargs=policy_kwargs,
            use_rms_prop=False,
            _init_setup_model=False,
            **host,
        )
        self.fisher_coef, self.damping, self.kl_clip = fisher_coef, damping, kl_clip
        self.momentum, self.decay, self.refresh = momentum, decay, refresh
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        self.policy.optimizer = KFAC(self.policy, lr=self.lr_schedule(1), **self._settings())

    def _settings(self) -> dict[str, Any]:
        names = ("damping", "kl_clip", "momentum", "decay", "refresh")
        return {name: getattr(self, name) for name in names}

    def train(self) -> None:
        """One step on the whole rollout: the Fisher factors, then A2C's own update.

        Raises:
            NonFiniteBatch: A reward, an advantage, a return or an observation of the rollout is NaN or
                infinite, and nothing has changed; or a gradient is, and no weight has.
        """
        check_rollout(self.rollout_buffer)
        optimizer = self.policy.optimizer
        assert isinstance(optimizer, KFAC)
        optimizer.param_groups[0].update(self._settings())  # as the host does with the learning rate
        self.policy.set_training_mode(True)
        entropy = self._observe(optimizer)
        super().train()
        assert optimizer.info is not None
        self.logger.record("train/entropy", entropy)
        self.logger.record("train/kl", optimizer.info.kl)
        self.logger.record("train/nu", optimizer.info.nu)

    def _observe(self, optimizer: KFAC) -> float:
        """Show the factors one sample of the policy and of the value a state; the policy's mean entropy."""
        observations = next(iter(self.rollout_buffer.get(batch_size=None))).observations
        with torch.no_grad():  # or the Gaussian's samples would carry gradients
            actions = self.policy.get_distribution(observations).get_actions()
        with optimizer.recording():
            values, log_prob, entropy = self.policy.evaluate_actions(observations, actions)
        optimizer.observe(log_prob + self._value_log_likelihood(values.flatten()))
        return (-log_prob if entropy is None else entropy).mean().item()

    def _value_log_likelihood(self, values: Tensor) -> Tensor:
        """``-c/2 (y - V)^2`` of a sample y around the prediction."""
        samples = values.detach() + torch.randn_like(values) / math.sqrt(self.fisher_coef)
        return -0.5 * self.fisher_coef * (samples - values).square()

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "ACKTR",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> ACKTR:
        """As the host's, under its own name in TensorBoard."""
        return super().learn(
            total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
        )


def _check(policy: Any, policy_kwargs: dict[str, Any] | None, host: dict[str, Any]) -> None:
    cnn = isinstance(policy, type) and issubclass(policy, ActorCriticCnnPolicy)
    if policy == "CnnPolicy" or cnn:
        raise ValueError(
            "policy must be without convolutions, which KFAC has no factors for, got a CnnPolicy: use "
            '"MlpPolicy", which flattens images, or another algorithm'
        )
    own = {"optimizer_class", "optimizer_kwargs"} & (policy_kwargs or {}).keys()
    if own:
        raise ValueError(
            f"policy_kwargs must leave the optimizer to ACKTR, got {', '.join(sorted(own))}: use A2C"
        )
    taken = {"use_rms_prop", "rms_prop_eps", "use_sde", "sde_sample_freq"} & host.keys()
    if taken:
        raise ValueError(f"ACKTR has no {', '.join(sorted(taken))}: leave it out, or use A2C")
