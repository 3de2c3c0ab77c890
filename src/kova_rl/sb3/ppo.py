"""PPO with a filtered critic."""

from __future__ import annotations

from typing import Any

from stable_baselines3 import PPO

from kova_rl.filter.checks import check_whole
from kova_rl.sb3.on_policy import FilteredValue

__all__ = ["KovaPPO"]


class KovaPPO(FilteredValue, PPO):
    """Stable-Baselines3's ``PPO`` whose V(s) is tracked by a Kalman filter.

    Targets are the host's GAE returns, and their noise is learned. The policy's epochs come first, then the
    filter goes through the rollout once. The paper's max-ratio noise, from the ratio of the policy as it is
    to the one that acted, is ``kova=dict(observation=MaxRatio())``.

    Args:
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.
        value: With ``kova=None``: :class:`~kova_rl.sb3.ValueLoop`, or a dict of its fields, for a critic that
            keeps the host's optimizer and has the same loop; None is the host's own.

    Raises:
        ValueError: Value clipping (``clip_range_vf``) with a loop of the critic's own, or a filter of weights
            that policy and value share.

    Example:
        >>> model = KovaPPO("MlpPolicy", "CartPole-v1", kova=dict(eta=0.05), n_steps=64, seed=0)
        >>> belief = model.learn(128).value_distribution(model.get_env().reset())
        >>> belief.mean.shape, bool(belief.std > 0)
        (torch.Size([1]), True)
    """

    def _setup_model(self) -> None:
        apart = self.kova is not None or self.value is not None
        if apart:
            check_whole("n_epochs", self.n_epochs, least=1)
        if apart and self.clip_range_vf is not None:
            raise ValueError(
                f"clip_range_vf={self.clip_range_vf!r} can't go with a critic that has a loop of its own, "
                "whose innovation is never clipped: leave it None, or pass kova=None and no value="
            )
        super()._setup_model()

    def _epochs(self) -> int:
        return self.n_epochs

    def _hosts_batch(self) -> int | None:
        return self.batch_size

    def _learn_policy(self, epochs: int) -> bool:
        made = 0

        def count(*_: Any) -> None:
            nonlocal made
            made += 1

        hook = self.policy.optimizer.register_step_post_hook(count)
        kept, self.n_epochs = self.n_epochs, epochs
        try:
            super()._learn_policy(epochs)
        finally:
            self.n_epochs = kept
            hook.remove()
        size = self.rollout_buffer.buffer_size * self.rollout_buffer.n_envs
        return made == epochs * -(-size // self.batch_size)  # fewer if target_kl stopped it
