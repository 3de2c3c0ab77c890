"""Per-sample gradients of a module's scalar predictions: one backward where that is enough."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.graph import GradientEdge

from kova_rl.errors import InvalidBatch
from kova_rl.filter.evidence import DenseJacobian, Jacobian
from kova_rl.linear import Layer, Linear, LinearJacobian, linears_of
from kova_rl.parameters import Parameters
from kova_rl.rows import keeps_rows

Predict = Callable[[], Tensor]
Calls = list[tuple[Linear, Tensor, int, GradientEdge | None]]
"""Each call of a Linear: its input, the input's version, and where its output hangs in the graph."""

CHUNK_ELEMENTS = 1 << 24
"""Gradients that the general path holds at a time, beside the Jacobian itself."""
ROUNDING = 1e3
"""Units in the last place by which the two paths may differ."""


class JacobianOf:
    """Computes predictions and their Jacobian, by the fast path where it gives the same numbers.

    *Fast path*: every trainable parameter belongs to an ``nn.Linear`` that the closure calls exactly
    once, on N rows. One backward of the sum of the predictions gives each layer's b. It would be
    silently wrong if the closure mixed or permuted rows, or used a weight elsewhere too. So the graph of the
    closure is read at every call (:mod:`kova_rl.rows`). Where it does not prove that rows are kept apart, one
    random combination of the rows is compared with plain autograd before anything is learned, and if they
    differ the general path is taken from then on. As a second line, the same comparison is made at calls
    1, 2, 4, 8 ... of each batch size, and always for a closure that is used once.

    What neither sees in between is a hook on a tensor that mixes the rows of a *gradient*, and an input that
    is overwritten behind autograd's back (through ``.data`` or NumPy), which autograd does not see either.
    An input that is overwritten in place after a layer has read it is refused.

    *General path*: batched ``torch.autograd.grad``, in chunks, for any module.
    """

    def __init__(self, module: nn.Module, parameters: Parameters) -> None:
        self.parameters = parameters
        self._linears = linears_of(module, parameters)
        self._module = module
        self._may_be_fast = bool(self._linears)
        self._forwards = [partial(self._forward, linear) for linear in self._linears]
        self._record: Calls = []
        self._ones: Tensor | None = None
        self._calls: dict[tuple[int, bool], int] = {}

    def __call__(self, predict: Predict, dtype: torch.dtype, once: bool = False) -> tuple[Tensor, Jacobian]:
        """Predictions, detached, and their Jacobian in ``dtype``; ``once`` is a closure of its own."""
        if self._can_record():
            predictions, calls = self._recorded(predict)
            layers = self._layers(calls, predictions.shape[0])
        else:
            with torch.enable_grad():
                predictions, layers = _checked(predict()), None
        if layers is None:
            return predictions.detach(), self._general(predictions, dtype)
        key = (predictions.shape[0], self._module.training)
        count = self._calls.get(key, 0) + 1
        check = once or count & (count - 1) == 0 or not self._keeps_rows(predictions, layers)
        jacobian = self._fast(predictions, layers, dtype, keep_graph=check)
        if check:
            agree, conclusive = self._compare(predictions, jacobian)
            if not agree:
                if not once:
                    self._give_up()
                return predictions.detach(), self._general(predictions, dtype)
            count = count if conclusive else 0  # a layer without a gradient could hide anything
        if not once:
            self._calls[key] = count
        return predictions.detach(), jacobian

    @property
    def may_factor(self) -> bool:
        """Whether the module is made of Linear layers only, so that its Jacobian may have factors."""
        return bool(self._linears)

    def _give_up(self) -> None:
        self._may_be_fast = False
        warnings.warn(
            "Kova's one-backward Jacobian does not hold for this closure (it mixes or permutes rows, as "
            "BatchNorm in training mode does, or uses a weight twice): falling back to one "
            "backward a sample, which is right but slower.",
            stacklevel=7,
        )

    def _can_record(self) -> bool:
        """Whether the fast path may be tried: nothing frozen meanwhile, no forward that someone replaced."""
        if not self._may_be_fast:
            return False
        for linear in self._linears:
            if "forward" in linear.module.__dict__:
                return False
        return all(p.requires_grad for p in self.parameters.tensors)

    def _recorded(self, predict: Predict) -> tuple[Tensor, Calls]:
        """Call ``predict`` and note the input and the gradient edge of every Linear's call.

        The instance's ``forward`` is replaced for the duration of the call, which costs less than a hook.
        An edge is kept, not the output, because an in-place activation would overwrite the output.
        """
        calls: Calls = []
        self._record = calls
        for linear, forward in zip(self._linears, self._forwards, strict=True):
            linear.module.__dict__["forward"] = forward
        try:
            with torch.enable_grad():
                return _checked(predict()), calls
        finally:
            self._record = []  # or it would keep the graph alive
            for linear in self._linears:
                del linear.module.__dict__["forward"]

    @_disable_dynamo  # a compiled critic's calls are noted too; torch.compiler's takes seconds to import
    def _forward(self, linear: Linear, input: Tensor) -> Tensor:
        output = nn.Linear.forward(linear.module, input)
        node = output.grad_fn
        edge = None if node is None else GradientEdge(node, output.output_nr)
        self._record.append((linear, input, _version(input), edge))
        return output

    def _layers(self, calls: Calls, n: int) -> list[tuple[Tensor, GradientEdge]] | None:
        """Input and edge of each group, or None unless each was called once, on N rows."""
        linears = self._linears
        if len(calls) != len(linears):
            return None
        found = {}
        for linear, input, version, edge in calls:
            if edge is not None and input.ndim == 2 and input.shape[0] == n:
                found[linear.module] = input, edge
            if _version(input) != version:
                raise InvalidBatch(
                    f"predict() overwrote the input of {linear.module} in place after it had been read, so "
                    "that the gradient is lost: write into a new tensor, or pass the layer a .clone()"
                )
        return [found[linear.module] for linear in linears] if len(found) == len(linears) else None

    def _keeps_rows(self, predictions: Tensor, layers: list[tuple[Tensor, GradientEdge]]) -> bool:
        nodes = {edge.node for _, edge in layers}
        tracked = {id(p) for p in self.parameters.tensors}  # not kept: a copy has others
        return keeps_rows([predictions, *(a for a, _ in layers)], nodes, tracked, predictions.shape[0])

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
            self._ones_like(predictions),
            retain_graph=keep_graph,
            allow_unused=True,
        )
        if all(b is None for b in gradients):
            _refuse_another_network()
        made = []
        for linear, (a, _), b in zip(self._linears, layers, gradients, strict=True):
            if b is None:
                b = predictions.new_zeros(len(predictions), linear.segment.rows)
            made.append(Layer(linear, a.detach().to(dtype), b.to(dtype)))
        return LinearJacobian(made, len(self.parameters))

    def _ones_like(self, predictions: Tensor) -> Tensor:
        """Ones, kept from one step to the next."""
        ones = self._ones
        if ones is None or ones.shape != predictions.shape or ones.dtype != predictions.dtype:
            ones = self._ones = torch.ones_like(predictions)
        return ones if ones.device == predictions.device else torch.ones_like(predictions)

    def _compare(self, predictions: Tensor, jacobian: LinearJacobian) -> tuple[bool, bool]:
        """Compare a random combination of all rows with autograd: it sees any mixing of rows.

        Returns whether the two agree, and whether every layer had a gradient to compare.
        """
        generator = torch.Generator("cpu").manual_seed(0)
        weights = torch.randn(len(predictions), generator=generator, device="cpu").to(predictions)
        gradients = torch.autograd.grad(
            predictions, self.parameters.tensors, weights, retain_graph=True, materialize_grads=True
        )
        expected = jacobian.layers[0].a.new_empty(len(self.parameters), 1)
        keyed = {id(p): g for p, g in zip(self.parameters.tensors, gradients, strict=True)}
        self.parameters.scatter(keyed, expected)
        got = jacobian.times(weights.to(expected)[:, None])
        scale = expected.norm()
        conclusive = all(bool(g.count_nonzero()) for g in gradients)
        eps = max(torch.finfo(dtype).eps for dtype in (predictions.dtype, expected.dtype))
        close = (expected[:, 0] - got).norm() <= ROUNDING * eps * scale
        # What is not finite is refused by the filter, with its sample.
        return bool(close) or not torch.isfinite(scale), conclusive

    def _general(self, predictions: Tensor, dtype: torch.dtype) -> DenseJacobian:
        n, tensors = len(predictions), [p for p in self.parameters.tensors if p.requires_grad]
        out = torch.empty(len(self.parameters), n, dtype=dtype, device=predictions.device)
        rows = max(1, min(n, CHUNK_ELEMENTS // len(self.parameters)))
        for start in range(0, n, rows):
            stop = min(n, start + rows)
            selector = torch.zeros(stop - start, n, dtype=predictions.dtype, device=predictions.device)
            selector[:, start:stop].fill_diagonal_(1.0)
            gradients = _batched_gradients(predictions, tensors, selector)
            keyed = {id(p): g for p, g in zip(tensors, gradients, strict=True) if g is not None}
            if not keyed:
                _refuse_another_network()
            self.parameters.scatter(keyed, out[:, start:stop])
        return DenseJacobian(out)


def _batched_gradients(
    predictions: Tensor, tensors: list[nn.Parameter], selector: Tensor
) -> list[Tensor | None]:
    """Gradients of each selected prediction, stacked; one by one for what can't be batched."""
    try:
        return list(
            torch.autograd.grad(
                predictions, tensors, selector, is_grads_batched=True, retain_graph=True, allow_unused=True
            )
        )
    except (RuntimeError, NotImplementedError):
        each = [
            torch.autograd.grad(predictions, tensors, row, retain_graph=True, allow_unused=True)
            for row in selector
        ]
    stacked: list[Tensor | None] = []
    for column in zip(*each, strict=True):
        dense = [g.to_dense() for g in column if g is not None]
        stacked.append(torch.stack(dense) if dense else None)
    return stacked


def _version(tensor: Tensor) -> int:
    """Counts the writes into a tensor; those of inference mode, which autograd can't use, are not counted."""
    return 0 if tensor.is_inference() else tensor._version


def keeping_autocast(predict: Predict, device: str) -> Predict:
    """The closure under the autocast of now, for a caller that is about to leave it.

    Without autocast's cache of the weights, which would hide their last update from the critic.
    """
    dtype = torch.get_autocast_dtype(device)

    def run() -> Tensor:
        with torch.autocast(device, dtype=dtype, cache_enabled=False):
            return predict()

    return run


def _refuse_another_network() -> NoReturn:
    raise InvalidBatch(
        "predict() does not use the weights that this Kova tracks: is it of another network, such as the "
        "target's, or of the critic before it was replaced or copied? Nothing was changed"
    )


def _checked(predictions: object) -> Tensor:
    if not isinstance(predictions, Tensor):
        raise InvalidBatch(f"predict() must return a tensor, got {type(predictions).__name__}")
    if predictions.ndim == 0:
        raise InvalidBatch(
            "predict() must return one prediction a sample, shape (N,), got a single number. If that is a "
            "loss: return the predictions themselves, Kova compares them with the targets"
        )
    if predictions.ndim != 1:
        single = predictions.numel() == len(predictions)
        several = (
            "pick one output a sample, as with .gather(1, actions).squeeze(1); or, if each has a target, "
            "as the steps of a sequence have, flatten both"
        )
        hint = "use .squeeze(-1)" if single else several
        raise InvalidBatch(
            f"predict() must return one prediction a sample, shape (N,), got shape "
            f"{tuple(predictions.shape)}: {hint}"
        )
    if predictions.shape[0] == 0:
        raise InvalidBatch("predict() returned an empty batch: at least one sample is needed")
    if not predictions.requires_grad:
        raise InvalidBatch(
            "predict() returned predictions without a gradient: call the module inside predict(), not "
            "before it, and without torch.no_grad(), torch.inference_mode() or .detach()"
        )
    return predictions
