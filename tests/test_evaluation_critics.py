"""Critics of policy evaluation: what they learn, and to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kova_rl import Kova, covariance, evolution, observation
from kova_rl.lab.evaluation import evaluate_one
from kova_rl.lab.evaluation.critics import CRITICS, Problem, build
from kova_rl.lab.evaluation.network import NetworkCritic, Replay
from kova_rl.lab.evaluation.protocol import STEP, coverage, looks
from kova_rl.lab.evaluation.sequential import LSTD
from kova_rl.lab.evaluation.tasks import phases
from kova_rl.lab.evaluation.transitions import Transitions
from kova_rl.lab.evaluation.walk import Walker


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
