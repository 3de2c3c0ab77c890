"""What ``Kova`` takes for the settings that it is not given. The documentation says how they were chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from kova_rl.filter.covariance import Covariance, FanIn, Kronecker, LowRank
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution, Leakage
from kova_rl.filter.observation import Adaptive, BatchSize, MaxRatio, Observation

__all__ = ["USES", "Use", "settle"]

SHORT_MEMORY = 0.1
"""eta where a noise has no unit: it is then in effect the learning rate."""


@dataclass(frozen=True)
class Use:
    """What a critic learns from, and what its filter has by default because of it."""

    noise: Observation = field(default_factory=Adaptive)
    """Of a tracked filter."""
    untracked: Observation = field(default_factory=BatchSize)
    """Of ``Memoryless``, which has no posterior to learn a noise from."""
    eta: float = 0.001
    """With a noise in the targets' unit."""
    prior: Prior = 1.0
    """Likewise."""

    def observation(self, tracked: bool) -> Observation:
        """The noise of a filter that is tracked, or is not."""
        return self.noise if tracked else self.untracked


USES = {
    "batches": Use(),
    "replay": Use(eta=0.1),
    "rollouts": Use(eta=0.01, prior=FanIn(), untracked=MaxRatio()),
    "steps": Use(noise=MaxRatio(), untracked=MaxRatio()),
}
"""Batches that a user's own loop gives it; a replay buffer, where the targets move with the policy; rollouts
of many batches, as of PPO; and rollouts of a few steps, as of A2C."""


def settle(
    covariance: Covariance | None,
    evolution: Evolution | None,
    observation: Observation | None,
    linear: bool = True,
    use: str = "batches",
) -> tuple[Covariance, Evolution, Observation]:
    """Fill in what is None, so that it goes with what is given.

    The noise is learned, unless the evolution has no posterior to learn it from (``Memoryless``). A noise
    in the targets' own unit goes with a long memory; the paper's noises, which have no unit, with a short
    one, because ``eta`` is then in effect the learning rate. The prior is the paper's, ``P_0 = I``, but for a
    learned noise and rollouts, where it is that of the fan-in. ``Kronecker`` serves critics of Linear layers,
    for a few steps of Adam at any width; ``LowRank`` others.

    Args:
        covariance: What is kept of P.
        evolution: How P grows between updates.
        observation: How noisy the targets are.
        linear: Whether the critic is made of ``nn.Linear`` layers alone, so that ``Kronecker`` serves.
        use: What the critic learns from, one of ``USES``.
    """
    default = USES[use]
    for name, value, kind in (
        ("covariance", covariance, Covariance),
        ("evolution", evolution, Evolution),
        ("observation", observation, Observation),
    ):
        if value is not None:
            _check_kind(name, value, kind)
    if observation is None:
        observation = default.observation(evolution is None or evolution.tracked)
    if evolution is None:
        evolution = Leakage(SHORT_MEMORY if observation.unit_free else default.eta)
    if covariance is None:
        prior = 1.0 if observation.unit_free else default.prior
        covariance = Kronecker(prior) if linear and evolution.tracked else LowRank(prior=prior)
    return covariance, evolution, observation


def _check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        shown = f"{value.__name__}, a class: call it" if isinstance(value, type) else repr(value)
        raise ValueError(f"{name} must be one of kova_rl.{name}'s objects, got {shown}")
