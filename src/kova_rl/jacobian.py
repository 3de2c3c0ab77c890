"""Per-sample gradients of a module's scalar predictions: one backward where that is enough."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from kova_rl.errors import InvalidBatch
from kova_rl.filter.evidence import DenseJacobian, Jacobian
from kova_rl.filter.layout import Segment
from kova_rl.parameters import Parameters, View

Predict = Callable[[], Tensor]
Calls = list[tuple[nn.Module, Tensor, GradientEdge | None]]

CHUNK_ELEMENTS = 1 << 24
"""Gradients that the general path holds at a time, beside the Jacobian itself."""
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


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


@dataclass(frozen=True)
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
        weight, bias = self.linear.weight, self.linear.bias
        out = self.a.new_empty(self.linear.segment.cols, len(self.a))
        if weight:
            part = out[weight.columns].copy_(self.a.T)
            if weight.root != 1.0:
                part.mul_(weight.root)
        if bias:
            out[bias.columns] = bias.root
        return out

    def dense(self, scale: Tensor | None, out: Tensor) -> None:
        """Write the layer's rows of the d x N matrix, column i times ``scale[i]``."""
        start, rows, cols, _ = self.linear.segment
        n, step = len(self.b), out.stride(0)
        b = self.b.new_empty(rows, n)
        b = b.copy_(self.b.T) if scale is None else torch.mul(self.b.T, scale, out=b)
        block = out.as_strided((rows, cols, n), (cols * step, step, 1), out.storage_offset() + start * step)
        torch.mul(b.unsqueeze(1), self.columns, out=block)

    def gram(self) -> Tensor:
        """The layer's share of ``H'H``."""
        weight, bias = self.linear.weight, self.linear.bias
        out = torch.mm(self.b, self.b.T)
        if not weight:
            assert bias
            return out.mul_(bias.root**2)
        inputs = torch.mm(self.a, self.a.T)
        if weight.root != 1.0:
            inputs.mul_(weight.root**2)
        return out.mul_(inputs.add_(bias.root**2) if bias else inputs)

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
        out = self.layers[0].gram()
        for layer in self.layers[1:]:
            out.add_(layer.gram())
        return out

    def times(self, z: Tensor) -> Tensor:
        vector, column = z.new_empty(self.size), z.unsqueeze(1)
        for layer in self.layers:
            layer.times(column, vector)
        return vector

    def squares(self, weights: Tensor) -> Tensor:
        vector, column = weights.new_empty(self.size), weights.unsqueeze(1)
        for layer in self.layers:
            layer.squares(column, vector)
        return vector


