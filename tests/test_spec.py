"""Strategies as tables: all that the packages export, every field of each, and back."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kova_rl import covariance, evolution, observation
from kova_rl.algorithms import ALGORITHMS
from kova_rl.defaults import USES
from kova_rl.lab import spec
from kova_rl.lab.commands.train import Train
from kova_rl.lab.sweep.grid import expand
from kova_rl.lab.training.config import RunConfig
from kova_rl.lab.training.critic import arguments
from tests import members
from tests.runs import PPO

MEMBERS = [*members.STRUCTURES, *members.EVOLUTIONS, *members.OBSERVATIONS]


@pytest.mark.parametrize("member", MEMBERS, ids=members.name)
def test_every_strategy_is_a_table_and_back(member: Any) -> None:
    (what,) = (name for name in spec.STRATEGIES if type(member) in spec.kinds(name).values())
    table = spec.table(member)
    assert spec.build(what, table) == member
    flat = spec.flatten({what: table})
    assert spec.build(what, spec.unflatten(flat, (what,))[what]) == member
    assert all(not isinstance(value, dict) for value in flat.values())


def test_all_that_is_exported_can_be_named() -> None:
    for what, module in spec.STRATEGIES.items():
        rows = {"covariance": members.STRUCTURES, "evolution": members.EVOLUTIONS}
        expected = {type(row) for row in rows.get(what, members.OBSERVATIONS)}
        assert expected <= set(spec.kinds(what).values())
        assert module in (covariance, evolution, observation)


def of(**changes: Any) -> RunConfig:
    return RunConfig.of({**PPO, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"observation": {"kind": "robust", "c": 2}}, observation.Robust(c=2.0)),
        ({"observation": "robust", "observation.c": 2.0}, observation.Robust(c=2.0)),
        ({"observation.decay": 0.9}, observation.Adaptive(decay=0.9)),
        ({"algorithm": "a2c", "observation.eps": 1e-3}, observation.MaxRatio(eps=1e-3)),
        (
            {"observation": {"kind": "robust", "base": {"kind": "adaptive", "decay": 0.9}}},
            observation.Robust(base=observation.Adaptive(decay=0.9)),
        ),
        (
            {"evolution": {"kind": "random-walk", "q": 1e-3}, "covariance": "diagonal"},
            evolution.RandomWalk(1e-3),
        ),
        ({"evolution.eta": 0.2}, evolution.Leakage(0.2)),
        ({"covariance": {"kind": "low-rank", "dtype": "float64"}}, None),
        ({"covariance": {"kind": "diagonal", "prior": {"kind": "fan-in", "scale": 2.0}}}, None),
    ],
)
def test_any_field_of_any_strategy_can_be_set(changes: dict[str, Any], expected: Any) -> None:
    config = of(**changes)
    built = arguments(config)["kova"]
    if expected is not None:
        assert expected in built.values()
    back = RunConfig.of(config.flat())
    assert back.name == config.name != of().name
    assert arguments(back)["kova"] == built


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": {"kind": "robst"}}, "did you mean robust"),
        ({"loop": {"value_pases": 3}}, "did you mean value_passes"),
        ({"loop": {"value_passes": 0}}, "loop: value_passes must be a whole number"),
        ({"loop": {"value_lr": 1e-3}}, "loop.value_lr is a rate of Adam's"),
        ({"algorithm": "sac", "loop": {"value_passes": 3}}, "loop belongs to a2c, ppo, trpo, got sac"),
        ({"observation": {"kind": "robust", "decy": 0.9}}, "did you mean decay"),
        ({"observation": {"kind": "batch-size", "c": 1}}, "batch-size has no settings, got 'c'"),
        ({"observation": {"kind": "robust", "base": "adptive"}}, "did you mean adaptive"),
        ({"observation": {"kind": "robust", "c": -1}}, "c must be"),
        ({"evolution": {"kind": "leakage", "eta": 0.1}, "eta": 0.2}, "both say the same"),
        ({"evolution": "stationary", "eta": 0.1}, "eta belongs to the evolution"),
        ({"covariance": {"kind": "full", "dtype": "float6"}}, "must be a type of torch"),
        ({"prior": {"kind": "fanin"}}, "did you mean fan-in"),
    ],
)
def test_a_mistake_in_a_table_is_refused_with_the_nearest_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of(**changes)


def test_fields_of_strategies_are_swept() -> None:
    runs = expand({**PPO, "observation": {"kind": "robust", "c": [1.0, 2.0, 3.0]}}, "sweep.toml")
    assert [run.flat()["observation.c"] for run in runs] == [1.0, 2.0, 3.0]
    runs = expand({**PPO, "observation": ["adaptive", {"kind": "robust", "c": 2.0}]}, "sweep.toml")
    assert [run.flat()["observation"] for run in runs] == ["adaptive", "robust"]
    common = {**PPO, "observation": {"kind": "robust", "c": 2.0}}
    (run,) = expand(common, "sweep.toml", {"observation": "batch-size"})
    assert run.flat()["observation"] == "batch-size", "another strategy wins whole"
    (run,) = expand({**common, "preset": "ppo", "observation": "robust", "observation.c": 4.0}, "sweep.toml")
    assert run.flat()["observation.c"] == 4.0


def test_the_command_line_takes_a_table() -> None:
    command = Train("ppo", "CartPole-v1", observation="{ kind = 'robust', c = 2.0 }", prior="0.5")
    assert command.config().flat()["observation.c"] == 2.0
    assert command.config().prior == 0.5


def test_a_setting_is_one_field() -> None:
    """What is added to the dataclass is an option, with its help, and in the record."""
    names = {each.name for each in fields(RunConfig)}
    assert names <= {each.name for each in fields(Train)}
    flat = of().flat()
    missing = names - {key.split(".")[0] for key in flat}
    assert missing == {"environment_options"}, "an empty table"


def test_the_algorithms_are_those_of_the_package() -> None:
    sb3 = pytest.importorskip("kova_rl.sb3")
    classes = {name for name in sb3.__all__ if hasattr(getattr(sb3, name), "learn")}
    assert classes == {algorithm.ours for algorithm in ALGORITHMS.values()}
    text = (Path(__file__).parent.parent / "docs" / "api" / "sb3.md").read_text()
    assert all(name in text for name in classes)
    for name, algorithm in ALGORITHMS.items():
        if algorithm.filtered:
            space = "Pendulum-v1" if name in ("ddpg", "sac", "td3") else "CartPole-v1"
            model = getattr(sb3, algorithm.ours)("MlpPolicy", space, device="cpu")
            filters = vars(model.filters).values()
            assert {type(kova.observation) for kova in filters} == {type(USES[model.use].noise)}
            assert model.use == algorithm.use


def test_the_loop_of_a_critic_is_a_setting_of_a_run_and_of_its_name() -> None:
    """Of Adam and of the filter alike; how often a filter goes through a rollout is written out."""
    adam = {"critic": "adam", "loop.value_lr": 1e-3, "loop.value_passes": 20}
    assert arguments(of(**adam)) == {"kova": None, "value": {"value_lr": 1e-3, "value_passes": 20}}
    assert arguments(of(critic="adam")) == {"kova": None}
    thrice = of(loop={"value_passes": 3, "recompute": "each"})
    assert arguments(thrice)["kova"]["value_passes"] == 3
    assert len({of().name, thrice.name, of(critic="adam").name, of(**adam).name}) == 4
    assert of().flat()["loop.value_passes"] == 1
    assert of(loop={"value_passes": 1}).name == of().name
    assert "loop.value_passes" not in of(critic="memoryless").flat(), "as often as its host does"
    given = Train("ppo", "CartPole-v1", loop=("value_passes=3", "recompute=each"), preset="none")
    assert given.config().loop == {"value_passes": 3, "recompute": "each"}
