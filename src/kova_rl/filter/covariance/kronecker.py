r"""P as one Kronecker product a layer: no matrix of d rows anywhere, so that it serves at any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NonFiniteBatch
from kova_rl.filter.checks import check_whole
from kova_rl.filter.covariance.base import Covariance, Prior, Spread
from kova_rl.filter.evidence import Evidence, Jacobian, Noise, inverse_lower
from kova_rl.filter.layout import Segment
from kova_rl.filter.step import State, Update, check_finite_gram, cholesky

if TYPE_CHECKING:
    from kova_rl.filter.evolution import Evolution

GROWTH = 2.0
"""Roots are refreshed early if the information has become this many times more, or less, than theirs."""
HARD = 256
"""Units of rounding of ``tr H'PH`` below which the noise is lost in float32, so that float64 solves."""
RIDGE = 16
"""Units of rounding of a factor's trace that are added to its diagonal: it does not know better."""

Rooted = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Kronecker(Covariance):
    prior: Prior = 1.0
    refresh: int = 8
    dtype: torch.dtype | None = None

    factored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("refresh", self.refresh, least=1)
        super().__post_init__()

    def init(self, segments: Sequence[Segment], like: Tensor) -> State:
        def layer(segment: Segment) -> dict[str, Tensor]:
            kept = {}
            for name, size in (("inputs", segment.cols), ("outputs", segment.rows)):
                kept[name] = torch.zeros(size, size, dtype=like.dtype, device=like.device)
                kept[f"{name} root"] = torch.eye(size, dtype=like.dtype, device=like.device)
            return kept

        layers = {str(segment.start): layer(segment) for segment in segments}
        return {"age": 0, "information": 0.0, "rooted": 0.0, "layers": layers}

    def step(
        self, state: State, evolution: Evolution, memory: State, evidence: Evidence, lr: float
    ) -> Update:
        eta = evolution.leak(memory)
        factors = evidence.jacobian.factors()
        if factors is None:
            raise InvalidBatch(
                f"step {evidence.step}: Kronecker needs the inputs and the output gradients of every Linear "
                "layer, which this closure does not give: it mixes rows (as BatchNorm in training mode does), "
                "calls a layer twice or not at all, or a parameter was frozen. Nothing was changed. Use "
                "covariance.LowRank."
            )
        layers = list(state["layers"].values())
        rooted = [
            (a @ layer["inputs root"].T, b @ layer["outputs root"].T)
            for layer, (_, a, b) in zip(layers, factors, strict=True)
        ]
        S, jitter, z, noise = _solve(rooted, evidence)
        nis = evidence.innovation.to(z).dot(z).item() / len(z)
        column = z.unsqueeze(1) if lr == 1.0 else z.unsqueeze(1) * lr
        delta = evidence.innovation.new_empty(evidence.jacobian.size)
        for layer, (start, a, b), pair in zip(layers, factors, rooted, strict=True):
            place = delta.as_strided((b.shape[1], a.shape[1]), (a.shape[1], 1), start)
            _move(place, layer, *pair, column)
        gains = [_gain(a, b, evidence.noise, lr) for _, a, b in factors]
        gained = sum(float(gain.total) for gain in gains)
        if not math.isfinite(gained):
            raise NonFiniteBatch(
                f"step {evidence.step}: the information of the batch overflows. Nothing was changed. "
                "Normalise the inputs of the critic, or take a larger observation noise."
            )

        def commit() -> None:
            keep = 1 - eta
            for layer, (_, a, b), gain in zip(layers, factors, gains, strict=True):
                layer["inputs"].addmm_(a.T, gain.inputs, beta=keep)
                layer["outputs"].addmm_(b.T, gain.outputs, beta=keep)
            state["information"] = keep * state["information"] + gained
            state["age"] += 1
            now, then = state["information"], state["rooted"]
            if state["age"] >= self.refresh or not then / GROWTH <= now <= then * GROWTH:
                state["age"], state["rooted"] = 0, now
                for layer in layers:
                    _refresh(layer)

        return Update(delta, nis, lambda: noise.taken_from(S).to(delta.dtype), commit, jitter)

    def spread(self, state: State, jacobian: Jacobian) -> Spread:
        layers, factors = state["layers"].values(), jacobian.factors()
        if factors is None:
            root = self._times_root(state, jacobian.dense())
            return Spread.of(root, root)
        rooted = [
            (a @ layer["inputs root"].T, b @ layer["outputs root"].T)
            for layer, (_, a, b) in zip(layers, factors, strict=True)
        ]
        squares = [torch.linalg.vecdot(a, a) * torch.linalg.vecdot(b, b) for a, b in rooted]
        return Spread(torch.stack(squares).sum(0), lambda: _gram(rooted))

    def _times_root(self, state: State, H: Tensor) -> Tensor:
        """``(V x U) H``, whose product with itself is ``H'PH``, in the place of H."""
        for start, layer in state["layers"].items():
            U, V = layer["inputs root"], layer["outputs root"]
            block = H[int(start) : int(start) + len(U) * len(V)].view(len(V), len(U), -1)
            block.copy_(torch.einsum("kr,rcn,lc->kln", V, block, U))
        return H

    def draw(self, state: State, normal: Tensor) -> Tensor:
        out = torch.empty_like(normal)
        for start, layer in state["layers"].items():
            U, V = layer["inputs root"], layer["outputs root"]
            part = slice(int(start), int(start) + len(U) * len(V))
            torch.mm(V.T @ normal[part].view(len(V), len(U)), U, out=out[part].view(len(V), len(U)))
        return out

    def variances(self, state: State) -> Tensor:
        return torch.cat(
            [
                torch.outer(
                    layer["outputs root"].square().sum(0), layer["inputs root"].square().sum(0)
                ).flatten()
                for layer in state["layers"].values()
            ]
        )


