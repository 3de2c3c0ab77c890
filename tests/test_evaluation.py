"""Policy evaluation: tasks against hand-made oracles, critics that learn, the command from end to end."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from kova_rl import Kova, cli, covariance, evolution, observation, sb3
from kova_rl.lab.commands.evaluate import Evaluate
from kova_rl.lab.evaluation import control, environment, evaluate, evaluate_one, own, rollouts
from kova_rl.lab.evaluation.critics import CRITICS, Problem, build, describe
from kova_rl.lab.evaluation.network import NetworkCritic, Replay
from kova_rl.lab.evaluation.protocol import STEP, coverage, looks
from kova_rl.lab.evaluation.sequential import LSTD
from kova_rl.lab.evaluation.tasks import CLASSIC, TASKS, conditions_of, phases
from kova_rl.lab.evaluation.transitions import Transitions
from kova_rl.lab.evaluation.walk import Walker
from kova_rl.lab.run import make as train
from kova_rl.lab.store import Store
from kova_rl.sb3 import policy as sb3_policy
from tests.runs import ppo

EVERY = [(task, condition) for task in TASKS for condition in conditions_of(task)]


# ---------------------------------------------------------------------------- tasks


@pytest.mark.parametrize(("name", "condition"), EVERY)
def test_a_task_is_an_mdp_with_features(name: str, condition: str) -> None:
    parts = phases(name, condition)
    assert len(parts) == (2 if condition == "switch" else 1)
    for task in parts:
        states, actions = task.policy.shape
        assert task.transitions.shape == task.rewards.shape == (actions, states, states + 1)
        for probabilities in (task.transitions, task.policy, task.behaviour, task.start):
            assert (probabilities >= 0).all()
            np.testing.assert_allclose(probabilities.sum(-1), 1.0)
        assert task.features.shape[0] == states
        if name in CLASSIC:
            assert 0 <= task.linear_floor() < 0.5 * task.values().std()
        assert (task.behaviour[task.policy > 0] > 0).all()  # else no weight could correct it


def test_values_are_those_solved_by_hand() -> None:
    (walk,) = phases("boyan", "on-policy")
    np.testing.assert_allclose(walk.values(), -0.2 * np.arange(13), atol=1e-12)
    assert walk.linear_floor() < 1e-12
    (right,) = phases("chain", "deterministic")
    np.testing.assert_allclose(right.values(), 0.98 ** np.arange(30)[::-1], atol=1e-12)
    (way,) = phases("grid", "deterministic")
    steps = [12 - i - j for i in range(7) for j in range(7) if (i, j) not in ((6, 6), (3, 3))]
    np.testing.assert_allclose(way.values(), 0.95 ** (np.array(steps) - 1.0), atol=1e-12)
    (even,) = phases("chain", "on-policy")
    values = even.values()
    np.testing.assert_allclose(values, -values[::-1], atol=1e-12)
    np.testing.assert_allclose(values[1:-1], 0.98 * (values[:-2] + values[2:]) / 2, atol=1e-12)
    turned = phases("chain", "switch")[1]
    np.testing.assert_allclose(turned.values(), -values, atol=1e-12)


@pytest.mark.parametrize("name", list(CLASSIC))
def test_values_are_the_mean_of_long_walks(name: str) -> None:
    """Returns of each episode's first state, weighted by the ratios, estimate the value of the start."""
    (task,) = phases(name, "off-policy")
    seen = Walker(task, np.random.default_rng(0)).walk(150_000)
    returns, total, weight, scale = [], 0.0, 1.0, 1.0
    for reward, ratio, over in zip(seen.rewards, seen.weights, seen.terminated, strict=True):
        weight *= ratio
        total += scale * weight * reward
        scale *= task.gamma
        if over:
            returns.append(total)
            total, weight, scale = 0.0, 1.0, 1.0
    error = np.std(returns) / np.sqrt(len(returns))
    assert abs(np.mean(returns) - task.start @ task.values()) < 4 * error + 1e-9
    np.testing.assert_allclose(seen.weights.mean(), 1.0, atol=0.02)


