"""Bad input raises the right error, says what was expected and what came, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from benchmarks.stress import extremes
from torch import Tensor, nn

from kova_rl import (
    InvalidBatch,
    Kova,
    KovaError,
    NonFiniteBatch,
    NotPositiveDefinite,
    covariance,
    evolution,
    observation,
)
from tests import members

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("eta", [-0.1, 1.0, 2, NAN, "0.1", None, True])
@pytest.mark.parametrize(
    "kind",
    [
        evolution.Leakage,
        evolution.VariableLeakage,
        evolution.PriorAnchored,
        evolution.DirectionalForgetting,
        evolution.FadingMemory,
        evolution.Memoryless,
    ],
)
def test_eta_outside_zero_to_one(kind: Callable[[Any], object], eta: Any) -> None:
    with pytest.raises(ValueError, match=rf"eta must be a number in \[0, 1\), got {eta!r}"):
        kind(eta)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Kova(nn.Linear(1, 1), lr=0.0), r"lr must be a number in \(0, 1\], got 0.0"),
        (lambda: Kova(nn.Linear(1, 1), lr=1.5), "lr must be"),
        (lambda: Kova(nn.Linear(1, 1), lr=NAN), "lr must be"),
        (lambda: covariance.Full(0.0), "prior must be a number above 0, got 0.0"),
        (lambda: covariance.LowRank(prior=-1.0), "prior must be"),
        (lambda: covariance.Diagonal({"0": INF}), r"prior\['0'\] must be"),
        (lambda: covariance.Full({}), "empty dict"),
        (lambda: covariance.FanIn(0.0), "FanIn's scale must be"),
        (lambda: covariance.LowRank(-1), "rank must be a whole number, at least 0, got -1"),
        (lambda: covariance.LowRank(2.5), "rank must be"),  # type: ignore[arg-type]
        (lambda: covariance.Full(dtype=torch.float16), "dtype must be torch.float32"),
        (lambda: evolution.RandomWalk(-1.0), "q must be a number, at least 0, got -1.0"),
        (lambda: evolution.FadingMemory(on_windup="stop"), "on_windup must be one of 'raise', 'reset'"),  # type: ignore[arg-type]
        (lambda: evolution.VariableLeakage(0.1, eta_max=0.01), "eta_max must be"),
        (lambda: observation.MaxRatio(eps=0.0), "eps must be"),
        (lambda: observation.MaxRatio(convention="both"), "convention must be one of 'code', 'paper'"),  # type: ignore[arg-type]
        (lambda: observation.Adaptive(initial=0.0), "initial must be"),
        (lambda: observation.Adaptive(decay=1.0), "decay must be"),
        (lambda: observation.Robust(c=0.0), "c must be"),
        (lambda: observation.Robust(base="batch"), "base must be an observation noise"),  # type: ignore[arg-type]
        (lambda: Kova(nn.Tanh()), "no trainable parameters"),
        (lambda: Kova(nn.Linear(1, 1).requires_grad_(False)), "no trainable parameters"),
        (lambda: Kova(nn.Linear(1, 1).parameters()), "not its parameters"),  # type: ignore[arg-type]
        (lambda: Kova(nn.Linear(1, 1), covariance="full"), "got 'full'"),  # type: ignore[arg-type]
        (lambda: Kova(nn.Linear(1, 1), evolution=evolution.Leakage), "a class: call it"),  # type: ignore[arg-type]
        (lambda: Kova(nn.Linear(1, 1).half()), "pass dtype=torch.float32"),
        (lambda: Kova(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double())), "one dtype"),
        (lambda: Kova(nn.LazyLinear(1)), "not initialised"),
        (lambda: Kova(nn.Linear(1, 1), covariance=covariance.Full({"body": 1.0})), "body"),
        (lambda: Kova(members.critic(), covariance=covariance.Full({"0": 1.0})), "no variance for layer '2'"),
        (lambda: Kova(members.critic(), covariance=covariance.LowRank(), evolution=evolution.PriorAnchored()),
         "LowRank does not work with PriorAnchored. LowRank goes with Leakage"),
        (lambda: Kova(nn.Linear(600, 1), covariance=covariance.Full(), evolution=evolution.Leakage()),
         "blocks above 512"),
    ],
)  # fmt: skip
def test_wrong_settings_raise_when_the_object_is_built(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


X = torch.randn(4, 3).double()
Y = torch.randn(4).double()
NOT_POSITIVE = torch.tensor([[1.0, 2.0, 0, 0], [2.0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0]])


def spoiled(values: Tensor, bad: float) -> Tensor:
    out = values.clone()
    out[2] = bad
    return out


class Spiky(nn.Module):
    """Finite predictions with a gradient that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1).double())

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, 0] < 100, (self.weight * x[:, 0]).abs().sqrt(), 0.0)


@dataclass(frozen=True)
class Batch:
    """A batch with one thing wrong."""

    error: type[Exception]
    message: str
    predict: Callable[[nn.Module], Any] = lambda m: m(X)[:, 0]
    targets: Any = field(default_factory=lambda: Y)
    noise: observation.Observation = field(default_factory=observation.BatchSize)
    inputs: dict[str, Any] = field(default_factory=dict)