class JacobianOf:
    """Computes predictions and their Jacobian, by the fast path where it gives the same numbers.

    *Fast path*: every trainable parameter belongs to an ``nn.Linear`` that the closure calls exactly
    once, on N rows. One backward of the sum of the predictions gives each layer's b. It would be
    silently wrong if the closure mixed or permuted rows, or tied weights, so on the first batch
    of each shape one random combination of the rows is compared with plain autograd.

    *General path*: batched ``torch.autograd.grad``, in chunks, for any module.
    """

    def __init__(self, module: nn.Module, parameters: Parameters) -> None:
        self.parameters = parameters
        self._linears = _linears(module, parameters)
        self._may_be_fast = bool(self._linears)
        self._checked: set[int] = set()

    def __call__(self, predict: Predict, dtype: torch.dtype) -> tuple[Tensor, Jacobian]:
        if self._may_be_fast and all(p.requires_grad for p in self.parameters.tensors):
            predictions, calls = self._recorded(predict)
            layers = self._layers(calls, len(predictions))
        else:
            with torch.enable_grad():
                predictions, layers = _checked(predict()), None
        if layers is None:
            return predictions.detach(), self._general(predictions, dtype)
        check = len(predictions) not in self._checked
        jacobian = self._fast(predictions, layers, dtype, keep_graph=check)
        if check:
            if not self._agrees(predictions, jacobian):
                self._may_be_fast = False
                return predictions.detach(), self._general(predictions, dtype)
            self._checked.add(len(predictions))
        return predictions.detach(), jacobian

    def _recorded(self, predict: Predict) -> tuple[Tensor, Calls]:
        """Call ``predict`` and note the input and the gradient edge of every Linear's call.

        The instance's ``forward`` is replaced for the duration of the call, which costs less than a hook.
        An edge is kept, not the output, because an in-place activation would overwrite the output.
        """
        calls: Calls = []

        def forward(module: nn.Linear, input: Tensor) -> Tensor:
            output = nn.Linear.forward(module, input)
            calls.append((module, input, get_gradient_edge(output) if output.requires_grad else None))
            return output

        modules = [linear.module for linear in self._linears]
        for module in modules:
            module.__dict__["forward"] = partial(forward, module)
        try:
            with torch.enable_grad():
                return _checked(predict()), calls
        finally:
            for module in modules:
                del module.__dict__["forward"]

    def _layers(self, calls: Calls, n: int) -> list[tuple[Tensor, GradientEdge]] | None:
        """Input and edge of each group, or None unless each was called once, on N rows."""
        linears = self._linears
        if len(calls) != len(linears):
            return None
        found = {
            module: (input, edge)
            for module, input, edge in calls
            if edge is not None and input.ndim == 2 and len(input) == n
        }
        return [found[linear.module] for linear in linears] if len(found) == len(linears) else None

    def _fast(
        self,
        predictions: Tensor,
        layers: list[tuple[Tensor, GradientEdge]],
        dtype: torch.dtype,
        keep_graph: bool,
    ) -> LinearJacobian:
        gradients = torch.autograd.grad(
            predictions,
            [edge for _, edge in layers],
            torch.ones_like(predictions),
            retain_graph=keep_graph,
            allow_unused=True,
        )
        made = []
        for linear, (a, _), b in zip(self._linears, layers, gradients, strict=True):
            if b is None:
                b = predictions.new_zeros(len(predictions), linear.segment.rows)
            made.append(Layer(linear, a.detach().to(dtype), b.to(dtype)))
        return LinearJacobian(made, len(self.parameters))

    def _agrees(self, predictions: Tensor, jacobian: LinearJacobian) -> bool:
        """Compare a random combination of all rows with autograd: it sees any mixing of rows."""
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(len(predictions), generator=generator).to(predictions)
        gradients = torch.autograd.grad(
            predictions, self.parameters.tensors, weights, retain_graph=True, materialize_grads=True
        )
        expected = jacobian.layers[0].a.new_empty(len(self.parameters), 1)
        keyed = {id(p): g for p, g in zip(self.parameters.tensors, gradients, strict=True)}
        self.parameters.scatter(keyed, expected)
        got = jacobian.times(weights.to(expected))
        scale = expected.norm()
        if not torch.isfinite(scale) or (expected[:, 0] - got).norm() <= TOLERANCE[predictions.dtype] * scale:
            return True  # Gradients that are not finite are refused by the filter, with their sample.
        warnings.warn(
            "Kova's one-backward Jacobian does not hold for this closure (it mixes or permutes rows, as "
            "BatchNorm in training mode does, or uses a weight twice): falling back to one "
            "backward a sample, which is right but slower.",
            stacklevel=5,
        )
        return False

    def _general(self, predictions: Tensor, dtype: torch.dtype) -> DenseJacobian:
        n, tensors = len(predictions), [p for p in self.parameters.tensors if p.requires_grad]
        out = torch.empty(len(self.parameters), n, dtype=dtype, device=predictions.device)
        rows = max(1, min(n, CHUNK_ELEMENTS // len(self.parameters)))
        for start in range(0, n, rows):
            stop = min(n, start + rows)
            selector = torch.zeros(stop - start, n, dtype=predictions.dtype, device=predictions.device)
            selector[:, start:stop].fill_diagonal_(1.0)
            gradients = torch.autograd.grad(
                predictions,
                tensors,
                selector,
                is_grads_batched=True,
                retain_graph=stop < n,
                allow_unused=True,
            )
            keyed = {id(p): g for p, g in zip(tensors, gradients, strict=True) if g is not None}
            self.parameters.scatter(keyed, out[:, start:stop])
        return DenseJacobian(out)


def _checked(predictions: object) -> Tensor:
    if not isinstance(predictions, Tensor):
        raise InvalidBatch(f"predict() must return a tensor, got {type(predictions).__name__}")
    if predictions.ndim != 1:
        hint = ": use .squeeze(-1)" if predictions.ndim == 2 and predictions.shape[1] == 1 else ""
        raise InvalidBatch(
            f"predict() must return one prediction a sample, shape (N,), got shape "
            f"{tuple(predictions.shape)}{hint or ': pick one output a sample, as with .gather(1, actions)'}"
        )
    if len(predictions) == 0:
        raise InvalidBatch("predict() returned an empty batch: at least one sample is needed")
    if not predictions.requires_grad:
        raise InvalidBatch(
            "predict() returned predictions without a gradient: call the module inside predict(), not "
            "before it, and without torch.no_grad() or .detach()"
        )
    return predictions


def _linears(module: nn.Module, parameters: Parameters) -> list[Linear]:
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
