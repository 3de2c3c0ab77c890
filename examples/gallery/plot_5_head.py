"""
Error bars where targets bootstrap
==================================

Where targets are :math:`r + \\gamma V(s')`, the filter's own bars are too narrow: it takes V(s') for a
constant, and misses that an error there is an error here. ``Head`` solves the critic's last layer, and its
bars know of it.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from kova_rl import Head, Kova, targets

torch.manual_seed(0)
GAMMA, PLACES = 0.98, 30

# %%
# A walk on a line of 30 places, left or right by chance. Beyond the right end is a reward of 1, beyond the
# left end one of -1. The true values are the solution of a linear system.

chain = torch.zeros(PLACES, PLACES, dtype=torch.float64)
chain[range(1, PLACES), range(PLACES - 1)] = chain[range(PLACES - 1), range(1, PLACES)] = 0.5
expected = torch.zeros(PLACES, dtype=torch.float64)
expected[0], expected[-1] = -0.5, 0.5
truth = torch.linalg.solve(torch.eye(PLACES) - GAMMA * chain, expected)

# What the critic sees of a place: twelve bumps along the line.
features = torch.exp(-((torch.arange(PLACES)[:, None] / (PLACES - 1) * 11 - torch.arange(12)) ** 2) / 2)

rows, place = [], PLACES // 2
for _ in range(4_000):
    after = place + (1 if torch.rand(()) < 0.5 else -1)
    over = not 0 <= after < PLACES
    rows.append((place, float(after > 0) * 2 - 1 if over else 0.0, 0 if over else after, over))
    place = PLACES // 2 if over else after
places, rewards, nexts, terminated = (torch.tensor(column) for column in zip(*rows, strict=True))
states, next_states, terminated = features[places], features[nexts], terminated.float()

# %%
# The filter learns from batches that are drawn from these transitions; ``replays`` says how often each is
# drawn.

critic = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = Kova(critic)
for _ in range(3_000):
    batch = torch.randint(len(states), (32,))
    with torch.no_grad():
        after = critic(next_states[batch]).squeeze(-1)
    y = targets.one_step(rewards[batch], after, terminated[batch], GAMMA)
    optimizer.step(lambda batch=batch: critic(states[batch]).squeeze(-1), y, replays=24)
own = optimizer.posterior(lambda: critic(features).squeeze(-1))

# %%
# The head sees the same transitions, in the order of time.

head = Head(critic, gamma=GAMMA, filter=optimizer)
head.observe(states, rewards, next_states, terminated)
solved = head.posterior(features)

figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
beliefs = {"the filter's own bars": own, "the solved head's": solved}
for axes, (name, belief) in zip(panels, beliefs.items(), strict=True):
    low, high = belief.interval(0.95)
    inside = float(((low < truth) & (truth < high)).float().mean())
    axes.fill_between(range(PLACES), low, high, alpha=0.25, label="95% interval")
    axes.plot(belief.mean, label="value")
    axes.plot(truth, "k--", linewidth=1, label="truth")
    axes.set(xlabel="place", title=f"{name}: {inside:.0%} of the truth inside")
    print(f"{name}: error {float((belief.mean - truth).square().mean().sqrt()):.3f}, {inside:.0%} inside")
panels[0].set(ylabel="value")
panels[0].legend()
plt.show()

# %%
# One walk is an illustration; `policy evaluation <../policy-evaluation.html>`__ counts over many.