BATCHES = {
    "nan target": Batch(
        NonFiniteBatch, "1 of 4 targets are not finite .first: sample 2, nan.", targets=spoiled(Y, NAN)
    ),
    "infinite target": Batch(NonFiniteBatch, "targets.*inf", targets=spoiled(Y, INF)),
    "nan target, robust": Batch(
        NonFiniteBatch, "targets", targets=spoiled(Y, NAN), noise=observation.Robust()
    ),
    "nan prediction": Batch(NonFiniteBatch, "1 of 4 predictions", lambda m: m(spoiled(X, NAN))[:, 0]),
    "overflow": Batch(NonFiniteBatch, "overflows", targets=Y * 1e200),
    "length": Batch(InvalidBatch, r"shape \(4,\), got shape \(3,\)", targets=Y[:3]),
    "broadcast": Batch(InvalidBatch, r"got shape \(1,\)", targets=Y[:1]),
    "column": Batch(InvalidBatch, r"got shape \(4, 1\): use .squeeze", lambda m: m(X)),
    "many outputs": Batch(InvalidBatch, "gather", lambda m: m(X).expand(4, 2)),
    "empty": Batch(InvalidBatch, "empty batch", lambda m: m(X[:0])[:, 0], Y[:0]),
    "detached": Batch(InvalidBatch, "without a gradient", lambda m: m(X)[:, 0].detach()),
    "no tensor": Batch(InvalidBatch, "must return a tensor, got float", lambda m: 1.0),
    "list of targets": Batch(InvalidBatch, "got list", targets=[0.0] * 4),
    "ratio missing": Batch(
        InvalidBatch, r"MaxRatio needs step\(predict, targets, ratio=...\)", noise=observation.MaxRatio()
    ),
    "unknown input": Batch(
        InvalidBatch, "BatchSize takes no noise inputs, but got ratio", inputs={"ratio": Y}
    ),
    "ratio length": Batch(
        InvalidBatch, r"\(3,\)", noise=observation.MaxRatio(), inputs={"ratio": torch.ones(3)}
    ),
    "nan ratio": Batch(
        NonFiniteBatch, "ratio", noise=observation.MaxRatio(), inputs={"ratio": spoiled(Y.abs(), NAN)}
    ),
    "negative ratio": Batch(
        InvalidBatch,
        "ratio must be at least 0; sample 2 has -1",
        noise=observation.MaxRatio(),
        inputs={"ratio": spoiled(Y.abs(), -1.0)},
    ),
    "zero variance": Batch(
        InvalidBatch,
        "variance must be above 0; sample 2 has 0",
        noise=observation.PerSample(),
        inputs={"variance": spoiled(Y.abs(), 0.0)},
    ),
    "negative weight": Batch(
        InvalidBatch,
        "weight must be at least 0",
        noise=observation.ImportanceWeighted(),
        inputs={"weight": spoiled(Y.abs(), -1.0)},
    ),
    "not positive definite": Batch(
        NotPositiveDefinite,
        "smallest eigenvalue is -1",
        noise=observation.Correlated(),
        inputs={"covariance": NOT_POSITIVE},
    ),
    "not symmetric": Batch(
        NotPositiveDefinite,
        "symmetric",
        noise=observation.Correlated(),
        inputs={"covariance": torch.eye(4) + NOT_POSITIVE.triu()},
    ),
    "nan in covariance": Batch(
        NonFiniteBatch,
        "covariance",
        noise=observation.Correlated(),
        inputs={"covariance": torch.eye(4) * NAN},
    ),
    "covariance shape": Batch(
        InvalidBatch, "must be 4 x 4", noise=observation.Correlated(), inputs={"covariance": torch.eye(3)}
    ),
}

SETTINGS = [
    (structure, kind)
    for structure, kind in members.pairs(members.critic())
    if not isinstance(kind, evolution.FadingMemory | evolution.RandomWalk)
]
ON_ANY_MODULE = [(structure, kind) for structure, kind in SETTINGS if not members.factored(structure, kind)]


def snapshot(module: nn.Module, optimizer: Kova) -> list[Tensor | float]:
    def leaves(tree: Any) -> list[Any]:
        return (
            [leaf for value in tree.values() for leaf in leaves(value)] if isinstance(tree, dict) else [tree]
        )

    (memory,) = optimizer.state.values()
    return [x.clone() if isinstance(x, Tensor) else x for x in [*module.parameters(), *leaves(memory)]]


def unchanged(before: list[Tensor | float], after: list[Tensor | float]) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(before, after, strict=True)
    )


@pytest.mark.parametrize(("structure", "kind"), SETTINGS, ids=members.name)
@pytest.mark.parametrize("case", BATCHES)
def test_a_bad_batch_changes_nothing(
    case: str, structure: covariance.Covariance, kind: evolution.Evolution
) -> None:
    batch = BATCHES[case]
    model = members.critic()
    optimizer = Kova(model, 1.0, structure, kind, batch.noise)
    if batch.noise.inputs == ():
        optimizer.step(lambda: model(X)[:, 0], Y)  # not the first step, with something to lose
    before = snapshot(model, optimizer)
    with pytest.raises(batch.error, match=batch.message) as raised:
        optimizer.step(lambda: batch.predict(model), batch.targets, **batch.inputs)
    assert isinstance(raised.value, KovaError)
    assert isinstance(raised.value, ValueError)
    assert unchanged(before, snapshot(model, optimizer))