def test_ratios_are_policy_over_behaviour() -> None:
    (task,) = phases("boyan", "off-policy")
    np.testing.assert_allclose(task.ratios(), np.tile([0.5 / 0.8, 0.5 / 0.2], (13, 1)))
    (same,) = phases("boyan", "deterministic")
    np.testing.assert_array_equal(same.ratios(), np.tile([1.0, 0.0], (13, 1)))


def test_a_walk_goes_on_where_it_was() -> None:
    (task,) = phases("chain", "on-policy")
    whole = Walker(task, np.random.default_rng(1)).walk(64)
    same = ~whole.terminated[:-1]
    np.testing.assert_array_equal(whole.next_states[:-1][same], whole.states[1:][same])
    assert (whole.next_states[whole.terminated] == 0).all()


def test_bairds_values_are_nothing_and_semi_gradient_td_diverges_on_its_features() -> None:
    (task,) = phases("baird", "off-policy")
    np.testing.assert_array_equal(task.values(), np.zeros(7))
    np.testing.assert_array_equal(np.unique(task.ratios()), [0.0, 7.0])
    weights, walker = np.ones(8), Walker(task, np.random.default_rng(0))
    seen = walker.walk(3_000)
    rows = zip(seen.states, seen.rewards, seen.next_states, seen.weights, strict=True)
    for before, reward, after, ratio in rows:
        weights = weights + 0.01 * ratio * (reward + (task.gamma * after - before) @ weights) * before
    assert np.abs(weights).max() > 10
    assert evaluate_one("baird", "off-policy", "kova-head", 0, 2_000)["error"][-1] < 1e-3


def test_states_of_the_aliasing_chain_look_alike_and_differ_in_value() -> None:
    (task,) = phases("aliased", "on-policy")
    assert len(np.unique(task.features, axis=0)) == 25
    assert (np.diff(task.values()) > 0).all()


def test_a_garnet_is_the_same_for_all_seeds_and_of_order_one() -> None:
    one, two = (phases("garnet-100", "on-policy")[0] for _ in range(2))
    np.testing.assert_array_equal(one.transitions, two.transitions)
    assert ((one.transitions[:, :, :-1] > 0).sum(2) == 5).all()
    assert 0.1 < np.abs(one.values()).max() < 5


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_control_tasks_have_a_truth_from_rollouts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "STATES", 6)
    monkeypatch.setattr(control, "ROLLOUTS", 4)
    control._own.cache_clear()
    curves = evaluate_one(name, "on-policy", "kova-head", 0, samples=400)
    assert curves["truth"].shape == curves["mean"].shape == curves["std"].shape
    assert np.isfinite(curves["coverage"]).all()
    again = evaluate_one(name, "on-policy", "lstd", 0, samples=400)
    np.testing.assert_array_equal(curves["truth"], again["truth"])
    control._own.cache_clear()
    with pytest.raises(ValueError, match="condition must be one of 'on-policy', got 'switch'"):
        evaluate_one(name, "switch", "kova", 0)


# ---------------------------------------------------------------------------- critics


@pytest.mark.parametrize("name", [name for name in CRITICS if name != "ktd-wide"])
def test_every_critic_learns(name: str) -> None:
    setting = 3e-3 if name == "adam" else None
    samples = 4_000 if name in ("kova", "adam") else 1_000
    curves = evaluate_one("boyan", "deterministic", name, 0, samples, setting=setting)
    assert curves["error"][-1] < 0.2 * np.sqrt(np.mean(curves["truth"] ** 2))
    assert curves["error"][-1] < curves["error"][0]
    has_std = not np.isnan(curves["std"]).any()
    assert has_std == (name not in ("memoryless", "adam", "lstd"))
    assert np.isnan(curves["coverage"][-1]).any() != has_std
    assert curves["samples"][-1] == samples


def test_importance_weights_correct_the_bias_and_the_uncorrected_show_it() -> None:
    bias = evaluate_one("boyan", "off-policy", "gptd-mc", 0, 3_000)["error"][-1]
    assert bias > 0.25
    for name in ("kova", "memoryless", "lstd"):
        assert evaluate_one("boyan", "off-policy", name, 0, 3_000)["error"][-1] < 0.4 * bias


