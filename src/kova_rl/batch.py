"""Checks of a batch, made before the filter sees it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NonFiniteBatch
from kova_rl.filter.observation import Observation

UNNORMALISED = 100.0
"""``h'P_0 h`` of the first batch above this, in units of N, is a sign of inputs not normalised."""

LARGE = 100.0
"""Innovations whose mean square exceeds so many ``h'P_0 h`` are larger than the prior can explain soon."""


def innovation_of(targets: Tensor, predictions: Tensor, dtype: torch.dtype) -> Tensor:
    """Targets minus predictions, in the filter's dtype, if both are of one shape."""
    if not isinstance(targets, Tensor):
        raise InvalidBatch(f"targets must be a tensor, got {type(targets).__name__}")
    if targets.shape != predictions.shape:
        raise InvalidBatch(
            f"targets must have one number a prediction, shape {tuple(predictions.shape)}, got shape "
            f"{tuple(targets.shape)}"
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


def warn_if_unnormalised(innovation: Tensor, prior_variance: Tensor) -> None:
    """Warn, given ``h'P_0 h`` of the first batch, if it is far above the noise of the paper's filter."""
    mean, n = float(prior_variance.mean()), len(prior_variance)
    if UNNORMALISED * n < mean < math.inf:
        warnings.warn(
            f"the prior's variance of the first predictions, h'P_0 h, is {mean:.3g}, above 100 N = "
            f"{UNNORMALISED * n:.3g}: the first steps will be bold. Normalise the inputs of the critic "
            "(as VecNormalize does), or lower the prior: covariance.FanIn(), or a prior of about "
            f"{n / mean:.1g} in place of 1.",
            stacklevel=6,
        )


def warn_if_large(innovation: Tensor, prior_variance: Tensor) -> None:
    """Warn if the targets are out of the prior's scale; for noises that have the unit of the targets."""
    squared, mean = float(innovation.square().mean()), float(prior_variance.mean())
    if 0 < LARGE * mean < squared < math.inf:
        warnings.warn(
            f"the first innovations (root mean square {squared**0.5:.3g}) are far larger than the prior "
            f"expects (h'P_0 h has a root of {mean**0.5:.3g}), so that learning will be slow. Normalise the "
            "rewards (as VecNormalize does), so that values are of order 1, or make the prior of the "
            f"covariance about {squared / mean:.1g} times larger.",
            stacklevel=6,
        )
