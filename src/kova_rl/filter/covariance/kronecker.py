r"""P as one Kronecker product a layer: no matrix of d rows anywhere, so that it serves at any width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch, NonFiniteBatch
from kova_rl.filter.change import Change, Leak, Restart, Unchanged
from kova_rl.filter.checks import check_whole
from kova_rl.filter.covariance import products
from kova_rl.filter.covariance.base import ANY, Accepted, Covariance, Prior, Spread
from kova_rl.filter.covariance.products import Layer, Pair, Sides, gram, sides_of, squares_of, tiles
from kova_rl.filter.evidence import Evidence, Factors, Jacobian
from kova_rl.filter.layout import Segment
from kova_rl.filter.step import State, Update, check_finite, cholesky_of_finite

GROWTH = 2.0
"""P is refreshed early if the information has become this many times more, or less, than it was then."""
DAMPED = 0.75
"""What pays for the cross terms of a damped product; measured, so that the error bars are right."""
HARD = 32
"""Units of rounding of variances that the noise must exceed."""
WIDE = 256
"""Rows of a factor above which it is so too."""
SAMPLES = 64
"""Rows of a batch that are enough for a mean over many batches, where the layer is not exact anyhow."""
RIDGE = 16
"""Units of rounding of a factor's trace that are added to its diagonal: it does not know better."""

ROUNDING = 1e-4
"""Share of a layer's gradients that may be left when they are taken for products."""

Pairs = list[Pair]


@dataclass(frozen=True)
class Kronecker(Covariance):
    r"""One Kronecker product a layer, for critics of ``nn.Linear``: a few times Adam's price at any width.

    A sample's gradient in a layer is ``b_i x a_i``: its inputs a (with the bias' 1) and the gradient b at
    its outputs. The layer's information is kept as its two partial traces, and P is a product of two factors:

    .. math::
        \begin{aligned}
        A &\leftarrow (1-\eta) A + \alpha \sum_{ij} (P_n^{-1})_{ij}\, b_i'b_j\; a_i a_j'
            && \text{cols x cols} \\
        B &\leftarrow (1-\eta) B + \alpha \sum_{ij} (P_n^{-1})_{ij}\, a_i'a_j\; b_i b_j'
            && \text{rows x rows, } t = \operatorname{tr} A = \operatorname{tr} B \\
        P &= \big(I + c \tfrac{\pi}{\sqrt t} B\big)^{-1} \otimes \big(I + c \tfrac{1}{\pi \sqrt t} A\big)^{-1}
            && \text{for } (I + B \otimes A / t)^{-1} \\
        H'PH &= \sum_\text{layers} (a M_A a') \circ (b M_B b')
            && \text{and no matrix has d rows}
        \end{aligned}

    ``pi`` is where both factors say equally much of a weight, ``logdet / size``, and ``c = 0.75`` pays for
    the cross terms that a product has and the sum has not. Where a layer has one output, as the last one, its
    information is A itself, and P exact. Nothing is subtracted from a covariance: P is positive definite
    and at most P_0 for any stream, in float32 too.

    P is computed anew every ``refresh`` steps, and at once when the information has doubled or halved; in
    between it is a valid P that is a little old, and so is what the posterior reports. A step's leak shows
    with the next refresh. Of batches of 128 or more samples about 64 enter the factors of inexact layers, by
    turns, with the weight of all. For ``lr < 1`` the information is tempered as in :class:`LowRank`.

    Args:
        prior: See :class:`Covariance`. :class:`FanIn` is the better choice for wide critics.
        refresh: Steps between two refreshes, at least 1.
        dtype: See :class:`Covariance`.
    """

    prior: Prior = 1.0
    refresh: int = 8
    dtype: torch.dtype | None = None

    factored: ClassVar[bool] = True
    accepts: ClassVar[Accepted] = {Unchanged: ANY, Leak: ANY, Restart: ANY}

    def __post_init__(self) -> None:
        check_whole("refresh", self.refresh, least=1)
        super().__post_init__()

    def init(self, segments: Sequence[Segment], like: Tensor, kind: type[Change]) -> State:
        def layer(segment: Segment) -> Layer:
            kept: Layer = {"balance": 1.0}
            for name, size in (("inputs", segment.cols), ("outputs", segment.rows)):
                kept[name] = torch.zeros(size, size, dtype=like.dtype, device=like.device)
                kept[f"{name} root"] = torch.eye(size, dtype=like.dtype, device=like.device)
            return kept

        layers = {str(segment.start): layer(segment) for segment in segments}
        return {"age": 0, "information": 0.0, "known": 0.0, "layers": layers}

    def step(self, state: State, change: Change, evidence: Evidence, lr: float) -> Update:
        eta = change.eta if isinstance(change, Leak) else 0.0
        factors = evidence.jacobian.factors() or _taken_apart(state, evidence.jacobian)
        if not factors:
            raise InvalidBatch(
                f"step {evidence.step}: Kronecker needs the inputs and the output gradients of each Linear "
                "layer, which this closure does not give: it mixes rows (as BatchNorm in training mode "
                "does), or calls a layer twice. Nothing was changed. Use covariance.LowRank."
            )
        layers, pairs = list(state["layers"].values()), [(a, b) for _, a, b in factors]
        batch = _Batch(pairs, evidence, lr)
        inverses = (
            products.inverses_of(state["layers"], evidence.workspace) if batch.plain else [None] * len(pairs)
        )
        sides = [sides_of(*each) for each in zip(layers, pairs, inverses, strict=True)]
        M = gram(sides)  # H' P- H
        expected, noise = M.diagonal().clone(), evidence.noise
        if not (batch.plain or batch.fits(expected)):
            sides, noise = [side.double() for side in sides], noise.double()
            M = gram(sides)
        lower, jitter = cholesky_of_finite(noise.added_to(M), evidence)
        w = torch.linalg.solve_triangular(lower, evidence.innovation.to(M.dtype).unsqueeze(1), upper=False)
        z = torch.linalg.solve_triangular(lower.T, w, upper=True)  # S^-1 innovation
        nis = torch.linalg.vecdot(w, w, dim=0).item() / w.shape[0]
        delta = evidence.innovation.new_empty(evidence.jacobian.size)
        column = z if lr == 1.0 else z * lr
        for layer, (start, a, b), side in zip(layers, factors, sides, strict=True):
            side.place(layer, column, delta.as_strided((b.shape[1], a.shape[1]), (a.shape[1], 1), start))

        def commit() -> None:
            for k, layer in enumerate(layers):
                batch.add_to(layer, k, 1 - eta)
            now = state["information"] = (1 - eta) * state["information"] + batch.information
            state["age"] += 1
            if state["age"] >= self.refresh or not now / GROWTH <= state["known"] <= now * GROWTH:
                state["age"], state["known"] = 0, now
                for layer in layers:
                    _refresh(layer)

        return Update(delta, nis, lambda: expected, commit, jitter)

    def spread(self, state: State, jacobian: Jacobian) -> Spread:
        factors = jacobian.factors()
        if factors is None:  # P is what it is, for any H
            root = _times_root(state, jacobian.dense())
            return Spread.of(root, root)
        layers = state["layers"].values()
        sides = [sides_of(layer, (a, b)) for layer, (_, a, b) in zip(layers, factors, strict=True)]
        return Spread(squares_of(sides), partial(gram, sides))

    def draw(self, state: State, normal: Tensor) -> Tensor:
        out = torch.empty_like(normal)
        for part, layer in _parts(state):
            Z = normal[part].view(len(layer["outputs"]), -1)
            out[part] = products.unrooted(layer, Z).flatten()
        return out

    def variances(self, state: State) -> Tensor:
        diagonals = [
            torch.outer(
                *(products.inverse_of(layer[f"{name} root"]).diagonal() for name in ("outputs", "inputs"))
            ).flatten()
            for _, layer in _parts(state)
        ]
        return torch.cat(diagonals)