def test_the_papers_noise_takes_the_weights_and_other_noises_have_them_on_the_innovation() -> None:
    def observed(noise: observation.Observation, weighted: bool) -> type:
        critic = build(lambda net: Kova(net, observation=noise), Problem(4, 1.0, 0, weighted=weighted))
        assert isinstance(critic, NetworkCritic)
        assert isinstance(critic.optimizer, Kova)
        return type(critic.optimizer.observation)

    assert observed(observation.BatchSize(), weighted=True) is observation.ImportanceWeighted
    assert observed(observation.BatchSize(), weighted=False) is observation.BatchSize
    assert observed(observation.Adaptive(), weighted=True) is observation.Adaptive


def test_white_noise_biases_where_transitions_are_random_and_not_where_they_are_not() -> None:
    random = {
        name: evaluate_one("boyan", "on-policy", name, 0, 4_000)["error"][-1] for name in ("gptd", "gptd-mc")
    }
    assert random["gptd"] > 0.1 > 4 * random["gptd-mc"]
    certain = evaluate_one("boyan", "deterministic", "gptd", 0, 4_000)["error"][-1]
    assert certain < 0.05
    residual = _least_residual()
    learned = evaluate_one("boyan", "on-policy", "gptd", 0, 4_000)["mean"]
    np.testing.assert_allclose(learned, residual, atol=0.05)


def _least_residual() -> np.ndarray[Any, Any]:
    """Values linear in the features with the least mean squared Bellman residual of single transitions."""
    (task,) = phases("boyan", "on-policy")
    seen = Walker(task, np.random.default_rng(7)).walk(40_000)
    change = seen.states - task.gamma * seen.next_states
    return task.features @ np.linalg.lstsq(change, seen.rewards, rcond=None)[0]


def test_linear_ktd_is_gptd_with_white_noise() -> None:
    one, two = (evaluate_one("chain", "on-policy", name, 3, 800) for name in ("ktd-linear", "gptd"))
    np.testing.assert_allclose(one["mean"], two["mean"], atol=1e-6)
    np.testing.assert_allclose(one["std"], two["std"], rtol=1e-4)


def test_lstd_is_its_closed_form() -> None:
    (task,) = phases("grid", "off-policy")
    seen = Walker(task, np.random.default_rng(2)).walk(500)
    lstd = LSTD(25, task.gamma, ridge=0.1)
    for t in range(0, 500, 50):
        lstd.observe(Transitions(**{name: x[t : t + 50] for name, x in vars(seen).items()}))
    A = sum(
        rho * np.outer(a, a - task.gamma * b)
        for rho, a, b in zip(seen.weights, seen.states, seen.next_states, strict=True)
    )
    b = seen.states.T @ (seen.weights * seen.rewards)
    np.testing.assert_allclose(lstd.weights(), np.linalg.solve(A + 0.1 * np.eye(25), b), rtol=1e-8)


def test_lstd_forgets_at_the_rate_of_its_window() -> None:
    lstd = LSTD(1, 0.0, window=10, ridge=1e-9)
    ones, no = np.ones((1, 1)), np.zeros(1, dtype=bool)
    for t in range(200):
        lstd.observe(Transitions(ones, np.array([float(t >= 100)]), ones * 0, no, no, np.ones(1)))
    assert lstd.weights()[0] == pytest.approx(1 - 0.9**100, rel=1e-3)


def test_a_replay_keeps_the_latest() -> None:
    replay = Replay(1, window=4, seed=0)
    for t in range(10):
        one = np.full((1, 1), float(t))
        replay.add(Transitions(one, one[0], one, np.zeros(1, bool), np.zeros(1, bool), np.ones(1)))
    assert set(replay.draw(200)[2].tolist()) == {6.0, 7.0, 8.0, 9.0}
    everything = Replay(1, window=None, seed=0)
    many = np.arange(3000.0)[:, None]
    everything.add(Transitions(many, many[:, 0], many, many[:, 0] < 0, many[:, 0] < 0, many[:, 0]))
    drawn = everything.draw(500)
    assert len(set(drawn[0].flatten().tolist())) > 400
    assert torch.equal(drawn[0].flatten(), drawn[2])


