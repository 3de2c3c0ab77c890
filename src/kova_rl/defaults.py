"""What ``Kova`` takes for the settings that it is not given. The documentation says how they were chosen."""

from __future__ import annotations

from kova_rl.filter.covariance import Covariance, Kronecker, LowRank
from kova_rl.filter.evolution import Evolution, Leakage
from kova_rl.filter.observation import Adaptive, BatchSize, Observation

__all__ = ["settle"]


def settle(
    covariance: Covariance | None,
    evolution: Evolution | None,
    observation: Observation | None,
    linear: bool = True,
    replayed: bool = False,
) -> tuple[Covariance, Evolution, Observation]:
    """Fill in what is None, so that it goes with what is given.

    The noise is learned, unless the evolution has no posterior to learn it from (``Memoryless``). A noise
    in the targets' own unit goes with a long memory; the paper's noises, which have no unit, with a short
    one, because ``eta`` is then in effect the learning rate. The prior is the paper's, ``P_0 = I``.
    ``Kronecker`` serves critics of Linear layers, for a few steps of Adam at any width; ``LowRank`` others.

    Args:
        covariance: What is kept of P.
        evolution: How P grows between updates.
        observation: How noisy the targets are.
        linear: Whether the critic is made of ``nn.Linear`` layers alone, so that ``Kronecker`` serves.
        replayed: Whether an algorithm learns control from a replay buffer, where the targets move with the
            policy and the memory is shorter.
    """
    for name, value, kind in (
        ("covariance", covariance, Covariance),
        ("evolution", evolution, Evolution),
        ("observation", observation, Observation),
    ):
        if value is not None:
            _check_kind(name, value, kind)
    if observation is None:
        observation = Adaptive() if evolution is None or evolution.tracked else BatchSize()
    if evolution is None:
        evolution = Leakage(0.1 if observation.unit_free or replayed else 0.001)
    if covariance is None:
        covariance = Kronecker() if linear and evolution.tracked else LowRank()
    return covariance, evolution, observation


def _check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        shown = f"{value.__name__}, a class: call it" if isinstance(value, type) else repr(value)
        raise ValueError(f"{name} must be one of kova_rl.{name}'s objects, got {shown}")
