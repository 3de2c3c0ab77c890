"""Samples that are drawn again and again."""

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
