"""Checks of a batch, made before the filter sees it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from numbers import Integral
from typing import NoReturn

import torch
from torch import Tensor, nn

from kova_rl.errors import InvalidBatch, KovaError, NonFiniteBatch
from kova_rl.filter.evidence import Jacobian
from kova_rl.filter.observation import Observation
from kova_rl.linear import LinearJacobian

UNNORMALISED = 100.0
"""``h'P_0 h`` of the first batch above this, in units of N, is a sign of a prior that is too bold."""

LARGE = 100.0
"""Innovations whose mean square exceeds so many ``h'P_0 h`` are larger than the prior can explain soon."""
LARGE_WITHOUT_UNIT = 1e4
"""The same for a noise without a unit. For a linear model the unit is then nothing, but a network bends."""

INPUTS = (1e-2, 30.0)
"""The least norm of a critic's inputs, and their largest root mean square, that are of order 1."""

SLOW = 0.005
"""An ``lr`` up to here is taken for another optimizer's."""


def refuse_call(predict: object, targets: object) -> NoReturn:
    """Say what ``step`` has to be called with, to someone who called it as another optimizer's."""
    call = "step(lambda: critic(obs).squeeze(-1), targets)"
    if predict is None and targets is None:
        raise InvalidBatch(
            f"step() needs the predictions and their targets: {call}. Kova computes the gradients itself: "
            "leave out zero_grad(), loss.backward() and a GradScaler"
        )
    refuse_unless_function(predict, call)
    raise InvalidBatch(
        f"targets are missing: {call}. The closure returns the predictions, and not the loss that "
        "torch.optim's closures return"
    )


def refuse_scaler() -> NoReturn:
    """Say to torch's ``GradScaler`` that it is not needed."""
    raise KovaError(
        "a GradScaler has nothing to unscale here: Kova computes the gradients of its predictions "
        "itself, in float32 or float64, and needs no loss.backward(). Call "
        "optimizer.step(predict, targets) without the scaler, also inside torch.autocast"
    )


def refuse_unless_function(predict: object, call: str) -> None:
    """Predictions come from a function without arguments, and neither from a tensor nor from the critic."""
    if not callable(predict) or isinstance(predict, nn.Module):
        raise InvalidBatch(
            f"predict must be a function that calls the critic, got {type(predict).__name__}: {call}"
        )


def innovation_of(targets: Tensor, predictions: Tensor, dtype: torch.dtype) -> Tensor:
    """Targets minus predictions, in the filter's dtype, if both are of one shape."""
    if not isinstance(targets, Tensor):
        raise InvalidBatch(
            f"targets must be a tensor, got {type(targets).__name__}: use torch.as_tensor(targets)"
        )
    if targets.shape != predictions.shape:
        hint = ": use targets.flatten()" if targets.numel() == predictions.numel() else ""
        raise InvalidBatch(
            f"targets must have one number a prediction, shape {tuple(predictions.shape)}, got shape "
            f"{tuple(targets.shape)}{hint}"
        )
    if targets.dtype == predictions.dtype == dtype and targets.device == predictions.device:
        return targets - predictions
    return targets.to(predictions.device, dtype) - predictions.to(dtype)


def refuse_if_not_finite(targets: Tensor, predictions: Tensor, step: int) -> None:
    """Say which targets or predictions are not finite, if any; called once the filter has found out."""
    for name, values in (("target", targets), ("prediction", predictions)):
        bad = (~torch.isfinite(values)).nonzero().flatten().tolist()
        if bad:
            raise NonFiniteBatch(
                f"step {step}: {len(bad)} of {len(values)} {name}s are not finite (first: sample {bad[0]}, "
                f"{float(values[bad[0]])}). Nothing was changed. Look for a NaN in the rewards or in the "
                "observations of that batch."
            )


def check_noise_inputs(observation: Observation, given: Mapping[str, Tensor]) -> None:
    """The noise must be given what it needs, and nothing else."""
    if not given and not observation.inputs:
        return
    needed = set(observation.inputs)
    if given.keys() == needed:
        return
    missing, unknown = sorted(needed - set(given)), sorted(set(given) - needed)
    name = type(observation).__name__
    parts = []
    if missing:
        listed = ", ".join(f"{key}=..." for key in missing)
        parts.append(f"{name} needs step(predict, targets, {listed}), which is missing")
    if unknown:
        takes = ", ".join(sorted(needed)) or "no noise inputs"
        parts.append(f"{name} takes {takes}, but got {', '.join(unknown)}")
    raise InvalidBatch("; ".join(parts))