@pytest.mark.parametrize("name", ["kova", "adam", "ktd", "gptd-mc"])
def test_the_same_seed_makes_the_same_curve_to_the_bit(name: str) -> None:
    one, two, other = (evaluate_one("chain", "switch", name, seed, 320) for seed in (5, 5, 6))
    for key, values in one.items():
        np.testing.assert_array_equal(values, two[key])
    assert not np.array_equal(one["mean"], other["mean"])


def test_any_optimizer_can_be_examined() -> None:
    def make(critic: torch.nn.Module) -> torch.optim.Optimizer:
        noise = observation.BatchSize()
        return Kova(critic, 1.0, covariance.Full(), evolution.PriorAnchored(0.03), noise)

    curves = evaluate_one("boyan", "off-policy", make, seed=1, samples=2_000)
    assert curves["error"][-1] < 0.3 * curves["error"][0]
    assert curves["coverage"].shape == (len(curves["samples"]), 3)


def test_a_filter_that_breaks_down_is_marked_and_not_fatal() -> None:
    def make(critic: torch.nn.Module) -> torch.optim.Optimizer:
        return Kova(critic, covariance=covariance.Full(), evolution=evolution.FadingMemory(0.5))

    curves = evaluate_one("chain", "on-policy", make, seed=0, samples=1_000)
    assert np.isfinite(curves["error"][0])
    assert np.isnan(curves["error"][-1])


def test_coverage_counts_what_is_inside() -> None:
    z = np.array([0.5, 1.0, 1.5, 3.0])
    np.testing.assert_allclose(coverage(-z, np.ones(4)), [0.25, 0.5, 0.75])
    assert np.isnan(coverage(z, None)).all()


def test_looks_are_whole_updates_and_end_at_each_half() -> None:
    assert looks(2_000, 2)[-1] == 2_000
    assert 1_000 in looks(2_000, 2)
    assert all(at % STEP == 0 for at in looks(2_000, 1))


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match=r"task must be one of 'chain', 'grid', 'boyan', .* got 'ring'"):
        evaluate_one("ring", "on-policy", "kova", 0)
    with pytest.raises(ValueError, match="condition must be one of"):
        evaluate_one("chain", "on", "kova", 0)
    with pytest.raises(ValueError, match="critic must be one of"):
        evaluate_one("chain", "on-policy", "kofa", 0)
    with pytest.raises(ValueError, match="samples must be a whole number, at least 16"):
        evaluate_one("chain", "switch", "kova", 0, samples=8)


# ---------------------------------------------------------------------------- an environment of one's own


