"""The blocks of a Kronecker-factored Fisher matrix: which parameters, which factors, which inverse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from kova_rl.errors import StateMismatch

LARGEST = 1000
"""Elements of a parameter outside nn.Linear, whose Fisher matrix is kept in full."""

CHUNK = 128
"""Samples whose gradients are taken at once for a full block."""

Memory = dict[str, Any]


class Factors(NamedTuple):
    """Fisher matrix ``A (x) G`` of a block, for gradients D of shape (G's size) x (A's size)."""

    A: Tensor
    G: Tensor


@dataclass(frozen=True)
class Block(ABC):
    """Parameters whose Fisher matrix is kept together, as one matrix of gradients D in float64."""

    name: str
    parameters: tuple[nn.Parameter, ...]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Of D: rows as G, columns as A."""

    @abstractmethod
    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """One tensor a parameter, as the matrix D."""

    @abstractmethod
    def parted(self, matrix: Tensor) -> Iterator[Tensor]:
        """The inverse of :meth:`joined`."""

    def init(self) -> Memory:
        """Empty factors, their eigendecompositions and the momentum."""
        rows, columns = self.shape
        like = self.parameters[0].detach()

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=like.device)

        return {
            "observed": 0,
            "steps": 0,
            "A": zeros(columns, columns),
            "G": zeros(rows, rows),
            "vectors_A": zeros(columns, columns),
            "vectors_G": zeros(rows, rows),
            "values_A": zeros(columns),
            "values_G": zeros(rows),
            "momentum": zeros(rows, columns),
        }

    def gradient(self, weight_decay: float) -> Tensor | None:
        """D of the parameters' ``.grad``, or None where none of them has one."""
        if all(p.grad is None for p in self.parameters):
            return None
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        joined = self.joined(grads)
        return joined + weight_decay * self.joined(self.parameters) if weight_decay else joined

    def subtract_(self, matrix: Tensor) -> None:
        """Take a step."""
        for p, part in zip(self.parameters, self.parted(matrix), strict=True):
            p.sub_(part.to(p.dtype))


