"""The filter on the weights of a module: one step, what it believes, a draw. Its memory is kept elsewhere."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kova_rl.batch import (
    check_look,
    check_noise_inputs,
    check_replays,
    innovation_of,
    refuse_if_not_finite,
    warn_of_scales,
)
from kova_rl.errors import KovaError, NonFiniteBatch
from kova_rl.filter.checks import FLOATS, check_lr
from kova_rl.filter.compatibility import check_pair
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.isotropic import Isotropic
from kova_rl.filter.evidence import Evidence, Noise, Workspace
from kova_rl.filter.evolution import Evolution
from kova_rl.filter.observation import Observation
from kova_rl.filter.step import Update
from kova_rl.filter.windup import guarded
from kova_rl.jacobian import JacobianOf, Predict
from kova_rl.parameters import Parameters
from kova_rl.posterior import Belief, joint_covariance
from kova_rl.price import warn_if_dear
from kova_rl.state import identity

Memory = dict[str, Any]

SCALE_DECAY = 0.99
"""Of the running mean of the normalised innovation squared, which gives std its unit."""


class Tracker:
    """The weights of a module, and what tracks them. Each method is given the memory that it works on.

    Raises:
        ValueError: A module, a covariance and an evolution that do not go together.
    """

    def __init__(
        self, module: nn.Module, covariance: Covariance, evolution: Evolution, observation: Observation
    ) -> None:
        self.evolution, self.observation = evolution, observation
        self.parameters = Parameters(module, covariance.prior)
        check_pair(covariance, evolution, self.parameters.segments)
        self.dtype = _filter_dtype(covariance, self.parameters)
        self.jacobian = JacobianOf(module, self.parameters)
        self.structure = Isotropic.or_else(covariance, evolution.kind)
        if self.structure.factored and not self.jacobian.may_factor:
            raise ValueError(
                f"{type(covariance).__name__} needs a critic whose trainable parameters all belong to "
                f"nn.Linear layers, none of them shared, and those of {type(module).__name__} do not: use "
                "covariance.LowRank"
            )
        self._workspace = Workspace()

    # ------------------------------------------------------------------ memory

    def init(self) -> Memory:
        """What there is to remember before the first step."""
        like = self._like()
        return {
            "step": 0,
            "jitters": 0,
            "nis": 0.0,
            "covariance": self._prior_state(),
            "evolution": self.evolution.init(like),
            "observation": self.observation.init(like),
        }

    def _prior_state(self) -> Memory:
        """What the structure keeps of ``P = P_0``."""
        return self.structure.init(self.parameters.segments, self._like(), self.evolution.kind)

    def _like(self) -> Tensor:
        """An empty tensor with the filter's dtype, on the device of the weights."""
        return self.parameters.tensors[0].new_empty(0, dtype=self.dtype)

    def identity(self) -> dict[str, Any]:
        """What must agree for the numbers of a memory to mean the same."""
        return identity(self.parameters, self.structure, self.evolution, self.observation)

    def unit(self, memory: Memory) -> float:
        """The factor s that gives the covariance the unit of the targets squared."""
        if not self.observation.unit_free or memory["step"] == 0:
            return 1.0
        return _mean_nis(memory)

    # ------------------------------------------------------------------ learning

    def step(
        self,
        memory: Memory,
        lr: float,
        predict: Predict,
        targets: Tensor,
        look: tuple[int, int],
        replays: float,
        noise_inputs: dict[str, Tensor],
    ) -> tuple[Tensor, float, Tensor, float]:
        """One prediction and update: innovation, its normalised square, change of the weights, and jitter.

        Whatever it raises, neither the weights nor the memory have changed.
        """
        first, looks = check_look(look) if self.structure.tracked else (True, 1)
        repeats = looks * (1.0 if self.observation.unit_free else check_replays(replays))
        if not 0.0 <= lr <= 1.0:
            check_lr(lr, allow_zero=True)
        check_noise_inputs(self.observation, noise_inputs)

        predictions, jacobian = self.jacobian(predict, self.dtype)
        innovation = innovation_of(targets, predictions, self.dtype)
        noise = Noise(self.observation.covariance(memory["observation"], innovation, noise_inputs))
        if repeats > 1:
            noise = Noise(noise.covariance * repeats)
        evidence = Evidence(jacobian, innovation, noise, memory["step"], self._workspace)
        try:
            update = self._updated(memory, evidence, lr, first, looks)
        except KovaError:
            refuse_if_not_finite(targets, predictions, memory["step"])  # then it was the batch's fault
            raise
        nis = update.nis
        if not math.isfinite(nis):
            refuse_if_not_finite(targets, predictions, memory["step"])
            raise NonFiniteBatch(
                f"step {memory['step']}: the normalised innovation overflows (its square is {nis}). Nothing "
                "was changed. Normalise the inputs and the targets of the critic."
            )

        if memory["step"] == 0:
            warn_of_scales(innovation, jacobian, self.observation.unit_free)
            linear, segments = self.jacobian.may_factor, self.parameters.segments
            warn_if_dear(self.structure, segments, len(innovation), linear, stacklevel=6)
        if repeats > 1:
            nis = noise.one_look(nis, update.predicted_variance(), repeats)
        if first and self.observation.learns:
            expected = update.predicted_variance()
            self.observation.observe(memory["observation"], innovation, expected, jacobian.gram)
        update.commit()
        self.parameters.add_(update.delta)
        if first:
            self.evolution.observe(memory["evolution"], nis)
        seen = nis if first or memory["step"] == 0 else _mean_nis(memory)
        memory["nis"] += (1 - SCALE_DECAY) * (seen - memory["nis"])
        memory["step"] += 1
        memory["jitters"] += update.jitter > 0.0
        return innovation, nis, update.delta, update.jitter

    def _updated(self, memory: Memory, evidence: Evidence, lr: float, first: bool, looks: int) -> Update:
        """The update of the covariance that is kept, or of a fresh one if it has wound up."""
        state = memory["covariance"]
        change = self.evolution.change(memory["evolution"])
        if looks > 1:
            change = change.part(looks)
        if first:
            change = change.opened(self.observation.valid(memory["observation"]))

        def update() -> Update:
            return self.structure.step(state, change, evidence, lr)

        if self.evolution.windup == "ignore":
            return update()

        def afresh() -> Update:
            fresh = self._prior_state()
            made = self.structure.step(fresh, change, evidence, lr)

            def commit() -> None:
                made.commit()
                state.update(fresh)

            return made._replace(commit=commit)

        def variances() -> Tensor:
            return self.structure.variances(state)

        return guarded(self.evolution, change, variances, evidence.step, update, afresh)

    # ------------------------------------------------------------------ believing

    def belief(self, memory: Memory, predict: Predict) -> Belief:
        """Of the predictions, in the unit of the targets."""
        predictions, jacobian = self.jacobian(predict, self.dtype, once=True)
        variances, product = self.structure.spread(memory["covariance"], jacobian)
        scale = self.unit(memory)
        std = variances.clamp_(min=0.0).mul_(scale).sqrt_().to(predictions.dtype)
        joint = partial(joint_covariance, product, scale, predictions.dtype)
        return Belief(predictions, std, joint, self.structure.tracked)

    def draw(self, memory: Memory, generator: torch.Generator | None) -> Tensor:
        """A draw of the weights less their mean, whitened."""
        if not self.structure.tracked:
            raise KovaError(
                f"{type(self.evolution).__name__} keeps no posterior to draw weights from: use a tracked "
                "evolution, such as evolution.Leakage with covariance.LowRank"
            )
        device = self.parameters.tensors[0].device
        source = device if generator is None else generator.device
        size = len(self.parameters)
        normal = torch.randn(size, generator=generator, dtype=self.dtype, device=source).to(device)
        whitened: Tensor = self.structure.draw(memory["covariance"], normal) * self.unit(memory) ** 0.5
        return whitened

    def variances(self, memory: Memory) -> Tensor:
        """Of each weight, in its own unit."""
        whitened = self.structure.variances(memory["covariance"])
        root = self.parameters.root(self._like())
        return root.square() * whitened.to(root)


def _mean_nis(memory: Memory) -> float:
    return float(memory["nis"] / (1 - SCALE_DECAY ** memory["step"]))


def _filter_dtype(covariance: Covariance, parameters: Parameters) -> torch.dtype:
    """The dtype that the filter computes in; it stays so if the module's changes."""
    dtype = covariance.dtype or parameters.tensors[0].dtype
    if dtype not in FLOATS:
        raise ValueError(
            f"the weights are {dtype}, which the filter can't compute in: pass "
            "dtype=torch.float32 to the covariance"
        )
    return dtype
