"""What ``Kova`` takes for the settings that it is not given. The documentation says how they were chosen."""

from __future__ import annotations

from kova_rl.filter.covariance import Covariance, FanIn, Kronecker, LowRank
from kova_rl.filter.evolution import Evolution, Leakage
from kova_rl.filter.observation import Adaptive, BatchSize, MaxRatio, Observation

__all__ = ["settle"]


def settle(
    covariance: Covariance | None,
    evolution: Evolution | None,
    observation: Observation | None,
    linear: bool = True,
    on_policy: bool = False,
) -> tuple[Covariance, Evolution, Observation]:
    """Fill in what is None, so that it goes with what is given.

    The noise is learned, unless the evolution has no posterior to learn it from (``Memoryless``). A noise
    in the targets' own unit goes with a long memory; the paper's noises, which have no unit, with a short
    one, because ``eta`` is then in effect the learning rate, and with the paper's prior, ``P_0 = I``.
    ``Kronecker`` serves critics of Linear layers, for a few steps of Adam at any width; ``LowRank`` others.

    Args:
        covariance: What is kept of P.
        evolution: How P grows between updates.
        observation: How noisy the targets are.
        linear: Whether the critic is made of ``nn.Linear`` layers alone, so that ``Kronecker`` serves.
        on_policy: Whether each rollout is passed over several times. A noise learned from samples that are
            fitted already would be too small, so that it is ``MaxRatio``; the prior is the fan-in's.
    """
    for name, value, kind in (
        ("covariance", covariance, Covariance),
        ("evolution", evolution, Evolution),
        ("observation", observation, Observation),
    ):
        if value is not None:
            _check_kind(name, value, kind)
    if observation is None:
        learned = Adaptive() if evolution is None or evolution.tracked else BatchSize()
        observation = MaxRatio() if on_policy else learned
    if evolution is None:
        evolution = Leakage(0.1 if observation.unit_free else 0.001)
    if covariance is None:
        scaled = evolution.tracked and (on_policy or (linear and not observation.unit_free))
        prior = FanIn() if scaled else 1.0
        covariance = Kronecker(prior) if linear and evolution.tracked else LowRank(prior=prior)
    return covariance, evolution, observation


def _check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        shown = f"{value.__name__}, a class: call it" if isinstance(value, type) else repr(value)
        raise ValueError(f"{name} must be one of kova_rl.{name}'s objects, got {shown}")