class Stairs(gymnasium.Env[Any, Any]):
    """Walks down n stairs, one a step unless the foot slips back; each step costs 1. V is known."""

    SLIP, STAIRS = 0.2, 5

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 10.0, (1,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.STAIRS
        return np.array([float(self.left)]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if int(action) == 1 and self.np_random.random() >= self.SLIP:
            self.left -= 1
        return np.array([float(self.left)]), -1.0, self.left == 0, False, {}

    @classmethod
    def value(cls, left: Any, gamma: float) -> Any:
        """V(n) = -1 + gamma ((1 - slip) V(n-1) + slip V(n)), V(0) = 0."""
        known = [0.0]
        for _ in range(cls.STAIRS):
            known.append((-1 + gamma * (1 - cls.SLIP) * known[-1]) / (1 - gamma * cls.SLIP))
        return np.array(known)[np.asarray(left, dtype=int)]


class Uncopied(Stairs):
    """The same, but for its refusal to be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no")


def down(observation: Any) -> int:
    return 1


def timed() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Stairs(), 4)


@pytest.mark.parametrize("make", [Stairs, timed])
def test_rollouts_of_copies_find_the_value_also_beyond_a_time_limit(make: Any) -> None:
    found = rollouts.truth(make(), down, 0.9, seed=3, states=20, rollouts=40)
    truth = Stairs.value(found.states[:, 0], 0.9)
    assert "40 rollouts" in found.note
    assert np.abs((found.values - truth) / found.doubt).mean() < 1.5
    assert len(set(found.values.round(6))) > 5  # copies have chance of their own


@pytest.mark.parametrize("name", ["Pendulum-v1", "Hopper-v5"])
def test_a_copy_is_where_the_original_is(name: str) -> None:
    """Deep copies of MuJoCo's environments, which are of EzPickle, would begin anew."""
    env = environment.make_env(name)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(5):
        env.step(env.action_space.sample())
    copy, action = rollouts.copied(env), env.action_space.sample()
    np.testing.assert_array_equal(copy.step(action)[0], env.step(action)[0])
    assert rollouts.can_copy(env, seed=0)


def test_without_copies_single_returns_are_the_truth() -> None:
    found = rollouts.truth(Uncopied(), down, 0.9, seed=3, states=40, rollouts=40)
    assert "one return" in found.note
    assert np.isnan(found.doubt).all()
    for left in range(1, 6):
        mean = found.values[found.states[:, 0] == left].mean()
        assert mean == pytest.approx(Stairs.value(left, 0.9), abs=0.15)


def test_a_return_that_was_cut_is_left_out() -> None:
    def limited() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(Uncopied(), 40)

    stay = rollouts.from_episodes(limited(), lambda _: 0, 0.8, seed=0, states=2)
    np.testing.assert_allclose(stay.values, -5.0, rtol=rollouts.TAIL)  # -1/(1 - gamma), for ever
    with pytest.raises(ValueError, match="no return is known"):
        rollouts.from_episodes(limited(), lambda _: 0, 0.99, seed=0, states=2)


def test_a_policy_in_ones_own_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kova_rl.lab.terminal.EVERY", 0.0)
    critics = ("kova", "kova-head", "lstd")
    panel = evaluate(Stairs, down, gamma=0.9, samples=1_600, seeds=2, critics=critics, states=10, rollouts=20)
    assert panel.task == "Stairs"
    said = capsys.readouterr().out
    assert "Stairs, walking: 100 steps" in said
    assert "Stairs, Kova, seed 1: 1,600 of 1,600 samples" in said
    assert "standard error of the truth" in panel.note
    for name in critics:
        assert panel.stack(name, "error")[:, -1].mean() < 0.35
        assert panel.stack(name, "explained")[:, -1].mean() > 0.8
    assert np.isfinite(panel.stack("kova", "coverage")).any()
    middle, std = panel.stack("kova-head", "answer").mean(0)
    assert abs(middle - Stairs.value(5, 0.9)) < 4 * std
    assert std < 0.2
    low, high = (float(x) for x in re.findall(r"interval (\S+) to (\S+)\)", own.answer(panel))[0])
    assert low < Stairs.value(5, 0.9) < high


def test_discrete_observations_are_flattened() -> None:
    seen = environment.collect(gymnasium.make("FrozenLake-v1"), lambda _: 2, 50, seed=0)
    assert seen.states.shape == (50, 16)
    assert (seen.states.sum(1) == 1).all()


# ---------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stable_baselines3 import PPO

    path = tmp_path_factory.mktemp("model") / "ppo.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, seed=0, device="cpu").learn(32).save(path)
    return path


def test_the_command_runs_and_runs_only_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Evaluate(
        task="boyan",
        condition="switch",
        critics=("kova", "lstd"),
        samples=320,
        seeds=2,
        out=tmp_path,
        jobs=1,
    )
    command.run()
    printed = capsys.readouterr().out
    assert "boyan, switch" in printed
    assert "4 of 4 runs done, 0 failed" in printed
    runs = sorted(tmp_path.glob("*/summary.json"))
    assert len(runs) == 4
    for name in ("evaluation.png", "evaluation.pdf", "tables.md"):
        assert (tmp_path / name).stat().st_size > 0
    assert "| Kova |" in (tmp_path / "tables.md").read_text()
    before = [path.stat().st_mtime_ns for path in runs]
    command.run()
    assert "4 of 4 runs done (4 of them before)" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in runs] == before
    tables = (tmp_path / "tables.md").read_text()
    cli.main(["pack", str(tmp_path)])
    cli.main(["evaluate", "--draw", "--out", str(tmp_path)])
    assert (tmp_path / "tables.md").read_text() == tables
    cli.main(["report", str(tmp_path)])
    assert "Policy evaluation: mean and standard deviation" in (tmp_path / "report.html").read_text()


def test_the_command_takes_a_saved_model(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"samples": 400, "seeds": 1, "critics": ("kova", "adam"), "gamma": 0.9}
    command = Evaluate(env="CartPole-v1", policy=model, algorithm="PPO", trust=True, out=tmp_path, **settings)
    command.run()
    printed = capsys.readouterr().out
    assert "CartPole-v1" in printed
    assert "rollouts from each of" in printed
    runs = sorted(tmp_path.glob("*/summary.json"))
    assert len(runs) >= 5  # Adam's four rates on the tuning seed, and the two critics
    before = [path.stat().st_mtime_ns for path in runs]
    command.run()
    assert [path.stat().st_mtime_ns for path in runs] == before
    tables = (tmp_path / "tables.md").read_text()
    cli.main(["evaluate", "--draw", "--out", str(tmp_path)])
    assert (tmp_path / "tables.md").read_text() == tables


def test_the_command_compares_two_policies(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loading: dict[str, Any] = {"algorithm": "PPO", "trust": True}
    Evaluate(env="CartPole-v1", policy=model, against=model, samples=400, seeds=1, **loading).run()
    assert "It is open: A less B is" in capsys.readouterr().out  # a policy and itself


def test_the_command_takes_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 800, 2))
    columns = {"observations": before, "next_observations": after, "terminated": np.zeros(800)}
    np.savez(tmp_path / "walk.npz", rewards=rng.normal(1.0, 0.1, 800), **columns)
    Evaluate(data=tmp_path / "walk.npz", gamma=0.9).run()
    printed = capsys.readouterr().out
    low, high = (float(x) for x in re.findall(r"interval ([\d.]+) to ([\d.]+)\)", printed)[0])
    assert low < 10 < high  # everywhere
    assert high - low < 1
    np.savez(tmp_path / "wrong.npz", **columns)
    for name, match in (("wrong.npz", "--data must have observations, rewards"), ("none.npz", "numpy.savez")):
        with pytest.raises(ValueError, match=match):
            Evaluate(data=tmp_path / name).run()


