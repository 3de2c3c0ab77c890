"""
Error bars on a value function
==============================

A critic in plain PyTorch learns the returns of a walk on a line. No walk came by the shaded part, and the
critic's standard deviation says so.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from kova_rl import Kova, evolution

torch.manual_seed(0)

# %%
# The data: places on a line, and the noisy return that was seen from each. Inputs and returns are of order
# 1, as the filter likes them.


def truth(x):
    return torch.sin(2 * x) * torch.exp(-0.2 * x)


x = torch.cat([-2 + 1.6 * torch.rand(200), 0.8 + 1.2 * torch.rand(200)])
returns = truth(x) + 0.2 * torch.randn(400)

# %%
# ``Kova`` takes the place of Adam. A step gets a function that returns the predictions, and the targets:
# there is no loss, no ``backward()`` and no learning rate. The returns of one policy do not change, so
# nothing need be forgotten (``Stationary``). The data are gone through ten times, and ``look`` says so: a
# sample counts once.

critic = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = Kova(critic, evolution=evolution.Stationary())
for k in range(10):
    for batch in torch.randperm(400).split(20):
        predict = lambda batch=batch: critic(x[batch, None]).squeeze(-1)  # noqa: E731
        optimizer.step(predict, returns[batch], look=(k + 1, 10))

# %%
# The posterior has a mean and a standard deviation for every place, also for those that were never seen.

places = torch.linspace(-3, 3, 241)
belief = optimizer.posterior(lambda: critic(places[:, None]).squeeze(-1))
low, high = belief.interval(0.95)

figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for gap in ((-3, -2), (-0.4, 0.8), (2, 3)):
    axes.axvspan(*gap, color="0.93", label="never seen" if gap[0] == -3 else None)
axes.fill_between(places, low, high, color="C0", alpha=0.25, label="95% interval")
axes.plot(places, belief.mean, "C0", label="value")
axes.plot(places, truth(places), "k--", linewidth=1, label="truth")
axes.plot(x, returns, ".", color="0.45", markersize=2, label="returns")
axes.set(xlabel="place", ylabel="return", xlim=(-3, 3), ylim=(-3.5, 3.5))
axes.legend(ncols=3, loc="upper center", frameon=False)
plt.show()

# %%
# How much less sure it is where it saw nothing. Between the data the interval holds the truth; far out on
# the left it does not, because it is the spread of what this network can say, and the network goes on in a
# straight line.

seen = ((places > -2) & (places < -0.4)) | ((places > 0.8) & (places < 2))
inside, outside = belief.std[seen].mean(), belief.std[~seen].mean()
print(f"deviation where there was data {inside:.2f}, elsewhere {outside:.2f}")