@pytest.mark.parametrize(("structure", "kind"), ON_ANY_MODULE, ids=members.name)
def test_a_gradient_that_is_not_finite_changes_nothing(
    structure: covariance.Covariance, kind: evolution.Evolution
) -> None:
    model = Spiky()
    optimizer = Kova(model, 1.0, structure, kind)
    before = snapshot(model, optimizer)
    with pytest.raises(NonFiniteBatch, match="gradient of 4 of 4 predictions"):
        optimizer.step(lambda: model(X), Y)
    assert unchanged(before, snapshot(model, optimizer))


class Steep(nn.Module):
    """One weight whose gradient is infinite, or overflows when squared, while predictions are finite."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.weight, self.slope = nn.Parameter(torch.zeros(1)), slope

    def forward(self, n: int) -> Tensor:
        value = self.weight.abs().sqrt() if self.slope == INF else self.slope * self.weight
        return value.expand(n)


@pytest.mark.parametrize("slope", [INF, 1e20])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(("structure", "kind"), ON_ANY_MODULE, ids=members.name)
def test_gradients_that_overflow_are_refused_at_any_batch_size(
    structure: covariance.Covariance, kind: evolution.Evolution, n: int, slope: float
) -> None:
    model = Steep(slope)
    optimizer = Kova(model, 1.0, structure, kind)
    before = snapshot(model, optimizer)
    with pytest.raises(NonFiniteBatch):
        optimizer.step(lambda: model(n), torch.ones(n))
    assert unchanged(before, snapshot(model, optimizer))


def test_a_refused_batch_does_not_reset_a_covariance_that_has_wound_up() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = Kova(model, 1.0, covariance.Full(), evolution.FadingMemory(0.5, "reset"))
    x = torch.tensor([[1.0, 0.0]])
    while optimizer.step(lambda: model(x)[:, 0], torch.ones(1)).variance_max < 4e5:
        pass
    optimizer.step(lambda: model(x)[:, 0], torch.ones(1))
    before = snapshot(model, optimizer)
    with pytest.raises(NonFiniteBatch):
        optimizer.step(lambda: model(1e20 * x)[:, 0], torch.ones(1))
    assert unchanged(before, snapshot(model, optimizer))
    assert optimizer.step(lambda: model(x)[:, 0], torch.ones(1)).variance_max < 10, "now it starts again"


def test_correlated_noise_that_is_nearly_singular_costs_nothing() -> None:
    model = members.critic(dtype=torch.float32)
    noise = torch.ones(16, 16) + 1e-6 * torch.eye(16)
    for kind in (evolution.PriorAnchored(1e-3), evolution.DirectionalForgetting(0.01)):
        optimizer = Kova(model, 1.0, covariance.Full(), kind, observation.Correlated())
        for _ in range(400):
            x = torch.randn(16, 3)
            optimizer.step(lambda x=x: model(x)[:, 0], x[:, 0], covariance=noise)
        found = extremes(optimizer)
        assert 0 < found.smallest < found.largest <= 1.0 + 1e-4


def test_an_lr_out_of_range_in_the_group_is_refused_at_the_step() -> None:
    model = members.critic()
    optimizer = Kova(model)
    optimizer.param_groups[0]["lr"] = 3e2
    with pytest.raises(ValueError, match=r"lr must be a number in \[0, 1\], got 300"):
        optimizer.step(lambda: model(X)[:, 0], Y)


def test_hopeless_covariances_raise_with_the_step_and_a_way_out() -> None:
    model = members.critic()
    optimizer = Kova(model, 1.0, covariance.Full(), evolution.PriorAnchored(), observation.PerSample())
    (memory,) = optimizer.state.values()
    memory["covariance"]["matrix_0"].mul_(-1.0)
    before = snapshot(model, optimizer)
    with pytest.raises(NotPositiveDefinite, match=r"step 0.*float64"):
        optimizer.step(lambda: model(X)[:, 0], Y, variance=torch.full((4,), 1e-9))
    assert unchanged(before, snapshot(model, optimizer))


def test_a_singular_batch_costs_a_jitter_and_is_counted() -> None:
    model = nn.Linear(3, 1)
    optimizer = Kova(model, 1.0, evolution=evolution.Memoryless(), observation=observation.PerSample())
    x = torch.randn(1, 3).repeat(6, 1)  # six times the same row, all but noiseless
    info = optimizer.step(lambda: model(x)[:, 0], x[:, 0], variance=torch.full((6,), 1e-12))
    assert 0.0 < info.jitter < 1e-2
    (memory,) = optimizer.state.values()
    assert memory["jitters"] == 1
    assert torch.isfinite(model.weight).all()
