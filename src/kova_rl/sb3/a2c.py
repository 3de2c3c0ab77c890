"""A2C, which is A3C without its asynchrony, with a filtered critic."""

from __future__ import annotations

from stable_baselines3 import A2C

from kova_rl.sb3.on_policy import FilteredValue

__all__ = ["KovaA2C"]


class KovaA2C(FilteredValue, A2C):
    """Stable-Baselines3's ``A2C`` whose V(s) is tracked by a Kalman filter.

    Targets are the host's k-step returns. A rollout is learned from once, so the policy ratio is 1 and
    max-ratio noise is batch-size noise.

    Args:
        kova: :class:`~kova_rl.sb3.KovaSettings`, or a dict of their fields; None keeps the host's optimizer.
            All other arguments are the host's.

    Example:
        >>> model = KovaA2C("MlpPolicy", "CartPole-v1", seed=0).learn(100)
        >>> model.value_distribution(model.get_env().reset()).std.shape
        torch.Size([1])
    """
