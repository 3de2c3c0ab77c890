"""PPO with a filtered critic."""

from __future__ import annotations

from stable_baselines3 import PPO

from kova_rl.sb3.on_policy import FilteredValue

__all__ = ["KovaPPO"]


class KovaPPO(FilteredValue, PPO):
    """Stable-Baselines3's ``PPO`` whose V(s) is tracked by a Kalman filter.

    Targets are the host's GAE returns; the noise of a target is max-ratio, from the policy ratio of its
    minibatch. After each step of the policy's optimizer, the filter makes one on the same minibatch.

    Args:
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.

    Raises:
        ValueError: Value clipping (``clip_range_vf``) with a filter, or weights that policy and value share.

    Example:
        >>> model = KovaPPO("MlpPolicy", "CartPole-v1", kova=dict(eta=0.05), n_steps=64, seed=0)
        >>> belief = model.learn(128).value_distribution(model.get_env().reset())
        >>> belief.mean.shape, bool(belief.std > 0)
        (torch.Size([1]), True)
    """

    def _setup_model(self) -> None:
        if self.kova is not None and self.clip_range_vf is not None:
            raise ValueError(
                f"clip_range_vf={self.clip_range_vf!r} can't go with a filtered critic, whose innovation is "
                "never clipped: leave it None, or pass kova=None"
            )
        super()._setup_model()
