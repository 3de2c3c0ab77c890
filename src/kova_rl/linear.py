"""The Jacobian of a stack of ``nn.Linear``: one backward gives every sample's gradient.

A layer's input ``a_i`` and the gradient ``b_i`` at its output are all there is to know of sample i: its
column of H is the outer product of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kova_rl.filter.evidence import Factors
from kova_rl.filter.layout import Segment
from kova_rl.parameters import Parameters, View


class Place(NamedTuple):
    """A weight or a bias: its prior's root, its columns in the segment, and its view of d coordinates."""

    root: float
    columns: slice
    view: View


class Linear(NamedTuple):
    """What the fast path must know of one ``nn.Linear``; a frozen weight or bias is None."""

    module: nn.Linear
    segment: Segment
    weight: Place | None
    bias: Place | None


@dataclass
class Layer:
    """One Linear on one batch. Its columns of H are ``b_i x [a_i, 1]``, whitened by the prior."""

    linear: Linear
    a: Tensor
    """Its inputs, N x in."""
    b: Tensor
    """Gradients of the predictions at its outputs, N x out."""

    @cached_property
    def columns(self) -> Tensor:
        """``[a, 1]`` as columns, cols x N, whitened."""
        out = self.a.new_empty(self.linear.segment.cols, self.a.shape[0])
        self._fill(out.T)
        return out

    @cached_property
    def inputs(self) -> Tensor:
        """``[a, 1]`` as rows, N x cols, whitened."""
        weight, bias = self.linear.weight, self.linear.bias
        if weight and bias and weight.root == 1.0 and weight.columns.start == 0:
            return nn.functional.pad(self.a, (0, 1), value=bias.root)
        out = self.a.new_empty(self.a.shape[0], self.linear.segment.cols)
        self._fill(out)
        return out

    def _fill(self, out: Tensor) -> None:
        """Write ``[a, 1]``, whitened, into N x cols."""
        weight, bias = self.linear.weight, self.linear.bias
        if weight:
            torch.mul(self.a, weight.root, out=out[:, weight.columns])
        if bias:
            out[:, bias.columns] = bias.root

    def dense(self, scale: Tensor | None, out: Tensor) -> None:
        """Write the layer's rows of the d x N matrix, column i times ``scale[i]``."""
        start, rows, cols, _ = self.linear.segment
        n, step = len(self.b), out.stride(0)
        b = self.b.new_empty(rows, n)
        b = b.copy_(self.b.T) if scale is None else torch.mul(self.b.T, scale, out=b)
        block = out.as_strided((rows, cols, n), (cols * step, step, 1), out.storage_offset() + start * step)
        torch.mul(b.unsqueeze(1), self.columns, out=block)

    def gram_factors(self) -> tuple[Tensor, Tensor]:
        """Two N x N matrices whose elementwise product is the layer's share of ``H'H``."""
        weight, bias = self.linear.weight, self.linear.bias
        outputs = torch.mm(self.b, self.b.T)
        if not weight:
            assert bias
            return outputs, torch.full_like(outputs, bias.root**2)
        beta = bias.root**2 if bias else 0.0
        one = _one(self.a.dtype, self.a.device)
        return outputs, torch.addmm(one, self.a, self.a.T, beta=beta, alpha=weight.root**2)

    def times(self, column: Tensor, vector: Tensor) -> None:
        """Write the layer's part of ``H z``, for z as a column."""
        weight, bias = self.linear.weight, self.linear.bias
        b = self.b * column
        if weight:
            place = torch.mm(b.T, self.a, out=vector.as_strided(*weight.view))
            if weight.root != 1.0:
                place.mul_(weight.root)
        if bias:
            place = torch.sum(b, 0, out=vector.as_strided(*bias.view))
            if bias.root != 1.0:
                place.mul_(bias.root)

    def squares(self, column: Tensor, vector: Tensor) -> None:
        """Write the layer's part of ``sum_i weights_i h_i**2``, for weights as a column."""
        start, rows, cols, _ = self.linear.segment
        place = vector.as_strided((rows, cols), (cols, 1), start)
        torch.mm((self.b * self.b).mul_(column).T, (self.columns * self.columns).T, out=place)


@lru_cache(maxsize=8)
def _one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """A matrix of one 1, which a product can add to all of its entries."""
    with torch.inference_mode(False):
        return torch.ones(1, 1, dtype=dtype, device=device)


@dataclass(frozen=True)
class LinearJacobian:
    """The Jacobian of a stack of Linear layers. Never builds the d x N matrix unless asked to."""

    layers: list[Layer]
    size: int

    def dense(self, scale: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = self.layers[0].a.new_empty(self.size, len(self.layers[0].a))
        for layer in self.layers:
            layer.dense(scale, out)
        return out

    def gram(self) -> Tensor:
        left, right = self.layers[0].gram_factors()
        out = left.mul_(right)
        for layer in self.layers[1:]:
            out.addcmul_(*layer.gram_factors())
        return out

    def times(self, column: Tensor) -> Tensor:
        vector = column.new_empty(self.size)
        for layer in self.layers:
            layer.times(column, vector)
        return vector

    def squares(self, weights: Tensor) -> Tensor:
        vector, column = weights.new_empty(self.size), weights.unsqueeze(1)
        for layer in self.layers:
            layer.squares(column, vector)
        return vector

    def factors(self) -> list[Factors]:
        return [Factors(layer.linear.segment.start, layer.inputs, layer.b) for layer in self.layers]


def is_linear(module: nn.Module) -> bool:
    """Whether all trainable parameters are those of plain, untied Linear modules."""
    return bool(linears_of(module, Parameters(module, prior=1.0)))


def linears_of(module: nn.Module, parameters: Parameters) -> list[Linear]:
    """The layers, if all tracked parameters are those of plain, untied Linear modules; else none."""
    uses: dict[int, int] = {}
    for owner in module.modules():
        for p in owner.parameters(recurse=False):
            uses[id(p)] = uses.get(id(p), 0) + 1
    found = []
    for group in parameters.groups:
        owner = group.module
        if type(owner) is not nn.Linear or "forward" in owner.__dict__:
            return []
        weight = bias = None
        for member in group.members:
            if uses[id(member.parameter)] > 1:
                return []
            place = Place(member.root, slice(member.start, member.stop), member.view)
            if member.parameter is owner.weight:
                weight = place
            elif member.parameter is owner.bias:
                bias = place
            else:
                return []
        found.append(Linear(owner, group.segment, weight, bias))
    return found