def test_the_command_says_what_is_wrong(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(match: str, **settings: Any) -> None:
        with pytest.raises(ValueError, match=match):
            Evaluate(out=tmp_path, **settings).run()

    refused("did you mean CartPole-v1", env="CartPol-v1", policy=model)
    refused("--import", env="Nowhere/Nothing-v7", policy=model)
    refused("needs a policy", env="CartPole-v1")
    refused("needs the environment", policy=model)
    refused("--against needs the environment", policy=model, against=model)
    refused("needs a policy", env="CartPole-v1", against=model)
    refused("missing.zip, which is not there", env="CartPole-v1", policy=tmp_path / "missing.zip")
    refused(
        "algorithm must be one of A2C.*did you mean PPO", env="CartPole-v1", policy=model, algorithm="PPP"
    )
    refused("can run code.*add --trust", env="CartPole-v1", policy=model, algorithm="PPO")
    refused("does not say by which algorithm: add --algorithm", env="CartPole-v1", policy=model, trust=True)
    wrong: dict[str, Any] = {"env": "CartPole-v1", "policy": model, "algorithm": "SAC", "trust": True}
    refused("could not be loaded as a model of SAC", **wrong)
    refused("--import must name a module", env="CartPole-v1", policy=model, import_="not_a_module_of_ours")
    refused("--critics must be one of", critics=("kofa",))
    refused("--samples must be a whole number, at least 160", samples=10)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    refused(
        r"--policy needs Stable-Baselines3 .*pip install 'kova-rl\[sb3\]'", env="CartPole-v1", policy=model
    )


OWN = {
    **dict.fromkeys(("KovaA2C", "KovaPPO", "KovaTRPO", "ACKTR", "KovaDQN"), "CartPole-v1"),
    **dict.fromkeys(("KovaDDPG", "KovaSAC", "KovaTD3"), "Pendulum-v1"),
}


@pytest.mark.parametrize("name", OWN)
def test_what_kova_saved_is_loaded_by_either_name_or_none(name: str, tmp_path: Path) -> None:
    saved: Any = getattr(sb3, name)("MlpPolicy", OWN[name], policy_kwargs={"net_arch": [8]}, seed=0)
    saved.save(tmp_path / "model")
    plain = name.removeprefix("Kova")
    observation = saved.observation_space.sample()
    for algorithm in (None, name, plain, plain.lower()):
        found = sb3_policy.load(tmp_path / "model.zip", algorithm)
        assert type(found.model) is type(saved)
        np.testing.assert_array_equal(
            found.predict(observation)[0], saved.predict(observation, deterministic=True)[0]
        )
    with pytest.raises(ValueError, match=f"holds a model of {name}, not of TQC"):
        sb3_policy.load(tmp_path / "model.zip", "TQC")


@pytest.mark.parametrize("name", sb3_policy.HOSTS)
def test_what_the_host_saved_is_loaded_if_it_is_trusted(name: str, tmp_path: Path) -> None:
    cls: Any = getattr(importlib.import_module(sb3_policy.HOSTS[name]), name)
    env = "CartPole-v1" if name in ("A2C", "ARS", "DQN", "PPO", "QRDQN", "TRPO") else "Pendulum-v1"
    saved = cls("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, seed=0)
    saved.save(tmp_path / "model")
    with pytest.raises(ValueError, match="add --trust"):
        sb3_policy.load(tmp_path / "model.zip", name)
    found = sb3_policy.load(tmp_path / "model", f"Kova{name}", trust=True)
    observation = saved.observation_space.sample()
    np.testing.assert_array_equal(
        found.predict(observation)[0], saved.predict(observation, deterministic=True)[0]
    )


def test_the_policy_of_a_run_sees_what_it_saw_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ppo(steps=256)
    train(config, tmp_path)
    path = Store(tmp_path, config.name).path / "model.zip"
    found = sb3_policy.load(path)
    venv: Any = sb3.KovaPPO.load(path, env=gymnasium.make("CartPole-v1")).get_env()
    observation = np.array([1.0, -2.0, 0.1, 3.0], np.float32)
    np.testing.assert_array_equal(found._seen(observation), venv.normalize_obs(observation))
    assert not np.array_equal(found._seen(observation), observation)
    small = ["--samples", "160", "--seeds", "1", "--critics", "kova", "--gamma", "0.9"]
    cli.main(
        ["evaluate", "--env", "CartPole-v1", "--policy", str(path), *small, "--out", str(tmp_path / "e")]
    )
    assert "your policy" in capsys.readouterr().out


def test_a_model_whose_schedule_was_a_lambda_can_be_evaluated(tmp_path: Path) -> None:
    model = sb3.KovaPPO("MlpPolicy", "CartPole-v1", learning_rate=lambda left: 1e-3 * left)
    with pytest.warns(UserWarning, match="load will ask"):
        model.save(tmp_path / "model")
    assert sb3_policy.load(tmp_path / "model").identity == sb3_policy.SavedPolicy(model, {}).identity


def test_kova_evaluate_explains_itself_and_refuses_politely(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--import" in shown
    assert all(name in shown for name in CRITICS)
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", "--env", "CartPol-v1", "--policy", "x.zip"])
    assert stop.value.code == 2
    assert "did you mean CartPole-v1" in capsys.readouterr().err


def test_other_defaults_are_other_runs() -> None:
    assert describe("kova") != describe("kova-paper")
    with pytest.raises(ValueError, match="policy must be a function"):
        environment.acting(3, deterministic=True)
