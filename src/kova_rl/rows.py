"""Whether a graph of autograd works row by row: what the one-backward Jacobian takes for granted.

The graph of a closure is read at each call, before its backward. It costs about a microsecond a node, and it
sees what a comparison of numbers now and then may miss: a closure that mixes rows only at times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor

ANY = NONE = -1
Edge = tuple[Any, int]
"""A node of the graph and which of its outputs."""


def _names(text: str, number: int = 0) -> frozenset[str]:
    return frozenset(f"{name}Backward{number}" for name in text.split())


ELEMENTWISE = _names(
    "Abs Add Addcdiv Addcmul Atan Celu Clamp ClampMax ClampMin Clone Cos Div Elu Erf Exp Expand Expm1 Gelu "
    "Hardshrink Hardsigmoid Hardswish Hardtanh LeakyRelu Lerp Log Log1P LogSigmoid MaskedFill Maximum "
    "Minimum Mish Mul NativeDropout Neg Pow Reciprocal Relu RreluWithNoise Rsqrt Rsub Sigmoid Sign Silu Sin "
    "Softplus Softshrink Sqrt Sub Tanh Threshold ToCopy Where"
) | _names("Add Clamp Div Lerp Mul Pow Rsub Sub", 1)
"""Each entry of the result depends on the same entry of the operands, or on one that is broadcast to it."""
RESHAPES = _names("Squeeze UnsafeView Unsqueeze View") | _names("Squeeze", 1) | _names("Squeeze", 2)
"""The same numbers in the same order."""
ALONG = _names(
    "Amax Amin Cat Gather IndexSelect LogSoftmax Logsumexp Max Min Select Slice Softmax Split "
    "SplitWithSizes Unbind"
) | _names("Mean Sum", 1)
"""They work along the dimensions ``_saved_dim`` and leave the others apart."""


def keeps_rows(tensors: Iterable[Tensor], ends: Collection[Any], tracked: Collection[int], n: int) -> bool:
    """Whether every way from the tensors to an end keeps row i at row i, and none leads to a tracked leaf.

    Args:
        tensors: Of n rows each.
        ends: Nodes of results of n rows and two dimensions, where a way ends.
        tracked: The ``id`` of the parameters that nothing but the ends may use.
        n: The number of rows.

    True is a proof, from the kinds of the nodes and their shapes. False may only mean that a node is not
    known here: then the numbers have to be compared.
    """
    foreign: list[Any] = []
    seen: set[tuple[Edge, int]] = set()
    stack: list[tuple[Any, int, int]] = []
    for tensor in tensors:
        node = tensor.grad_fn
        if node is not None and node not in ends:
            stack.append((node, tensor.ndim, n))
    while stack:
        node, dimensions, rows = stack.pop()
        name = node.name()
        if rows != n or not (name in ELEMENTWISE or name in RESHAPES or _keeps(node, name, n)):
            foreign.append(node)
            continue
        wanted = dimensions if name in ELEMENTWISE else ANY  # or broadcasting could turn rows into columns
        for edge in node.next_functions:
            child, index = edge
            if child in ends:
                if wanted not in (ANY, 2):
                    return False
            elif child is not None and (edge, wanted) not in seen:
                seen.add((edge, wanted))
                shape = child._input_metadata[index].shape
                fits = len(shape) and wanted in (ANY, len(shape))
                stack.append((child, len(shape), shape[0] if fits else NONE))
    return not foreign or _apart(foreign, ends, tracked)


def _keeps(node: Any, name: str, n: int) -> bool:
    """Whether a node that is neither elementwise nor a reshape keeps rows apart."""
    if name in ALONG:
        return _along(node)
    if name == "IndexBackward0":
        return _picks(node, n)
    return name == "NativeBatchNormBackward0" and not node._saved_training


def _along(node: Any) -> bool:
    """Whether the node works along other dimensions than that of the rows."""
    dims = getattr(node, "_saved_dim", ())
    dims = dims if isinstance(dims, tuple) else (dims,)
    for child, index in node.next_functions:
        if child is not None:
            count = len(child._input_metadata[index].shape)
            # A dimension that is counted from the end is kept as an unsigned number: -1 as 2**64 - 1.
            if not (count and dims and all((dim - (dim >> 63 << 64)) % count for dim in dims)):
                return False
    return True


def _picks(node: Any, n: int) -> bool:
    """Whether an index takes row i for row i, as in ``q[torch.arange(n), actions]``."""
    first, *others = node._saved_indices
    if first is None or any(index is not None and index.ndim > 1 for index in others):
        return False
    return torch.equal(first, torch.arange(n, device=first.device))


def _apart(nodes: list[Any], ends: Collection[Any], tracked: Collection[int]) -> bool:
    """Whether nothing below these nodes is an end or a tracked parameter: then they may do as they like."""
    stack, seen = list(nodes), set(nodes)
    while stack:
        node = stack.pop()
        if node in ends or id(getattr(node, "variable", None)) in tracked:
            return False
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return True
