"""The trainable parameters of a module as one vector of whitened coordinates, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kova_rl.filter.covariance import FanIn
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.layout import Segment

View = tuple[tuple[int, ...], tuple[int, ...], int]


def uncompiled(module: nn.Module) -> nn.Module:
    """The module inside the wrapper of ``torch.compile``, which has the same parameters by longer names.

    So the names of a prior and of a saved state are the same with a compiled critic and without.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"module must be an nn.Module, got {type(module).__name__}: pass the critic itself, not "
            "its parameters()"
        )
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, nn.Module) else module


@dataclass(frozen=True)
class Member:
    """A parameter, and the columns of its segment that it fills."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int
    root: float
    """Square root of the prior variance of its entries."""
    view: View
    """Shape, strides and offset at which it stands in the vector of coordinates."""


@dataclass(frozen=True)
class Group:
    """The parameters of one module that have equally many rows, side by side."""

    module_name: str
    module: nn.Module
    members: tuple[Member, ...]
    segment: Segment


class Parameters:
    """Arranges the trainable parameters of ``module``, neuron by neuron, and whitens by the prior.

    Raises:
        ValueError: No trainable parameter, dtypes or devices that differ, or a prior that names a
            layer that is not there or leaves one out.
    """

    def __init__(self, module: nn.Module, prior: Prior) -> None:
        self.groups = _group(module, prior)
        self.segments = tuple(group.segment for group in self.groups)
        self.tensors = [m.parameter for group in self.groups for m in group.members]
        self.names = [m.name for group in self.groups for m in group.members]
        self.away = False
        """Whether they are :meth:`displaced` now."""
        self._root: Tensor | None = None
        self._plain = all(m.root == 1.0 for group in self.groups for m in group.members)
        self._places = [(m.parameter, m.view, m.root) for group in self.groups for m in group.members]
        kinds = {(p.dtype, p.device) for p in self.tensors}
        if len(kinds) > 1:
            listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ValueError(f"all parameters must have one dtype and one device, got {listed}")

    def __len__(self) -> int:
        return self.segments[-1].stop

    @property
    def priors(self) -> dict[str, float]:
        """Prior variance of each parameter's entries."""
        return {m.name: m.root**2 for group in self.groups for m in group.members}

    def root(self, like: Tensor) -> Tensor:
        """Square root of the prior variance of every coordinate, in the dtype of ``like``."""
        if self._root is None or self._root.dtype != like.dtype or self._root.device != like.device:
            self._root = torch.empty(len(self), 1, dtype=like.dtype, device=like.device)
            self.scatter({id(p): torch.ones_like(p)[None] for p in self.tensors}, self._root)
        return self._root[:, 0]

    def unwhitened(self, change: Tensor) -> Tensor:
        """A whitened change in the units of the weights."""
        return change if self._plain else change * self.root(change)

    def add_(self, change: Tensor) -> None:
        """Add a whitened ``change`` to the parameters, but for those that were frozen meanwhile."""
        for p, view, root in self._places:
            if p.requires_grad:
                p.add_(change.as_strided(*view), alpha=root)

    @contextmanager
    def displaced(self, change: Tensor) -> Iterator[None]:
        """A whitened ``change`` is added inside the block, and taken back to the bit after it."""
        with torch.no_grad():
            kept = [p.detach().clone() for p in self.tensors]
            self.add_(change)
        self.away = True
        try:
            yield
        finally:
            self.away = False
            with torch.no_grad():
                for p, value in zip(self.tensors, kept, strict=True):
                    p.copy_(value)

    def scatter(self, gradients: Mapping[int, Tensor], out: Tensor) -> None:
        """Write gradients, N of each parameter by its ``id``, whitened, as columns of d x N."""
        for group in self.groups:
            start, rows, cols, _ = group.segment
            block = out[start : start + rows * cols].unflatten(0, (rows, cols))
            for m in group.members:
                columns = block[:, m.start : m.stop]
                gradient = gradients.get(id(m.parameter))
                if gradient is None:
                    columns.zero_()
                else:
                    columns.copy_(gradient.reshape(out.shape[1], rows, -1).permute(1, 2, 0))
                if m.root != 1.0:
                    columns.mul_(m.root)


def _view(shape: tuple[int, ...], cols: int, offset: int) -> View:
    """A parameter whose rows stand ``cols`` apart, contiguous within a row."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 1, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    if shape:
        strides[0] = cols
    return shape, tuple(strides), offset


def _group(module: nn.Module, prior: Prior) -> list[Group]:
    groups: list[Group] = []
    seen: set[int] = set()
    start = layer = 0
    for module_name, owner in module.named_modules():
        by_rows: dict[int, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in owner.named_parameters(recurse=False):
            if isinstance(parameter, nn.UninitializedParameter):
                raise ValueError(
                    f"{module_name}.{name} is not initialised yet: call the lazy module once, then build Kova"
                )
            if parameter.requires_grad and parameter.numel() and id(parameter) not in seen:
                seen.add(id(parameter))
                rows = parameter.shape[0] if parameter.ndim else 1
                by_rows.setdefault(rows, []).append((name, parameter))
        for rows, named in by_rows.items():
            members, column = [], 0
            cols = sum(parameter.numel() for _, parameter in named) // rows
            for name, parameter in named:
                stop = column + parameter.numel() // rows
                full_name = f"{module_name}.{name}" if module_name else name
                root = _variance(prior, module_name, owner, parameter) ** 0.5
                view = _view(tuple(parameter.shape), cols, start + column)
                members.append(Member(full_name, parameter, column, stop, root, view))
                column = stop
            segment = Segment(start, rows, cols, layer)
            groups.append(Group(module_name, owner, tuple(members), segment))
            start = segment.stop
        layer += bool(by_rows)
    if not groups:
        raise ValueError(
            f"{type(module).__name__} has no trainable parameters: pass a module with at least one "
            "parameter whose requires_grad is True"
        )
    if isinstance(prior, Mapping):
        _check_names(prior, module)
    return groups


def _variance(prior: Prior, module_name: str, owner: nn.Module, parameter: nn.Parameter) -> float:
    if isinstance(prior, FanIn):
        alone = parameter.ndim < 2 or isinstance(owner, nn.Embedding)  # nothing is summed over its entries
        return prior.scale / (1 if alone else parameter[0].numel())
    if not isinstance(prior, Mapping):
        return float(prior)
    name = module_name
    while name not in prior:  # "body.2", then "body", then "", the whole module
        if not name:
            raise ValueError(
                f"prior gives no variance for layer {module_name!r}: it names "
                f"{', '.join(repr(key) for key in prior)}; use '' for all that are not named"
            )
        name = name.rpartition(".")[0]
    return float(prior[name])


def _check_names(prior: Mapping[str, float], module: nn.Module) -> None:
    names = {name for name, _ in module.named_modules()}
    unknown = [name for name in prior if name not in names]
    if unknown:
        raise ValueError(
            f"prior names {', '.join(repr(name) for name in unknown)}, but the module has "
            f"{', '.join(repr(name) for name in sorted(names))}"
        )