def check_look(look: tuple[int, int]) -> tuple[bool, int]:
    """Whether this is the first look at the samples, and how many there are."""
    if look == (1, 1):
        return True, 1
    whole = isinstance(look, tuple) and len(look) == 2
    whole = whole and all(isinstance(number, Integral) and not isinstance(number, bool) for number in look)
    if not whole or not 1 <= look[0] <= look[1]:
        raise InvalidBatch(
            f"look must be (k, n), the k-th of n times that these samples are gone through, got {look!r}"
        )
    return look[0] == 1, int(look[1])


def check_replays(replays: float) -> float:
    """A number of times, at least 1."""
    if replays == 1.0:
        return 1.0
    if not isinstance(replays, int | float) or not 1.0 <= replays < math.inf:
        raise InvalidBatch(
            f"replays must be a number of at least 1, how often a sample is drawn in all, got {replays!r}"
        )
    return float(replays)


def warn_if_slow(lr: float) -> None:
    """Warn of a step size that is usual for Adam, where it would stop the filter."""
    if lr <= SLOW:
        _warn(
            f"lr={lr:g} takes {lr:.2%} of the filter's step at each batch, so that it will barely learn: "
            "lr=1, the default, is the filter. Its steps come from what it knows, and not from a learning "
            "rate; how fast it forgets is eta.",
            stacklevel=4,
        )


def warn_of_scales(innovation: Tensor, jacobian: Jacobian, unit_free: bool) -> None:
    """Warn, at the first batch, of numbers that are far from what the filter takes for granted."""
    if not _warned_of_inputs(jacobian):
        linear = isinstance(jacobian, LinearJacobian) and len(jacobian.layers) == 1
        large = math.inf if unit_free and linear else LARGE_WITHOUT_UNIT if unit_free else LARGE
        _warn_of_prior(innovation, jacobian.gram().diagonal(), large)


def _warned_of_inputs(jacobian: Jacobian) -> bool:
    """Warn of inputs out of scale, which saturate a network or leave its first layer nothing to learn by.

    A prior that makes up for them is fine. Only for stacks of Linear layers, whose inputs are at hand.
    """
    low, high = INPUTS
    for index, layer in enumerate(jacobian.layers if isinstance(jacobian, LinearJacobian) else ()):
        root = layer.linear.weight.root if layer.linear.weight else 0.0
        norm, rms = float(layer.a.norm(dim=1).square().mean().sqrt()), float(layer.a.square().mean().sqrt())
        faint = index == 0 and 0 < max(norm, root * norm) < low
        if faint or high < min(rms, root * rms) < math.inf:
            _warn(
                f"the inputs of {layer.linear.module} have a root mean square of {rms:.3g} in the first "
                "batch, far from order 1, so that learning will be slow or fail. Normalise the observations "
                "(as VecNormalize does)."
            )
            return True
    return False


def _warn_of_prior(innovation: Tensor, prior_variance: Tensor, large: float) -> None:
    """Warn if ``h'P_0 h`` is far from the innovations, or far above the noise of the paper's filter."""
    squared, mean, n = float(innovation.square().mean()), float(prior_variance.mean()), len(innovation)
    if mean == 0.0:
        _warn(
            "the first predictions do not change with the weights at all (every gradient is 0), so that "
            "nothing can be learned from this batch: look for saturated or dead units."
        )
    elif UNNORMALISED * n < mean < math.inf:
        _warn(
            f"the prior's variance of the first predictions, h'P_0 h, is {mean:.3g}, above 100 N = "
            f"{UNNORMALISED * n:.3g}: the first steps will be bold. Normalise the inputs of the critic "
            "(as VecNormalize does), or lower the prior: covariance.FanIn(), or a prior of about "
            f"{n / mean:.1g} in place of 1."
        )
    elif large * mean < squared < math.inf:
        larger = f", or make the prior about {squared / mean:.1g} times larger" if large == LARGE else ""
        _warn(
            f"the first innovations (root mean square {squared**0.5:.3g}) are far larger than the prior "
            f"expects (h'P_0 h has a root of {mean**0.5:.3g}), so that learning will be slow. Normalise the "
            f"rewards (as VecNormalize does), so that values are of order 1{larger}."
        )


def _warn(message: str, stacklevel: int = 8) -> None:
    warnings.warn(message, stacklevel=stacklevel)
