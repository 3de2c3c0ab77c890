r"""Evolution noise ``P_v``: how the covariance grows between updates, ``P -> P-``.

Coordinates are whitened, so that the prior ``P_0`` is the identity. ``eta`` is the share of the past
that a step forgets: about ``1/eta`` batches are remembered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeVar

import torch
from torch import Tensor

from kova_rl.errors import CovarianceWindup, NotPositiveDefinite
from kova_rl.filter import step as steps
from kova_rl.filter.checks import check_choice, check_eta, check_positive, check_real
from kova_rl.filter.covariance import BlockDiagonal, Covariance, Isotropic
from kova_rl.filter.evidence import Evidence
from kova_rl.filter.step import State, Update

__all__ = [
    "DirectionalForgetting",
    "Evolution",
    "FadingMemory",
    "Leakage",
    "Memoryless",
    "PriorAnchored",
    "RandomWalk",
    "Stationary",
    "VariableLeakage",
]

WINDUP_LIMIT = {torch.float32: 1e6, torch.float64: 1e12}
"""The largest variance, in units of the prior's, that the unbounded evolutions may reach."""

OnWindup = Literal["raise", "reset", "ignore"]
ON_WINDUP = ("raise", "reset", "ignore")

T = TypeVar("T")


class Evolution(ABC):
    """How the covariance grows between two updates. A setting without state, as structures are."""

    def applied_to(self, structure: Covariance) -> Covariance:
        """The structure that is really kept; only ``Memoryless`` keeps another."""
        return structure

    def init(self, like: Tensor) -> State:
        """What the evolution itself remembers; most remember nothing."""
        return {}

    @abstractmethod
    def step(
        self, structure: Covariance, state: State, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        """Predict and update a structure that keeps P."""

    def leak(self, memory: State) -> float:
        """The eta of ``P-^-1 = (1-eta) P^-1 + eta I``, for structures that keep ``P^-1``."""
        raise TypeError(f"{type(self).__name__} is not a leakage of the information")

    def observe(self, memory: State, nis: float) -> None:  # noqa: B027 - most learn nothing
        """Learn from the normalised innovation squared of the update just made."""

    def guard(
        self, variances: Callable[[], Tensor], step: int, update: Callable[[], T], afresh: Callable[[], T]
    ) -> T:
        """``update()``; or, where P can wind up and has, an error or ``afresh()``, which starts from P_0."""
        return update()


def replacing(state: State, other: State, update: Update) -> Update:
    """An update of ``other`` that, when it is made, takes the place of ``state``."""

    def commit() -> None:
        update.commit()
        state.update(other)

    return update._replace(commit=commit)


@dataclass(frozen=True)
class Leakage(Evolution):
    r"""Fading memory in the information, held up by the prior:

    .. math:: (P^-)^{-1} = (1-\eta) P^{-1} + \eta P_0^{-1}.

    ``P <= P_0`` always. Costs nothing where the inverse is kept (LowRank) or diagonal; a batched
    solve for NeuronBlocks; an inversion for Full and LayerBlocks, so only small ones are allowed.

    Args:
        eta: Share of the information that a step forgets, in [0, 1).
    """

    eta: float = 0.01

    def __post_init__(self) -> None:
        check_eta(self.eta)

    def leak(self, memory: State) -> float:
        return self.eta

    def step(
        self, structure: Covariance, state: State, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        assert isinstance(structure, BlockDiagonal)
        eta = self.leak(memory)
        if eta == 0.0:
            return steps.affine(structure, state, evidence, lr)
        leaked = structure.leaked(state, eta, evidence.step)
        return replacing(state, leaked, steps.affine(structure, leaked, evidence, lr))


@dataclass(frozen=True)
class VariableLeakage(Leakage):
    r"""Leakage that forgets faster while the innovations are larger than they were.

    Keeps a quick and a slow running mean of the normalised innovation squared, and leaks

    .. math:: \eta_t = \min(\eta_{\max}, \eta \rho^{p}), \quad
        \rho = \max(1, \text{quick} / \text{slow}).

    A ratio of two means of the same quantity has no unit, so that it works with every observation
    noise. In a steady state it is ``Leakage(eta)``; after a change it opens up, then closes.

    Args:
        eta: What a step forgets in a steady state, in [0, 1).
        eta_max: What it forgets at most, in [eta, 1).
        power: p, how strongly a surprise counts.
    """

    eta: float = 0.001
    eta_max: float = 0.3
    power: float = 2.0

    QUICK = 0.9
    SLOW = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real(
            "eta_max", self.eta_max, f"a number in [eta = {self.eta}, 1)", self.eta <= self.eta_max < 1
        )
        check_positive("power", self.power)

    def init(self, like: Tensor) -> State:
        return {"quick": 0.0, "slow": 0.0, "count": 0}

    def leak(self, memory: State) -> float:
        if memory["slow"] <= 0.0:
            return self.eta
        quick = memory["quick"] / (1 - self.QUICK ** memory["count"])
        slow = memory["slow"] / (1 - self.SLOW ** memory["count"])
        return float(min(self.eta_max, self.eta * max(1.0, quick / slow) ** self.power))

    def observe(self, memory: State, nis: float) -> None:
        memory["quick"] = self.QUICK * memory["quick"] + (1 - self.QUICK) * nis
        memory["slow"] = self.SLOW * memory["slow"] + (1 - self.SLOW) * nis
        memory["count"] += 1


@dataclass(frozen=True)
class Stationary(Evolution):
    """``P- = P``: exact Bayesian regression for a linear model. Stops learning as 1/t."""

    def leak(self, memory: State) -> float:
        return 0.0

    def step(
        self, structure: Covariance, state: State, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        assert isinstance(structure, BlockDiagonal)
        return steps.affine(structure, state, evidence, lr)


@dataclass(frozen=True)
class PriorAnchored(Evolution):
    r"""``P- = (1-eta) P + eta P_0``: forgets towards the prior. ``eta P_0 <= P- <= P_0`` always.

    Args:
        eta: Share of the way to the prior, in [0, 1).
    """

    eta: float = 0.01

    def __post_init__(self) -> None:
        check_eta(self.eta)

    def step(
        self, structure: Covariance, state: State, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        assert isinstance(structure, BlockDiagonal)
        return steps.affine(structure, state, evidence, lr, scale=1 - self.eta, shift=self.eta)


@dataclass(frozen=True)
class Memoryless(Evolution):
    r"""``P- = P_0/(1-eta)`` at every step: the authors' released code, which never carries P.

    A damped Gauss-Newton step, ``K = c H (c H'H + P_n)^-1`` with ``c = p_0/(1-eta)``. Works with
    every structure and allocates no covariance, so that it costs about as much as Adam; but it has
    no posterior, and so no error bars beyond the prior's.

    Args:
        eta: Only scales the prior, by 1/(1-eta); in [0, 1).
    """

    eta: float = 0.01

    def __post_init__(self) -> None:
        check_eta(self.eta)

    def applied_to(self, structure: Covariance) -> Covariance:
        return Isotropic(structure.prior, structure.dtype)

    def step(
        self, structure: Covariance, state: State, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        return steps.isotropic(evidence, lr, 1 / (1 - self.eta))


class _Unbounded(Evolution):
    """Evolutions that can wind up, and the guard that stops them."""

    on_windup: OnWindup

    @abstractmethod
    def _grown(self, variance: float) -> float:
        """The largest variance after the prediction, given that before it."""

    @abstractmethod
    def _step(self, structure: BlockDiagonal, state: State, evidence: Evidence, lr: float) -> Update: ...

    def guard(
        self, variances: Callable[[], Tensor], step: int, update: Callable[[], T], afresh: Callable[[], T]
    ) -> T:
        if self.on_windup == "ignore":
            return update()
        found = variances()
        limit = WINDUP_LIMIT[found.dtype]
        lowest, highest = (float(x) for x in torch.aminmax(found))
        if lowest > 0.0 and self._grown(highest) <= limit:
            try:
                return update()
            except NotPositiveDefinite:
                if highest < limit**0.5:
                    raise  # whatever it is, it is not wind-up
        if self.on_windup == "raise":
            self._raise(step, self._grown(highest), limit)
        return afresh()

    def step(
        self, structure: Covariance, state: State, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        assert isinstance(structure, BlockDiagonal)

        def update() -> Update:
            return self._step(structure, state, evidence, lr)

        def afresh() -> Update:
            fresh = {key: value.clone() for key, value in state.items()}
            structure.reset(fresh)
            return replacing(state, fresh, self._step(structure, fresh, evidence, lr))

        return self.guard(lambda: structure.variances(state), evidence.step, update, afresh)

    def _raise(self, step: int, variance: float, limit: float) -> NoReturn:
        raise CovarianceWindup(
            f"step {step}: {self} has wound up. The largest variance is {variance:.3g} times the "
            f"prior's (limit {limit:.0e}), because nothing bounds it in directions that the batches "
            "do not excite. Nothing was changed. Use evolution.Leakage (with LowRank), "
            "PriorAnchored or DirectionalForgetting, which stay below the prior, or "
            "on_windup='reset' to start again from it."
        )


@dataclass(frozen=True)
class FadingMemory(_Unbounded):
    r"""``P- = P/(1-eta)``: the paper's Algorithm 1, with a guard, because it diverges.

    P grows without bound in every direction that the batches do not excite (walls, dead units). When
    the largest variance exceeds 1e6 times the prior's (1e12 in float64), it raises
    :class:`~kova_rl.CovarianceWindup` or goes back to the prior.

    Args:
        eta: Share of the past that a step forgets, in [0, 1).
        on_windup: ``"raise"``; ``"reset"``; or ``"ignore"``, the algorithm as printed, without the guard:
            P then grows until it loses positive definiteness or overflows.
    """

    eta: float = 0.01
    on_windup: OnWindup = "raise"

    def __post_init__(self) -> None:
        check_eta(self.eta)
        check_choice("on_windup", self.on_windup, ON_WINDUP)

    def _grown(self, variance: float) -> float:
        return variance / (1 - self.eta)

    def _step(self, structure: BlockDiagonal, state: State, evidence: Evidence, lr: float) -> Update:
        return steps.affine(structure, state, evidence, lr, scale=1 / (1 - self.eta))


@dataclass(frozen=True)
class RandomWalk(_Unbounded):
    """``P- = P + q P_0``: weights that drift. Not bounded; the same guard as ``FadingMemory``.

    Args:
        q: Variance added at each step, in units of the prior's, at least 0.
        on_windup: ``"raise"``, ``"reset"`` or ``"ignore"``, as for ``FadingMemory``.
    """

    q: float = 1e-4
    on_windup: OnWindup = "raise"

    def __post_init__(self) -> None:
        check_real("q", self.q, "a number, at least 0", isinstance(self.q, int | float) and self.q >= 0)
        check_choice("on_windup", self.on_windup, ON_WINDUP)

    def _grown(self, variance: float) -> float:
        return variance + self.q

    def _step(self, structure: BlockDiagonal, state: State, evidence: Evidence, lr: float) -> Update:
        return steps.affine(structure, state, evidence, lr, shift=self.q)


@dataclass(frozen=True)
class DirectionalForgetting(_Unbounded):
    r"""Inflates only the directions that the batch observes, and leaves the others alone.

    With eigenpairs ``(l_i, v_i)`` of ``L_n^-1 H'P H L_n^-T`` (``P_n = L_n L_n'``), direction i is
    inflated by ``1/(1 - eta_i)``.

    ``bounded=True``: ``eta_i = min(eta, alpha l_i/(1 + l_i))``, so that no direction ends larger than
    it began, and ``P <= P_0`` for any noise and step size. The price: P never grows again, and in a
    direction that is observed at every step its variance falls as ``t^-1/2``, where ``Stationary``
    falls as ``1/t``. It follows changes for a long time, not forever.

    ``bounded=False``: ``eta_i = eta``, which has FadingMemory's gain exactly, but a faintly excited
    direction grows until ``h'P h = eta r`` however small h is, so it carries the same guard.

    Args:
        eta: Share of the past that a step forgets in observed directions, in [0, 1).
        bounded: See above.
        on_windup: ``"raise"``, ``"reset"`` or ``"ignore"``, for ``bounded=False``, as for ``FadingMemory``.
    """

    eta: float = 0.01
    bounded: bool = True
    on_windup: OnWindup = "raise"

    def __post_init__(self) -> None:
        check_eta(self.eta)
        check_choice("bounded", self.bounded, (True, False))
        check_choice("on_windup", self.on_windup, ON_WINDUP)

    def _grown(self, variance: float) -> float:
        return variance

    def guard(
        self, variances: Callable[[], Tensor], step: int, update: Callable[[], T], afresh: Callable[[], T]
    ) -> T:
        return update() if self.bounded else super().guard(variances, step, update, afresh)

    def _step(self, structure: BlockDiagonal, state: State, evidence: Evidence, lr: float) -> Update:
        return steps.directional(structure, state, evidence, lr, self.eta, self.bounded)