def _taken_apart(state: State, jacobian: Jacobian) -> list[Factors]:
    """The factors of a plain matrix H, as of a critic with a parameter frozen later; none if it has none."""
    H, found = jacobian.dense(), []
    for part, layer in _parts(state):
        G = H[part].T.unflatten(1, (len(layer["outputs"]), -1))
        longest = torch.linalg.vecdot(G, G).argmax(1)
        a = G[torch.arange(len(G)), longest]
        length = torch.linalg.vecdot(a, a).clamp(min=torch.finfo(a.dtype).tiny)
        b = torch.linalg.vecdot(G, a.unsqueeze(1)) / length.unsqueeze(1)
        rest = torch.linalg.norm(G - b.unsqueeze(2) * a.unsqueeze(1))
        if rest > ROUNDING * torch.linalg.norm(G):
            return []
        found.append(Factors(part.start, a, b))
    return found


class _Batch:
    """What a batch adds to the information."""

    def __init__(self, pairs: Pairs, evidence: Evidence, lr: float) -> None:
        self.pairs, self.noise, self.step, self.lr = pairs, evidence.noise, evidence.step, lr
        self.lengths = [(torch.linalg.vecdot(a, a), torch.linalg.vecdot(b, b)) for a, b in pairs]
        prior = self.lengths[0][0] * self.lengths[0][1]  # the diagonal of H'P_0 H
        for a, b in self.lengths[1:]:
            prior.addcmul_(a, b)
        self.weights = self.noise.inverse()
        if self.noise.is_diagonal:
            total = prior.dot(self.weights).item()
        else:
            total = (self.weights * gram([Sides(pair, pair) for pair in pairs])).sum().item()
        if not math.isfinite(total):
            check_finite(prior, evidence)
            raise NonFiniteBatch(
                f"step {evidence.step}: the information of the batch overflows. Nothing was changed. "
                "Normalise the inputs of the critic, or take a larger observation noise."
            )
        self.information = lr * total
        self._most = 1 / (HARD * torch.finfo(prior.dtype).eps)
        self.plain = self.noise.is_diagonal and total < self._most

    def fits(self, variances: Tensor) -> bool:
        """Whether rounding in units of these variances of predictions is little beside the noise."""
        # A noise that is a matrix is not looked into.
        return self.noise.is_diagonal and variances.dot(self.weights).item() < self._most

    def add_to(self, layer: Layer, k: int, keep: float) -> None:
        """Leak the two partial traces of a layer, and add those of the batch; if it is exact, one of them."""
        (a, b), W, lr = self.pairs[k], self.weights, self.lr
        exact = products.exact(layer)
        if self.noise.is_diagonal:
            for_b, for_a = ((length * W).unsqueeze(1) for length in self.lengths[k])
            stride = a.shape[0] // SAMPLES
            if stride > 1 and exact is None:
                a, b, for_a, for_b = (x[self.step % stride :: stride] for x in (a, b, for_a, for_b))
                lr *= len(W) / len(a)
        if exact != "outputs":
            weighed = a * for_a if self.noise.is_diagonal else (W * (b @ b.T)) @ a
            _add(layer["inputs"], a, weighed, keep, lr)
        if exact != "inputs":
            weighed = b * for_b if self.noise.is_diagonal else (W * (a @ a.T)) @ b
            _add(layer["outputs"], b, weighed, keep, lr)


