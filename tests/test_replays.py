"""Samples that are drawn again and again, and targets that the prior did not expect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from kova_rl import InvalidBatch, Kova, covariance, evolution, observation
from kova_rl.sb3 import KovaDDPG, KovaDQN
from tests import members

WEIGHTS, SAMPLES, BATCH = 6, 40, 20


def replayed(seed: int, replays: float, structure: covariance.Covariance) -> float:
    """The squared error of a linear critic over its variance, after ten times as many draws as samples."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(SAMPLES, WEIGHTS, generator=generator, dtype=torch.float64)
    true = torch.randn(WEIGHTS, generator=generator, dtype=torch.float64)
    y = X @ true + torch.randn(SAMPLES, generator=generator, dtype=torch.float64)
    critic = nn.Linear(WEIGHTS, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(critic.weight)
    kova = Kova(
        critic, covariance=structure, evolution=evolution.Stationary(), observation=observation.PerSample()
    )
    for _ in range(10 * SAMPLES // BATCH):
        drawn = torch.randint(SAMPLES, (BATCH,), generator=generator)
        kova.step(
            lambda drawn=drawn: critic(X[drawn]).squeeze(-1),
            y[drawn],
            replays=replays,
            variance=torch.ones(BATCH),
        )
    new = torch.randn(50, WEIGHTS, generator=generator, dtype=torch.float64)
    belief = kova.posterior(lambda: critic(new).squeeze(-1))
    return float(((belief.mean - new @ true) / belief.std).square().mean())


@pytest.mark.parametrize(
    "structure", [covariance.Full(), covariance.LowRank(8), covariance.Kronecker(refresh=1)], ids=members.name
)
def test_a_sample_counts_once_however_often_it_is_drawn(structure: covariance.Covariance) -> None:
    """The bars of a replayed posterior hold if the noise is tempered, and are far too narrow if not."""
    tempered = np.mean([replayed(seed, 10.0, structure) for seed in range(60)])
    counted_again = np.mean([replayed(seed, 1.0, structure) for seed in range(20)])
    assert 0.75 < tempered < 1.35
    assert counted_again > 4


@pytest.mark.parametrize("replays", [0.5, 0.0, -1.0, float("nan"), float("inf"), "twice"])
def test_replays_below_one_are_refused(replays: object) -> None:
    critic = members.critic()
    X = torch.ones(3, critic[0].in_features, dtype=torch.float64)
    with pytest.raises(InvalidBatch, match="replays must be a number of at least 1"):
        Kova(critic).step(lambda: critic(X).squeeze(-1), torch.ones(3), replays=replays)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cls", "arguments", "expected"),
    [
        (KovaDDPG, {"batch_size": 64}, 64.0),
        (KovaDDPG, {"batch_size": 64, "train_freq": 4, "gradient_steps": 2}, 32.0),
        (KovaDDPG, {"batch_size": 16, "train_freq": 4, "gradient_steps": -1}, 16.0),
        (KovaDQN, {"batch_size": 32}, 8.0),  # every fourth step
        (KovaDQN, {"batch_size": 2, "train_freq": 8}, 1.0),
        (KovaDDPG, {"batch_size": 32, "train_freq": (1, "episode"), "gradient_steps": 5}, 1.0),
    ],
)
def test_algorithms_know_how_often_a_sample_is_drawn(cls: type, arguments: dict, expected: float) -> None:
    env = "CartPole-v1" if cls is KovaDQN else "Pendulum-v1"
    model = cls("MlpPolicy", env, buffer_size=100, device="cpu", **arguments)
    model._convert_train_freq()
    assert model._replays(arguments["batch_size"]) == expected


# ------------------------------------------------------------------ targets out of the prior's reach


def regression(scale: float, steps: int = 1200) -> tuple[Kova, nn.Linear, torch.Tensor]:
    """A linear critic after some batches of targets of this size; and the true weights."""
    torch.manual_seed(0)
    true, critic = scale * torch.randn(WEIGHTS), nn.Linear(WEIGHTS, 1, bias=False)
    nn.init.zeros_(critic.weight)
    kova = Kova(critic, evolution=evolution.Stationary())
    for _ in range(steps):
        X = torch.randn(BATCH, WEIGHTS)
        kova.step(lambda X=X: critic(X).squeeze(-1), X @ true + 0.01 * scale * torch.randn(BATCH))
    return kova, critic, true


def unit_of(kova: Kova) -> float:
    (memory,) = kova.state.values()
    return float(memory["observation"]["unit"])


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_a_narrow_prior_widens_to_the_targets(scale: float) -> None:
    kova, critic, true = regression(scale)
    assert float((critic.weight[0].detach() - true).norm() / true.norm()) < 0.01
    assert (unit_of(kova) == 1.0) if scale == 1.0 else (0.3 < unit_of(kova) / scale**2 < 5)
    X = 100 * torch.randn(20, WEIGHTS)
    belief = kova.posterior(lambda: critic(X).squeeze(-1))
    nees = float(((belief.mean - X @ true) / belief.std).square().mean())
    assert 0.05 < nees < 8


def test_one_wild_batch_doubles_the_priors_deviation_at_most() -> None:
    kova, critic, _ = regression(1.0)
    X = torch.randn(BATCH, WEIGHTS)
    kova.step(lambda: critic(X).squeeze(-1), 1e6 * torch.ones(BATCH))
    assert unit_of(kova) == 4.0


def test_the_unit_is_part_of_the_state() -> None:
    kova, _, _ = regression(100.0)
    other = Kova(nn.Linear(WEIGHTS, 1, bias=False), evolution=evolution.Stationary())
    other.load_state_dict(kova.state_dict())
    assert unit_of(other) == unit_of(kova)
