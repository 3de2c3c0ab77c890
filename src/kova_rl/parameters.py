"""The trainable parameters of a module as one vector of whitened coordinates, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kova_rl.filter.covariance import FanIn
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.layout import Segment


@dataclass(frozen=True)
class Member:
    """A parameter, and the columns of its segment that it fills."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int


@dataclass(frozen=True)
class Group:
    """The parameters of one module that have equally many rows, side by side."""

    module_name: str
    module: nn.Module
    members: tuple[Member, ...]
    segment: Segment
    root: Tensor
    """Square root of the prior variance of each column."""


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
        self._roots: dict[tuple[torch.dtype, torch.device], list[Tensor | None]] = {}
        kinds = {(p.dtype, p.device) for p in self.tensors}
        if len(kinds) > 1:
            listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ValueError(f"all parameters must have one dtype and one device, got {listed}")

    def __len__(self) -> int:
        return self.segments[-1].stop

    def root(self, like: Tensor) -> Tensor:
        """Square root of the prior variance of every coordinate."""
        parts = [group.root.repeat(group.segment.rows) for group in self.groups]
        return torch.cat(parts).to(like)

    def roots(self, like: Tensor) -> list[Tensor | None]:
        """Each group's ``root`` on the device and of the dtype of ``like``; None where it is all 1."""
        key = (like.dtype, like.device)
        if key not in self._roots:
            trivial = [bool((group.root == 1.0).all()) for group in self.groups]
            roots = [group.root.to(like) for group in self.groups]
            self._roots[key] = [None if t else r for t, r in zip(trivial, roots, strict=True)]
        return self._roots[key]

    def add_(self, change: Tensor) -> None:
        """Add a whitened ``change`` to the parameters."""
        for group, root in zip(self.groups, self.roots(change), strict=True):
            segment = group.segment
            part = change[segment.start : segment.stop].view(segment.rows, segment.cols)
            if root is not None:
                part = part * root
            for member in group.members:
                p = member.parameter
                p.add_(part[:, member.start : member.stop].view_as(p))

    def scatter(self, gradients: Mapping[int, Tensor], out: Tensor) -> None:
        """Write gradients, N of each parameter by its ``id``, whitened, as rows of ``out``."""
        for group, root in zip(self.groups, self.roots(out), strict=True):
            segment = group.segment
            block = out[:, segment.start : segment.stop].unflatten(1, (segment.rows, segment.cols))
            for member in group.members:
                columns = slice(member.start, member.stop)
                gradient = gradients.get(id(member.parameter))
                if gradient is None:
                    block[:, :, columns] = 0.0
                else:
                    block[:, :, columns] = gradient.reshape(len(out), segment.rows, -1)
                if root is not None:
                    block[:, :, columns] *= root[columns]


def _group(module: nn.Module, prior: Prior) -> list[Group]:
    groups: list[Group] = []
    seen: set[int] = set()
    start = layer = 0
    for module_name, owner in module.named_modules():
        by_rows: dict[int, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                rows = parameter.shape[0] if parameter.ndim else 1
                by_rows.setdefault(rows, []).append((name, parameter))
        for rows, named in by_rows.items():
            members, roots, column = [], [], 0
            for name, parameter in named:
                width = parameter.numel() // rows
                full_name = f"{module_name}.{name}" if module_name else name
                members.append(Member(full_name, parameter, column, column + width))
                variance = _variance(prior, module_name, parameter)
                roots.append(torch.full((width,), variance**0.5, dtype=torch.float64))
                column += width
            segment = Segment(start, rows, column, layer)
            groups.append(Group(module_name, owner, tuple(members), segment, torch.cat(roots)))
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


def _variance(prior: Prior, module_name: str, parameter: nn.Parameter) -> float:
    if isinstance(prior, FanIn):
        fan_in = parameter[0].numel() if parameter.ndim >= 2 else 1
        return prior.scale / fan_in
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