@dataclass(frozen=True)
class LinearBlock(Block):
    """A weight and its bias, with the bias as a last column: ``D = [W b]``."""

    layer: nn.Linear

    @property
    def shape(self) -> tuple[int, int]:
        return self.layer.out_features, self.layer.in_features + len(self.parameters) - 1

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.double().view(self.shape[0], -1) for part in parts], 1)

    def parted(self, matrix: Tensor) -> Iterator[Tensor]:
        columns = [p.numel() // self.shape[0] for p in self.parameters]
        for p, part in zip(self.parameters, matrix.split(columns, 1), strict=True):
            yield part.reshape(p.shape)

    def factors(self, inputs: Tensor, output_gradients: Tensor) -> Factors:
        """``A = mean a a'`` with the input a and a one for the bias, ``G = mean g g'``."""
        a, g = inputs.double(), output_gradients.double()
        if len(self.parameters) == 2:
            a = torch.cat([a, a.new_ones(len(a), 1)], 1)
        return Factors(_second_moment(a), _second_moment(g))


@dataclass(frozen=True)
class FullBlock(Block):
    """One small parameter with its full Fisher matrix: G alone, ``A = 1``."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.parameters[0].numel(), 1

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0].double().reshape(-1, 1)

    def parted(self, matrix: Tensor) -> Iterator[Tensor]:
        yield matrix.view(self.parameters[0].shape)

    def factors(self, log_likelihoods: Tensor) -> Factors | None:
        """From the gradient of each sample's log-likelihood; None where they do not depend on it."""
        (p,) = self.parameters
        total, n = log_likelihoods.new_zeros(p.numel(), p.numel(), dtype=torch.float64), len(log_likelihoods)
        for start in range(0, n, CHUNK):
            rows = torch.zeros(min(CHUNK, n - start), n, dtype=log_likelihoods.dtype, device=p.device)
            rows.diagonal(start).fill_(1.0)
            (found,) = torch.autograd.grad(
                log_likelihoods, p, rows, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
            if found is None:
                return None
            scores = found.detach().flatten(1).double()
            total.addmm_(scores.mT, scores)
        return Factors(total.new_ones(1, 1), _symmetric(total / n))


def average_(memory: Memory, batch: Factors, decay: float) -> None:
    r"""Exponential average with its bias at the start corrected, so that the first batch counts in full.

    .. math:: M \leftarrow M + \tfrac{1 - \rho}{1 - \rho^t} (M_\text{batch} - M)
    """
    memory["observed"] += 1
    weight = (1 - decay) / (1 - decay ** memory["observed"])
    memory["A"] = torch.lerp(memory["A"], batch.A, weight)
    memory["G"] = torch.lerp(memory["G"], batch.G, weight)


def decomposed(memory: Memory) -> Memory:
    """Eigenvectors and eigenvalues of both factors, with no eigenvalue below 0."""
    (values_A, vectors_A), (values_G, vectors_G) = (torch.linalg.eigh(memory[key]) for key in "AG")
    return {
        "vectors_A": vectors_A,
        "vectors_G": vectors_G,
        "values_A": values_A.clamp(min=0.0),
        "values_G": values_G.clamp(min=0.0),
    }


def natural_gradient(D: Tensor, eigen: Memory, damping: float) -> Tensor:
    """``(A (x) G + damping I)^-1 D``, as ``Q_G [(Q_G' D Q_A) / (d_G d_A' + damping)] Q_A'``."""
    Q_A, Q_G = eigen["vectors_A"], eigen["vectors_G"]
    denominator = torch.outer(eigen["values_G"], eigen["values_A"]) + damping
    found: Tensor = Q_G @ ((Q_G.mT @ D @ Q_A) / denominator) @ Q_A.mT
    return found


def blocks_of(module: nn.Module) -> list[Block]:
    """One block for each nn.Linear and for each small parameter elsewhere.

    Raises:
        ValueError: No trainable parameter, one too large or of a convolution, or one of two layers.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"module must be an nn.Module, got {type(module).__name__}: pass the network itself, not its "
            "parameters()"
        )
    names = {p: name for name, p in module.named_parameters() if p.requires_grad}
    if not names:
        raise ValueError(f"{type(module).__name__} has no trainable parameters: KFAC needs at least one")
    blocks: list[Block] = []
    taken: set[nn.Parameter] = set()
    for prefix, layer in module.named_modules():
        own = {p: names[p] for p in layer._parameters.values() if p is not None and p in names}
        shared = [name for p, name in own.items() if p in taken]
        if shared:
            raise ValueError(f"{shared[0]} is shared with {prefix}: KFAC needs parameters of its own in each")
        taken |= own.keys()
        if type(layer) is nn.Linear and layer.weight in own:
            pair = tuple(p for p in own if id(p) in (id(layer.weight), id(layer.bias)))
            blocks.append(LinearBlock(prefix or "linear", pair, layer))
            for p in pair:
                del own[p]
        for p, name in own.items():
            _check_full(p, name, layer)
            blocks.append(FullBlock(name, (p,)))
    return blocks


def _check_full(p: nn.Parameter, name: str, layer: nn.Module) -> None:
    if isinstance(layer, _ConvNd):
        raise ValueError(
            f"{name} belongs to a {type(layer).__name__}, which KFAC has no factors for: use nn.Linear "
            "layers on flattened inputs, or freeze it with requires_grad_(False)"
        )
    if p.numel() > LARGEST:
        raise ValueError(
            f"{name} of {type(layer).__name__} must have at most {LARGEST} elements, as it is in no "
            f"nn.Linear and its Fisher matrix is kept in full, got {p.numel()}: use nn.Linear layers, or "
            "freeze it with requires_grad_(False)"
        )


def _second_moment(rows: Tensor) -> Tensor:
    return _symmetric(rows.mT @ rows / len(rows))


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


# ---------------------------------------------------------------------- saving and loading


def copied(tree: Any, device: torch.device) -> Any:
    """A tree of dicts with its tensors copied to a device."""
    if isinstance(tree, dict):
        return {key: copied(value, device) for key, value in tree.items()}
    return tree.detach().clone().to(device) if isinstance(tree, Tensor) else tree


def check_same(loaded: Any, mine: Any, path: str) -> None:
    """``StateMismatch`` unless two trees have the same keys, shapes and dtypes, and the same words."""
    if isinstance(mine, dict):
        if not isinstance(loaded, dict) or loaded.keys() != mine.keys():
            has = list(loaded) if isinstance(loaded, dict) else type(loaded).__name__
            raise StateMismatch(f"{path}: the state dict has {has}, this KFAC has {list(mine)}")
        for key, value in mine.items():
            check_same(loaded[key], value, f"{path}.{key}")
        return
    if isinstance(mine, Tensor) and isinstance(loaded, Tensor):
        theirs, ours = (f"{x.dtype} {tuple(x.shape)}" for x in (loaded, mine))
        same = theirs == ours
    else:
        theirs, ours, same = repr(loaded), repr(mine), isinstance(loaded, int | float)
    if not same or isinstance(mine, Tensor) != isinstance(loaded, Tensor):
        raise StateMismatch(f"{path}: the state dict has {theirs}, this KFAC has {ours}")
