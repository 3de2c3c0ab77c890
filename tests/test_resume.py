"""Exact to resume: saved, loaded into a new process and gone on with, bit for bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kova_rl import Kova, StateMismatch, covariance, evolution, observation
from tests import members

LAYOUT = members.critic(dtype=torch.float32)
CASES: list[tuple[covariance.Covariance, evolution.Evolution, observation.Observation]] = [
    *((s, e, observation.BatchSize()) for s, e in members.pairs(LAYOUT)),
    *((covariance.LowRank(8), evolution.Leakage(0.02), noise) for noise in members.OBSERVATIONS),
    (covariance.Full(dtype=torch.float64), evolution.PriorAnchored(0.02), observation.BatchSize()),
    (covariance.LowRank(8, dtype=torch.float64), evolution.Leakage(0.02), observation.Adaptive()),
    (
        covariance.NeuronBlocks(covariance.FanIn(2.0), torch.float64),
        evolution.Leakage(0.02),
        observation.Robust(),
    ),
]


def build(case: int) -> tuple[torch.nn.Module, Kova]:
    structure, kind, noise = CASES[case]
    model = members.critic(dtype=torch.float32)
    return model, Kova(model, 0.9, structure, kind, noise)


def train(model: torch.nn.Module, optimizer: Kova, start: int, stop: int) -> None:
    for t in range(start, stop):
        generator = torch.Generator().manual_seed(t)
        x = torch.randn(4 + t % 3, 3, generator=generator)
        inputs = members.noise_inputs(optimizer.observation, x)
        optimizer.step(lambda x=x: model(x).squeeze(-1), x.sin().sum(1), **inputs)


def same(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def resume_all(folder: Path) -> None:
    """Run in a new process: load each checkpoint, go on, and save the end."""
    torch.set_num_threads(1)
    for case in range(len(CASES)):
        model, optimizer = build(case)
        saved = torch.load(folder / f"{case}.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train(model, optimizer, 6, 12)
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"{case}.end.pt"
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of every case half-way, and what a new process made of them."""
    path = tmp_path_factory.mktemp("resume")
    for case in range(len(CASES)):
        model, optimizer = build(case)
        train(model, optimizer, 0, 6)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path / f"{case}.pt")
    code = (
        f"from pathlib import Path; from tests.test_resume import resume_all; resume_all(Path({str(path)!r}))"
    )
    root = Path(__file__).parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=300)
    return path


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: ",".join(map(members.name, CASES[case])))
def test_a_new_process_goes_on_bit_for_bit(folder: Path, case: int) -> None:
    model, optimizer = build(case)
    train(model, optimizer, 0, 12)
    end = torch.load(folder / f"{case}.end.pt", weights_only=True)
    assert same(model.state_dict(), end["model"])
    assert same(optimizer.state_dict(), end["optimizer"])


def test_a_state_dict_is_a_copy() -> None:
    model, optimizer = build(0)
    state = optimizer.state_dict()
    kept = copy.deepcopy(state)
    train(model, optimizer, 0, 3)
    assert same(state, kept)
    optimizer.load_state_dict(state)
    train(model, optimizer, 0, 3)
    assert same(state, kept)


def test_the_covariance_keeps_its_dtype() -> None:
    case = next(i for i, (s, _, _) in enumerate(CASES) if s.dtype == torch.float64)
    _, optimizer = build(case)
    loaded = build(case)[1]
    loaded.load_state_dict(optimizer.state_dict())
    (memory,) = loaded.state.values()
    assert all(value.dtype == torch.float64 for value in memory["covariance"].values())


def other(**changes: object) -> Kova:
    settings: dict[str, object] = {
        "module": members.critic(dtype=torch.float32),
        "covariance": covariance.LowRank(8),
        "evolution": evolution.Leakage(),
        "observation": observation.BatchSize(),
    }
    return Kova(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": members.critic(width=7, dtype=torch.float32)}, "parameters"),
        ({"module": torch.nn.Linear(3, 1)}, "parameters"),
        ({"covariance": covariance.LowRank(9)}, r"factor.*\(73, 8\).*\(73, 9\)"),
        ({"covariance": covariance.NeuronBlocks()}, "NeuronBlocks"),
        ({"covariance": covariance.LowRank(8, prior=2.0)}, "prior"),
        ({"covariance": covariance.LowRank(8, dtype=torch.float64)}, "float64"),
        ({"evolution": evolution.Memoryless()}, "Isotropic"),
        ({"evolution": evolution.VariableLeakage()}, "evolution"),
        ({"evolution": evolution.Stationary()}, "evolution: the state dict has Leakage.*has Stationary"),
        ({"observation": observation.Adaptive()}, "observation"),
        ({"observation": observation.MaxRatio()}, "observation: the state dict has BatchSize.*MaxRatio"),
        ({"observation": observation.Robust()}, r"observation: .*Robust\(base=BatchSize"),
    ],
)
def test_a_state_of_another_filter_is_refused_and_nothing_is_loaded(
    changes: dict[str, object], message: str
) -> None:
    saved, mine = other(), other(**changes)
    before = mine.state_dict()
    with pytest.raises(StateMismatch, match=message):
        mine.load_state_dict(saved.state_dict())
    assert same(mine.state_dict(), before)


