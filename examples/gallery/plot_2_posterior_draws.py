"""
A noise that is learned, and draws from the posterior
=====================================================

Nobody tells the filter how noisy its targets are: ``Adaptive()``, the default, finds out. And whole value
functions can be drawn from the posterior, which is what Thompson sampling needs.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from kova_rl import Kova

torch.manual_seed(0)


def truth(x):
    return torch.sin(3 * x)


def learn(noise):
    """Batches from the left of the line; gives the critic, its filter, and what was taken for the noise."""
    critic = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer, learned = Kova(critic), []
    (state,) = optimizer.state.values()
    for _ in range(600):
        x = -1 + 1.4 * torch.rand(16)
        optimizer.step(lambda x=x: critic(x[:, None]).squeeze(-1), truth(x) + noise * torch.randn(16))
        learned.append(float(state["observation"]["variance"]) ** 0.5)
    return critic, optimizer, learned


# %%
# Two streams of targets, one with little noise and one with much. At first nearly all is taken for noise;
# then what the weights explain is taken out of it.

noises = (0.1, 0.5)
learners = [learn(noise) for noise in noises]
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for noise, color, (_, _, learned) in zip(noises, ("C2", "C0"), learners, strict=True):
    axes.plot(learned, color, label=f"learned, where the truth is {noise}")
    axes.axhline(noise, color=color, linestyle="--", linewidth=1)
    print(f"deviation of a target: learned {learned[-1]:.3f}, in truth {noise}")
axes.set(xlabel="batches", ylabel="deviation of a target", yscale="log")
axes.legend()
plt.show()

# %%
# Draws of the value function agree where there was data, and disagree on the right, where there was none.
# An agent that acts on one of them tries what may turn out well: that is Thompson sampling. That the truth
# turns round on the right is more than any draw knows.

# sphinx_gallery_thumbnail_number = 2
critic, optimizer, _ = learners[1]
places = torch.linspace(-1, 1.5, 201)
belief = optimizer.posterior(lambda: critic(places[:, None]).squeeze(-1))
draws = belief.sample(12, torch.Generator().manual_seed(0))

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.axvspan(0.4, 1.5, color="0.93", label="never seen")
axes.plot(places, draws.T, "C0", alpha=0.5, linewidth=1, label=["a draw"] + 11 * [None])
axes.plot(places, truth(places), "k--", linewidth=1, label="truth")
axes.set(xlabel="place", ylabel="value", xlim=(-1, 1.5))
axes.legend(loc="upper left")
plt.show()

# %%
# ``belief.sample`` draws the values of these places, with the covariance that the belief has. To draw the
# weights of the network, and with them the values of all states, there is ``optimizer.sampled()``. A
# network is not linear in its weights, so that such draws spread more than the belief says:

with optimizer.sampled(torch.Generator().manual_seed(0)), torch.no_grad():
    drawn = critic(places[:, None]).squeeze(-1)
print(f"a draw of values is off the mean by {float((draws[0] - belief.mean).square().mean().sqrt()):.2f}")
print(f"a draw of weights, by {float((drawn - belief.mean).square().mean().sqrt()):.2f}")
