"""
How good is this policy?
========================

Transitions in the order of time are enough to say what a policy is worth, with an interval. Here three
controllers of CartPole walk, and long rollouts say whether the intervals hold.
"""

import gymnasium
import matplotlib.pyplot as plt
import numpy as np

from kova_rl.lab.evaluation import evaluate_data

GAMMA = 0.95

# %%
# Three controllers: one looks at the angle of the pole, one at its speed too, and one at nothing.

rng = np.random.default_rng(0)
policies = {
    "angle": lambda x: int(x[2] > 0),
    "angle and speed": lambda x: int(x[2] + x[3] > 0),
    "chance": lambda x: int(rng.integers(2)),
}


def walk(policy, steps):
    """What was seen on the way: states, rewards, next states, and what ended."""
    env, rows = gymnasium.make("CartPole-v1"), []
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        after, reward, terminated, truncated, _ = env.step(policy(observation))
        rows.append((observation, reward, after, terminated, truncated))
        observation = env.reset()[0] if terminated or truncated else after
    return [np.array(column) for column in zip(*rows, strict=True)]


def rollouts(policy, episodes):
    """The mean discounted return of many new episodes, to compare with."""
    env, returns = gymnasium.make("CartPole-v1"), []
    for seed in range(episodes):
        observation, over, total, discount = env.reset(seed=1_000 + seed)[0], False, 0.0, 1.0
        while not over and discount > 1e-4:
            observation, reward, over, _, _ = env.step(policy(observation))
            total, discount = total + discount * reward, GAMMA * discount
        returns.append(total)
    return np.mean(returns)


# %%
# Two thousand steps of each, and what they say.

figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
for row, (name, policy) in enumerate(policies.items()):
    worth = evaluate_data(*walk(policy, 2_000), gamma=GAMMA)
    low, high = worth.interval(0.95)
    truth = rollouts(policy, 300)
    axes.plot([low, high], [row, row], "C0", linewidth=5, alpha=0.4, label=None if row else "95% interval")
    axes.plot(worth.value, row, "C0o", label=None if row else "estimate")
    axes.plot(truth, row, "k|", markersize=16, label=None if row else "300 rollouts")
    print(f"{name}: {worth.value:.2f}, in {low:.2f} to {high:.2f}; the rollouts say {truth:.2f}")
axes.set(
    yticks=range(len(policies)),
    yticklabels=policies,
    xlabel="discounted return of an episode",
    ylim=(-0.6, 2.6),
)
axes.legend()
plt.show()