def _gram(rooted: Rooted) -> Tensor:
    """``H'PH``, N x N: a sum over layers of elementwise products."""
    out: Tensor | None = None
    for a, b in rooted:
        outer = torch.mm(b, b.T)
        inner = torch.mm(a, a.T)
        out = inner.mul_(outer) if out is None else out.addcmul_(inner, outer)
    assert out is not None
    return out


def _solve(rooted: Rooted, evidence: Evidence) -> tuple[Tensor, float, Tensor, Noise]:
    """S, the jitter, ``z = S^-1 innovation`` and the noise; in float64 where float32 would lose the noise."""
    noise, innovation = evidence.noise, evidence.innovation
    M = _gram(rooted)
    check_finite_gram(M, evidence)
    if M.dtype != torch.float64 and _is_hard(M, noise):
        rooted[:] = [(a.double(), b.double()) for a, b in rooted]
        M, noise, innovation = _gram(rooted), Noise(noise.covariance.double()), innovation.double()
    S = noise.added_to(M)
    lower, jitter = cholesky(S, evidence)
    return S, jitter, torch.cholesky_solve(innovation.unsqueeze(1), lower).squeeze(1), noise


def _is_hard(M: Tensor, noise: Noise) -> bool:
    """Whether the rounding of M is no longer small beside the noise; a matrix of noise is not looked into."""
    least = HARD * torch.finfo(M.dtype).eps * M.trace()
    return not noise.is_diagonal or bool(noise.covariance.min() < least)


def _move(place: Tensor, layer: dict[str, Tensor], a: Tensor, b: Tensor, z: Tensor) -> None:
    """Write a layer's part of ``P H z``, rows x cols, in the order that takes the fewest operations."""
    U, V = layer["inputs root"], layer["outputs root"]
    (rows, cols), n = place.shape, len(z)
    b = b * z
    if a.dtype == U.dtype and n * (rows**2 + cols**2) <= rows * cols * (rows + cols):
        torch.mm((b @ V).T, a @ U, out=place)
    else:
        torch.mm(V.T @ (b.T @ a).to(U.dtype), U, out=place)


class _Gain(NamedTuple):
    """What a batch adds to a layer's factors: ``a' inputs``, ``b' outputs``, and the trace of both."""

    inputs: Tensor
    outputs: Tensor
    total: Tensor


def _gain(a: Tensor, b: Tensor, noise: Noise, lr: float) -> _Gain:
    """The two partial traces of ``lr sum_ij (P_n^-1)_ij (b_i b_j') x (a_i a_j')``."""
    if noise.is_diagonal:
        w = lr / noise.covariance
        along_a, along_b = torch.linalg.vecdot(a, a), torch.linalg.vecdot(b, b).mul_(w)
        total = along_a.dot(along_b)
        return _Gain(a * along_b.unsqueeze(1), b * along_a.mul_(w).unsqueeze(1), total)
    W = noise.inverse() * lr
    with_b, outer_a = W * (b @ b.T), a @ a.T
    return _Gain(with_b @ a, (W * outer_a) @ b, with_b.mul_(outer_a).sum())


def _refresh(layer: dict[str, Tensor]) -> None:
    """Roots of the P of the layer's information."""
    A, B = layer["inputs"], layer["outputs"]
    trace = float(B.trace())
    if not trace > 0.0:
        return
    rows, cols = len(B), len(A)
    if rows == 1:
        x, y = 1.0, 0.0
    elif cols == 1:
        x, y = 0.0, 1.0
    else:
        x, y = (cols / (rows * trace)) ** 0.5, (rows / (cols * trace)) ** 0.5
    for name, share in (("inputs", x), ("outputs", y)):
        if share:
            layer[f"{name} root"].copy_(_inverse_root(layer[name], share))


def _inverse_root(A: Tensor, share: float) -> Tensor:
    """U, lower triangular, of ``U'U = (I + share A)^-1``."""
    C = A * share
    ridge = RIDGE * torch.finfo(A.dtype).eps * float(C.trace())
    C.diagonal().add_(1 + ridge)
    lower, failed = torch.linalg.cholesky_ex(C)
    while failed.item():  # ends: the trace itself is more than enough
        C.diagonal().add_(ridge)
        ridge *= 2
        lower, failed = torch.linalg.cholesky_ex(C)
    return inverse_lower(lower)
