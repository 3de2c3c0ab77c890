"""The shared table: every structure, evolution and noise, one row each. A new member is a new row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kova_rl import covariance, evolution, observation

STRUCTURES = [
    covariance.Full(),
    covariance.LayerBlocks(),
    covariance.NeuronBlocks(),
    covariance.Diagonal(),
    covariance.LowRank(rank=8),
    covariance.Kronecker(refresh=2),
]
EVOLUTIONS = [
    evolution.Leakage(0.02),
    evolution.VariableLeakage(0.01),
    evolution.PriorAnchored(0.02),
    evolution.DirectionalForgetting(0.02),
    evolution.DirectionalForgetting(0.02, bounded=False),
    evolution.FadingMemory(0.002),
    evolution.RandomWalk(1e-4),
    evolution.Stationary(),
    evolution.Memoryless(0.02),
]
OBSERVATIONS = [
    observation.BatchSize(),
    observation.MaxRatio(),
    observation.MaxRatio(convention="paper"),
    observation.PerSample(),
    observation.Correlated(),
    observation.ImportanceWeighted(),
    observation.Adaptive(),
    observation.Robust(2.0),
    observation.Robust(2.0, base=observation.Correlated()),
    observation.Robust(2.0, base=observation.Adaptive()),
]


def name(value: object) -> str:
    """A test id."""
    return str(value).replace(" ", "")


def works(structure: covariance.Covariance, kind: evolution.Evolution, module: nn.Module) -> bool:
    from kova_rl import Kova

    try:
        Kova(module, covariance=structure, evolution=kind)
    except ValueError:
        return False
    return True


def factored(structure: covariance.Covariance, kind: evolution.Evolution) -> bool:
    """Whether the pair is for modules of ``nn.Linear`` only."""
    return structure.factored and not isinstance(kind, evolution.Memoryless)


def pairs(module: nn.Module) -> list[tuple[covariance.Covariance, evolution.Evolution]]:
    """Every structure with every evolution that goes with it."""
    return [(s, e) for s in STRUCTURES for e in EVOLUTIONS if works(s, e, module)]


def noise_inputs(noise: observation.Observation, states: Tensor) -> dict[str, Tensor]:
    """Inputs that the noise needs, made up from the states so that they repeat."""
    n = len(states)
    positive = states.detach().double().sum(1).sin().add(1.5).to(states.dtype)
    made = {
        "ratio": positive,
        "variance": positive,
        "weight": positive,
        "covariance": observation.kernel(states.detach(), lengthscale=1.0),
    }
    assert len(positive) == n
    return {key: made[key] for key in noise.inputs}


def critic(
    inputs: int = 3, width: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0
) -> nn.Sequential:
    """A small tanh network."""
    torch.manual_seed(seed)
    layers = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)]
    return nn.Sequential(*layers).to(dtype)
