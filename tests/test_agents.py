"""The maze agent: replay, learning, and the same curve from the same seed."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from kova_rl import Kova, covariance, evolution, targets
from kova_rl.agents import DoubleQ, FromReplay, History, Replay, Settings, Transition
from kova_rl.lab.mazes.critics import Adam, Critic, Filtered, Temporal
from kova_rl.lab.mazes.run import make, network


def agent(critic: Critic, seed: int = 0, steps: int = 5_000, **settings: float) -> DoubleQ:
    torch.manual_seed(seed)
    q = network(16)
    chosen = Settings(**settings)  # type: ignore[arg-type]
    return DoubleQ(make("maze4"), q, critic.learner(q, steps, chosen.gamma), chosen, seed)


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_default_learns_the_maze(seed: int) -> None:
    history = agent(Filtered(), seed).learn(5_000)
    assert np.mean(history.successes[-30:]) > 0.9


CRITICS = {
    "kova": Filtered(),
    "memoryless": Filtered(evolution=evolution.Memoryless(0.01)),
    "full": Filtered(covariance.Full(), evolution.PriorAnchored(0.01)),
    "neurons": Filtered(covariance.NeuronBlocks(), evolution.DirectionalForgetting(0.01)),
    "diagonal": Filtered(covariance.Diagonal()),
    "adam": Adam(1e-3),
    "decaying adam": Adam(1e-3, decaying=True),
    "ktd": Temporal(evolution.PriorAnchored(0.01)),
}


@pytest.mark.parametrize("name", CRITICS)
def test_the_same_seed_gives_the_same_weights_and_episodes(name: str) -> None:
    first, second = agent(CRITICS[name], 3), agent(CRITICS[name], 3)
    first.learn(160)
    for part in (60, 100):  # stopping on the way changes nothing
        second.learn(part)
    assert first.history == second.history
    for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(a, b)
    third = agent(CRITICS[name], 4)
    third.learn(160)
    assert not torch.equal(next(first.network.parameters()), next(third.network.parameters()))


def test_an_update_is_double_q_learning() -> None:
    """Against the equation, written out, with a target network that differs from the online one."""
    one = agent(Adam(1e-2), target_every=40)
    one.learn(70)
    learner = one.learner
    assert isinstance(learner, FromReplay)
    batch = one.replay.sample(32)
    replay = one.replay
    replay.sample = lambda size: batch  # type: ignore[method-assign]
    q = [p.clone() for p in one.network.parameters()]
    with torch.no_grad():
        chosen = one.network(batch.next_observations).argmax(1)
        there = learner.target(batch.next_observations)[torch.arange(32), chosen]
        y = batch.rewards + 0.95 * there * ~batch.terminated
    loss = (one.network(batch.observations)[torch.arange(32), batch.actions[:, 0]] - y).square().mean()
    gradients = torch.autograd.grad(loss, list(one.network.parameters()))
    learner.optimizer = torch.optim.SGD(one.network.parameters(), 0.1)
    learner._learn(replay, one.settings)
    for before, after, g in zip(q, one.network.parameters(), gradients, strict=True):
        torch.testing.assert_close(after, before - 0.1 * g)


def test_kova_gets_the_targets_of_the_table() -> None:
    one = agent(Filtered(), seed=1)
    one.learn(50)
    learner = one.learner
    assert isinstance(learner, FromReplay)
    batch = one.replay.sample(32)
    one.replay.sample = lambda size: batch  # type: ignore[method-assign]
    seen: list[torch.Tensor] = []
    assert isinstance(learner.optimizer, Kova)
    step = learner.optimizer.step
    learner.optimizer.step = lambda predict, y, **how: (seen.append(y), step(predict, y, **how))[1]  # type: ignore
    with torch.no_grad():
        online, target = one.network(batch.next_observations), learner.target(batch.next_observations)
    learner._learn(one.replay, one.settings)
    torch.testing.assert_close(
        seen[0], targets.double_q(batch.rewards, online, target, batch.terminated, 0.95)
    )


def test_the_target_network_is_copied_when_it_should_be() -> None:
    one = agent(Adam(1e-2), target_every=40)
    learner = one.learner
    assert isinstance(learner, FromReplay)
    first = next(learner.target.parameters()).clone()
    one.learn(39)
    assert torch.equal(next(learner.target.parameters()), first)
    one.learn(1)
    assert torch.equal(next(learner.target.parameters()), next(one.network.parameters()))
    assert not torch.equal(next(learner.target.parameters()), first)


def test_learning_begins_with_a_whole_batch() -> None:
    one = agent(Adam(1e-2))
    before = next(one.network.parameters()).clone()
    one.learn(31)
    assert torch.equal(next(one.network.parameters()), before)
    one.learn(1)
    assert not torch.equal(next(one.network.parameters()), before)


def test_a_decaying_rate_ends_at_zero() -> None:
    one = agent(Adam(1e-2, decaying=True), steps=100)
    one.learn(132)
    assert isinstance(one.learner, FromReplay)
    assert one.learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=2e-4)


def test_random_actions_are_never_blocked() -> None:
    one = agent(Adam(0.0), epsilon=1.0, epsilon_solved=1.0)
    one.learn(400)
    kept = one.replay._kept
    count = len(one.replay)
    over = kept.terminated[:count]
    stayed = (kept.observations[:count] == kept.next_observations[:count]).all(1)
    assert not (stayed & ~over).any()


def test_epsilon_falls_once_the_maze_is_solved() -> None:
    one = agent(Filtered())
    epsilons: list[float] = []
    act = one._act
    one._act = lambda epsilon: (epsilons.append(epsilon), act(epsilon))[1]  # type: ignore
    one.history.successes = [True] * 8
    one.learn(1)
    one.history.successes += [False]
    one.learn(1)
    assert epsilons == [0.05, 0.1]


def test_forward_passes_are_counted() -> None:
    one = agent(Adam(1e-3))
    one.learn(131)
    assert one.learner is not None
    assert one.learner.evaluations == 100 * 3 * 32
    ktd = agent(Temporal(evolution.PriorAnchored(0.01)))
    ktd.learn(3)
    assert ktd.learner is not None
    assert ktd.learner.evaluations == 3 * 2 * (2 * 340 + 1)


class TestReplay:
    def test_it_is_a_ring(self) -> None:
        replay = Replay(3, (2,), seed=0)
        for i in range(5):
            replay.add(
                Transition(torch.full((2,), float(i)), i % 4, float(i), torch.full((2,), i + 0.5), i == 4)
            )
        assert len(replay) == 3
        batch = replay.sample(200)
        assert set(batch.rewards.tolist()) == {2.0, 3.0, 4.0}
        assert (batch.observations[:, 0] == batch.rewards).all()
        assert (batch.next_observations[:, 1] == batch.rewards + 0.5).all()
        assert (batch.terminated == (batch.rewards == 4)).all()
        assert (batch.actions[:, 0] == batch.rewards.long() % 4).all()

    def test_it_draws_only_what_is_there(self) -> None:
        replay = Replay(100, (1,), seed=0)
        replay.add(Transition(torch.ones(1), 0, 7.0, torch.ones(1), False))
        assert set(replay.sample(50).rewards.tolist()) == {7.0}

    def test_bad_capacity(self) -> None:
        with pytest.raises(ValueError, match="capacity"):
            Replay(0, (1,), seed=0)


def test_the_curve_of_a_history() -> None:
    history = History(2, ends=[3, 5, 9], successes=[True, True, False], returns=[0.0] * 3)
    assert history.curve(np.array([2, 3, 5, 8, 9, 20])).tolist() == [0.0, 0.5, 1.0, 1.0, 0.5, 0.5]
    assert history.rate() == 0.5


def test_environments_that_do_not_fit_are_refused() -> None:
    q = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="Discrete"):
        DoubleQ(gymnasium.make("Pendulum-v1"), q, None)
    with pytest.raises(ValueError, match="FlattenObservation"):
        DoubleQ(gymnasium.make("FrozenLake-v1"), q, None)


def test_small_observations_have_a_buffer_that_holds_a_batch() -> None:
    torch.manual_seed(0)
    q = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    one = DoubleQ(gymnasium.make("MountainCar-v0"), q, FromReplay(q, Kova(q)), seed=0)
    one.learn(40)
    assert one.learner is not None
    assert one.learner.evaluations > 0


def test_environments_without_masks_work() -> None:
    env = gymnasium.make("CartPole-v1")
    torch.manual_seed(0)
    q = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    history = DoubleQ(env, q, FromReplay(q, Kova(q)), seed=0).learn(120)
    assert len(history) > 0
    assert not any(history.successes)  # CartPole does not say


@pytest.mark.parametrize(
    "bad",
    [{"gamma": 1.5}, {"epsilon": -0.1}, {"batch": 0}, {"buffer": 0}, {"buffer": 31}, {"target_every": 2.5}],
)
def test_settings_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Settings(**bad)  # type: ignore[arg-type]