def _add(factor: Tensor, left: Tensor, right: Tensor, keep: float, lr: float) -> None:
    """``factor <- keep factor + lr left' right``, which is symmetric: of a large one its lower half."""
    if factor.shape[0] <= WIDE:
        factor.addmm_(left.T, right, beta=keep, alpha=lr)
        return
    for start, stop in tiles(factor.shape[0]):
        part = factor[start:stop, :stop]
        part.addmm_(left[:, start:stop].T, right[:, :stop], beta=keep, alpha=lr)


def _parts(state: State) -> Iterator[tuple[slice, Layer]]:
    """Each layer, and its coordinates."""
    for start, layer in state["layers"].items():
        yield slice(int(start), int(start) + len(layer["inputs"]) * len(layer["outputs"])), layer


def _times_root(state: State, H: Tensor) -> Tensor:
    """``R H`` with ``R'R = P``, in the place of H."""
    for part, layer in _parts(state):
        block = H[part].view(len(layer["outputs"]), len(layer["inputs"]), -1)
        half = torch.linalg.solve_triangular(layer["inputs root"].T, block, upper=False)
        whole = torch.linalg.solve_triangular(layer["outputs root"].T, half.flatten(1), upper=False)
        block.copy_(whole.view_as(block))
    return H


def _refresh(layer: Layer) -> None:
    """P of a layer's information, as the roots of what its two factors are the inverses of."""
    exact = products.exact(layer)
    trace = float(layer[exact or "outputs"].trace())
    if not trace > 0.0:
        return
    if exact is not None:
        layer[f"{exact} root"] = _root(layer[exact], 1.0)
        return
    cols, rows = len(layer["inputs"]), len(layer["outputs"])
    pi = layer["balance"] * (cols / rows) ** 0.5 * trace**-0.5
    inputs, outputs = _update(layer, "inputs", DAMPED * pi), _update(layer, "outputs", DAMPED / (trace * pi))
    layer["balance"] *= _rebalance(inputs, outputs)


def _rebalance(inputs: tuple[float, float], outputs: tuple[float, float]) -> float:
    """One step of Newton's towards factors that say equally much of a weight, in the geometric mean."""
    change = (outputs[0] - inputs[0]) / max(inputs[1] + outputs[1], 0.1)
    return math.exp(min(2.0, max(-2.0, change)))


def _update(layer: Layer, name: str, share: float) -> tuple[float, float]:
    """The root of ``I + share factor``; the mean logarithm of its eigenvalues, and about its derivative.

    The derivative is the mean of ``1 - 1/eigenvalue``. Squares of the root's diagonal in place of eigenvalues
    give no less, so that a step of Newton's is never too long.
    """
    root = layer[f"{name} root"] = _root(layer[name], share)
    squares = root.diagonal().square()
    return float(squares.log().mean()), 1 - float(squares.reciprocal().mean())


def _root(factor: Tensor, share: float) -> Tensor:
    """U, upper triangular, of ``U'U = I + share factor``."""
    C = factor * share
    ridge = RIDGE * torch.finfo(C.dtype).eps * float(C.trace())
    C.diagonal().add_(1 + ridge)
    lower, failed = torch.linalg.cholesky_ex(C)
    while failed.item():  # ends: the trace itself would be more than enough
        C.diagonal().add_(ridge)
        ridge *= 2
        lower, failed = torch.linalg.cholesky_ex(C)
    root: Tensor = lower.T
    return root
