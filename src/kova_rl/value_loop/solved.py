"""The last layer of a critic solved from one rollout."""

from __future__ import annotations

import torch

from kova_rl.head import Stream, solve
from kova_rl.head.features import Features
from kova_rl.head.prior import prior_variance
from kova_rl.value_loop.rollout import Rollout

__all__ = ["solve_head", "stream_of"]


@torch.no_grad()
def solve_head(features: Features, rollout: Rollout, gamma: float, lam: float, prior: float) -> None:
    """Put the fixed point of LSTD(lambda), about the layer as it is, into the critic.

    Args:
        features: Of the critic, with its last layer.
        rollout: What is solved for.
        gamma: Discount.
        lam: lambda.
        prior: Standard deviation of a typical value about the critic's own, in root mean square returns.
    """
    stream, tracked = stream_of(rollout, features, gamma), features.weights
    variance = prior_variance(stream, tracked, prior)
    features.write(solve(stream, tracked, lam=lam, prior=variance, rounding=features.rounding).weights)


def stream_of(rollout: Rollout, features: Features, gamma: float) -> Stream:
    """The rollout as features, one environment after the other."""
    steps, envs = rollout.rewards.shape
    before = features(rollout.observations).reshape(envs, steps, -1)
    after = before.roll(-1, 1)
    after[:, -1] = features(rollout.last)
    over, cut = rollout.terminated.T.bool(), rollout.truncated.T.bool()
    if rollout.cut is not None:
        after[cut] = features(rollout.cut)
    borders = over | cut
    borders[:, -1] = True
    rewards = rollout.rewards.T.double().flatten()
    ones = torch.ones_like(rewards)
    discounts = gamma * (~over).double().flatten()
    seen = (before.flatten(0, 1), after.flatten(0, 1))
    return Stream(*seen, rewards, discounts, borders.flatten(), ones, ones)
