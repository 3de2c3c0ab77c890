"""What is kept of a forward pass, and the Fisher factors that a batch makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kova_rl.baselines.kfac_factors import Block, Factors, FullBlock, LinearBlock
from kova_rl.errors import InvalidBatch, KovaError, NonFiniteBatch


class Call(NamedTuple):
    """What a layer was given and gave, and how often each had been written to."""

    inputs: Tensor
    outputs: Tensor
    versions: tuple[int, int]

    @classmethod
    def of(cls, name: str, inputs: Tensor, outputs: Tensor) -> Call:
        """The call of a layer, which must be with one row a sample."""
        if inputs.ndim != 2:
            raise InvalidBatch(
                f"{name} must be called with a batch of vectors, (N, features), got shape "
                f"{tuple(inputs.shape)}: flatten it to one row a sample"
            )
        return cls(inputs.detach(), outputs, (inputs._version, outputs._version))

    def check(self, name: str, n: int) -> None:
        """Whether its gradients will be those of n log-likelihoods."""
        if len(self.inputs) != n:
            raise InvalidBatch(
                f"{name} was recorded with {len(self.inputs)} samples, log_likelihoods has {n}: one a sample"
            )
        if not self.outputs.requires_grad:
            raise InvalidBatch(f"{name} was recorded without a graph: leave torch.no_grad() for it")
        if (self.inputs._version, self.outputs._version) != self.versions:
            raise InvalidBatch(
                f"the input or output of {name} was changed in place after its call, so that its gradient "
                "is not the layer's: use activations with inplace=False"
            )


def factors_of(
    blocks: Sequence[Block], calls: dict[nn.Linear, Call], log_likelihoods: Tensor, retain_graph: bool
) -> dict[str, Factors]:
    """The factors of each block by its name, but for those on which the log-likelihoods do not depend.

    For what it raises see :meth:`~kova_rl.baselines.KFAC.observe`.
    """
    if not calls and any(isinstance(block, LinearBlock) for block in blocks):
        raise KovaError("observe() before a forward pass in `with optimizer.recording():`")
    if log_likelihoods.ndim != 1 or not len(log_likelihoods) or not log_likelihoods.requires_grad:
        raise InvalidBatch(
            "log_likelihoods must be (N,), one a sample, and depend on the parameters, got shape "
            f"{tuple(log_likelihoods.shape)} with requires_grad={log_likelihoods.requires_grad}"
        )
    if not torch.isfinite(log_likelihoods).all():
        raise NonFiniteBatch("a log-likelihood is not finite. Nothing was changed.")
    made = _factors(blocks, calls, log_likelihoods, retain_graph)
    for name, factors in made.items():
        if not all(torch.isfinite(factor).all() for factor in factors):
            raise NonFiniteBatch(
                f"the Fisher factors of {name} are not finite. Nothing was changed. Normalise the inputs."
            )
    return made


def _factors(
    blocks: Sequence[Block], calls: dict[nn.Linear, Call], log_likelihoods: Tensor, retain_graph: bool
) -> dict[str, Factors]:
    found: dict[str, Factors | None] = {}
    for block in blocks:
        if isinstance(block, FullBlock):
            found[block.name] = block.factors(log_likelihoods)
    linear = [block for block in blocks if isinstance(block, LinearBlock) and block.layer in calls]
    for block in linear:
        calls[block.layer].check(block.name, len(log_likelihoods))
    outputs = [calls[block.layer].outputs for block in linear]
    total = log_likelihoods.sum()
    gradients = torch.autograd.grad(total, outputs, retain_graph=retain_graph, allow_unused=True)
    for block, g in zip(linear, gradients, strict=True):
        found[block.name] = None if g is None else block.factors(calls[block.layer].inputs, g)
    return {name: factors for name, factors in found.items() if factors is not None}
