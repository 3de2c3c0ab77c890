"""Per-sample gradients of a module's scalar predictions: one backward where that is enough."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from kova_rl.errors import InvalidBatch
from kova_rl.filter.evidence import DenseJacobian, Jacobian
from kova_rl.parameters import Group, Parameters

Predict = Callable[[], Tensor]
Calls = dict[nn.Module, list[tuple[Tensor, GradientEdge | None]]]

CHUNK_ELEMENTS = 1 << 24
"""Gradients that the general path holds at a time, beside the Jacobian itself."""
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


@dataclass(frozen=True)
class LinearJacobian:
    """Rows ``b_i x a_i``: each layer's input a (its bias as one more input) and the gradient b at its output.

    Never builds the N x d matrix unless asked to.
    """

    layers: list[tuple[Tensor, Tensor, int]]
    """(a, N x cols; b, N x rows; first coordinate) of each layer, a whitened by the prior."""
    size: int

    def dense(self, row_scale: Tensor | None = None) -> Tensor:
        first = self.layers[0][0]
        out = first.new_empty(len(first), self.size)
        for a, b, start in self.layers:
            if row_scale is not None:
                b = b * row_scale[:, None]
            rows, cols = b.shape[1], a.shape[1]
            block = out[:, start : start + rows * cols].unflatten(1, (rows, cols))
            torch.mul(b[:, :, None], a[:, None, :], out=block)
        return out

    def gram(self) -> Tensor:
        parts = [(a @ a.T).mul_(b @ b.T) for a, b, _ in self.layers]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def transpose_times(self, z: Tensor) -> Tensor:
        return torch.cat([((b * z[:, None]).T @ a).flatten() for a, b, _ in self.layers])

    def column_squares(self, weights: Tensor) -> Tensor:
        parts = [(b.square() * weights[:, None]).T @ a.square() for a, b, _ in self.layers]
        return torch.cat([part.flatten() for part in parts])


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
        self._may_be_fast = _only_linear(module, parameters)
        self._checked: set[tuple[int, ...]] = set()

    def __call__(self, predict: Predict, dtype: torch.dtype) -> tuple[Tensor, Jacobian]:
        if not (self._may_be_fast and all(p.requires_grad for p in self.parameters.tensors)):
            with torch.enable_grad():
                predictions = _checked_predictions(predict())
            return predictions.detach(), self._general(predictions, dtype)
        with torch.enable_grad(), _recording(self.parameters.groups) as calls:
            predictions = _checked_predictions(predict())
        if not _each_once(calls, len(predictions)):
            return predictions.detach(), self._general(predictions, dtype)
        shape = tuple(a.shape[1] for ((a, _),) in calls.values()) + (len(predictions),)
        check = shape not in self._checked
        jacobian = self._fast(predictions, calls, dtype, keep_graph=check)
        if check:
            if not self._agrees(predictions, jacobian):
                self._may_be_fast = False
                return predictions.detach(), self._general(predictions, dtype)
            self._checked.add(shape)
        return predictions.detach(), jacobian

    def _fast(
        self,
        predictions: Tensor,
        calls: Calls,
        dtype: torch.dtype,
        keep_graph: bool,
    ) -> LinearJacobian:
        groups = self.parameters.groups
        n = len(predictions)
        gradients = torch.autograd.grad(
            predictions,
            [calls[group.module][0][1] for group in groups],
            torch.ones_like(predictions),
            retain_graph=keep_graph,
            allow_unused=True,
        )
        layers = []
        like = predictions.new_empty(0, dtype=dtype)
        roots = self.parameters.roots(like)
        for group, root, b in zip(groups, roots, gradients, strict=True):
            if b is None:
                b = like.new_zeros(n, group.segment.rows)
            a = _extended(group, calls[group.module][0][0].detach().to(dtype), root)
            layers.append((a, b.to(dtype), group.segment.start))
        return LinearJacobian(layers, len(self.parameters))

    def _agrees(self, predictions: Tensor, jacobian: LinearJacobian) -> bool:
        """Compare a random combination of all rows with autograd: it sees any mixing of rows."""
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(len(predictions), generator=generator).to(predictions)
        gradients = torch.autograd.grad(
            predictions, self.parameters.tensors, weights, retain_graph=True, materialize_grads=True
        )
        expected = torch.empty(1, len(self.parameters), dtype=jacobian.layers[0][0].dtype, device=weights.device)
        keyed = {id(p): g for p, g in zip(self.parameters.tensors, gradients, strict=True)}
        self.parameters.scatter(keyed, expected)
        got = jacobian.transpose_times(weights.to(expected))
        scale = expected.norm()
        if not torch.isfinite(scale) or (expected[0] - got).norm() <= TOLERANCE[predictions.dtype] * scale:
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
        out = torch.empty(n, len(self.parameters), dtype=dtype, device=predictions.device)
        rows = max(1, min(n, CHUNK_ELEMENTS // len(self.parameters)))
        for start in range(0, n, rows):
            stop = min(n, start + rows)
            selector = torch.zeros(stop - start, n, dtype=predictions.dtype, device=predictions.device)
            selector[:, start:stop].fill_diagonal_(1.0)
            gradients = torch.autograd.grad(
                predictions, tensors, selector, is_grads_batched=True, retain_graph=stop < n, allow_unused=True
            )
            keyed = {id(p): g for p, g in zip(tensors, gradients, strict=True) if g is not None}
            self.parameters.scatter(keyed, out[start:stop])
        return DenseJacobian(out)


def _checked_predictions(predictions: object) -> Tensor:
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


def _only_linear(module: nn.Module, parameters: Parameters) -> bool:
    """Whether all tracked parameters are the own weight and bias of plain, untied Linear modules."""
    uses: dict[int, int] = {}
    for owner in module.modules():
        for p in owner.parameters(recurse=False):
            uses[id(p)] = uses.get(id(p), 0) + 1
    return all(
        type(group.module) is nn.Linear
        and all(uses[id(member.parameter)] == 1 for member in group.members)
        and all(member.name.rpartition(".")[2] in ("weight", "bias") for member in group.members)
        for group in parameters.groups
    )


@contextmanager
def _recording(groups: list[Group]) -> Iterator[Calls]:
    """Collect (input, gradient edge of the output) of every call of the groups' modules.

    An edge, not the output itself, because an in-place activation would overwrite the output.
    """
    calls: Calls = {group.module: [] for group in groups}

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if inputs and output.requires_grad:
            calls[module].append((inputs[0], get_gradient_edge(output)))
        else:
            calls[module].append((output, None))  # called by keyword or without a gradient: not fast

    handles = [group.module.register_forward_hook(record) for group in groups]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _each_once(calls: Calls, n: int) -> bool:
    return all(
        len(made) == 1 and made[0][1] is not None and made[0][0].shape == (n, module.in_features)
        for module, made in calls.items()
    )


def _extended(group: Group, inputs: Tensor, root: Tensor | None) -> Tensor:
    """The layer's input with a column of ones for its bias, in the group's order and whitened."""
    if len(group.members) == 1 and group.members[0].parameter.ndim == 2:
        return inputs if root is None else inputs * root
    out = inputs.new_ones(len(inputs), group.segment.cols)
    for member in group.members:
        if member.parameter.ndim == 2:
            out[:, member.start : member.stop] = inputs
    return out if root is None else out.mul_(root)