def test_the_words_of_a_noise_belong_to_its_state() -> None:
    paper = other(observation=observation.MaxRatio(convention="paper"))
    with pytest.raises(StateMismatch, match=r"convention='paper'.*convention='code'"):
        other(observation=observation.MaxRatio()).load_state_dict(paper.state_dict())


@pytest.mark.parametrize(
    "changes",
    [
        {"evolution": evolution.Leakage(0.2)},
        {"covariance": covariance.Full(), "evolution": evolution.FadingMemory(0.1, on_windup="reset")},
        {"observation": observation.Adaptive(decay=0.9)},
    ],
)
def test_the_numbers_of_the_settings_may_change_at_a_load_as_in_torch(changes: dict[str, Any]) -> None:
    defaults = {key: type(value)() for key, value in changes.items()}
    saved, mine = other(**defaults), other(**changes)
    train(saved.module, saved, 0, 3)
    mine.load_state_dict(saved.state_dict())
    train(mine.module, mine, 3, 6)
    assert [getattr(mine, key) for key in changes] == list(changes.values())


def spoiled(case: int, path: str, value: float) -> tuple[Kova, dict[str, Any]]:
    """A filter and its own state with one number of it changed."""
    model, optimizer = build(case)
    train(model, optimizer, 0, 3)
    state = optimizer.state_dict()
    *way, last = path.split(".")
    place = state["state"][0]
    for key in way:
        place = place[key]
    if isinstance(place[last], torch.Tensor):
        place[last][(0,) * place[last].ndim] = value
    else:
        place[last] = value
    return optimizer, state


def tensors_of(case: int) -> list[str]:
    (memory,) = build(case)[1].state.values()
    return [f"covariance.{key}" for key in memory["covariance"]]


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: ",".join(map(members.name, CASES[case])))
def test_numbers_that_no_filter_comes_to_are_refused(case: int) -> None:
    paths = [(path, value) for path in tensors_of(case) for value in (float("nan"), float("inf"))]
    if paths and "root" not in paths[0][0]:  # any number can stand in a root
        paths.append((paths[0][0], -3.0))  # the first entry of P, or of the information
    paths += [("nis", -1.0), ("nis", float("nan")), ("step", -1), ("step", 0.5), ("jitters", -1)]
    for path, value in paths:
        optimizer, state = spoiled(case, path, value)
        before = optimizer.state_dict()
        with pytest.raises(StateMismatch, match=path.split(".")[0]):
            optimizer.load_state_dict(state)
        assert same(optimizer.state_dict(), before)


def test_a_learned_noise_that_is_not_a_number_is_refused() -> None:
    case = next(i for i, (_, _, noise) in enumerate(CASES) if isinstance(noise, observation.Adaptive))
    optimizer, state = spoiled(case, "observation.variance", float("nan"))
    with pytest.raises(StateMismatch, match=r"observation\.variance.*NaN"):
        optimizer.load_state_dict(state)


def test_another_optimizers_state_is_refused() -> None:
    adam = torch.optim.Adam(members.critic(dtype=torch.float32).parameters())
    with pytest.raises(StateMismatch, match="not a state dict of Kova"):
        other().load_state_dict(adam.state_dict())


def test_the_settings_of_the_group_come_back() -> None:
    saved, loaded = other(lr=0.25), other()
    loaded.load_state_dict(saved.state_dict())
    assert loaded.param_groups[0]["lr"] == 0.25


def test_a_deep_copy_goes_on_by_itself_with_the_same_numbers() -> None:
    for case in range(len(CASES)):
        model, optimizer = build(case)
        train(model, optimizer, 0, 3)
        twin_model, twin = copy.deepcopy((model, optimizer))
        train(model, optimizer, 3, 6)
        state = optimizer.state_dict()
        train(twin_model, twin, 3, 6)
        assert same(twin_model.state_dict(), model.state_dict())
        assert same(twin.state_dict(), state)
