"""
PPO whose critic knows what it does not know
============================================

``KovaPPO`` is Stable-Baselines3's PPO with a filtered critic. ``value_distribution`` gives V(s) with an
error bar.
"""

import matplotlib.pyplot as plt
import numpy as np

from kova_rl.sb3 import KovaPPO

# %%
# Train for a short while: the class takes the arguments of its host, and all of them mean the same.

model = KovaPPO("MlpPolicy", "CartPole-v1", n_steps=1_024, gamma=0.95, seed=0)
model.learn(8_192)

# %%
# Walk one episode, and ask for the value of each state on the way.

env = model.get_env()
states, over = [env.reset()[0]], False
while not over and len(states) < 300:
    action, _ = model.predict(np.array(states[-1:]), deterministic=True)
    after, _, done, _ = env.step(action)
    over = bool(done[0])
    if not over:
        states.append(after[0])
walk = model.value_distribution(np.array(states))
low, high = walk.interval(0.95)

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.fill_between(range(len(states)), low, high, alpha=0.25, label="95% interval")
axes.plot(walk.mean, label="value")
axes.set(xlabel="step of an episode", ylabel="value")
axes.legend()
plt.show()

# %%
# Then ask for states that the policy may never have been in: the cart in the middle, the pole anywhere. The
# dots are the states of the last rollout.

# sphinx_gallery_thumbnail_number = 2
angles, speeds = np.meshgrid(np.linspace(-0.4, 0.4, 60), np.linspace(-4, 4, 60))
grid = np.zeros((angles.size, 4), np.float32)
grid[:, 2], grid[:, 3] = angles.ravel(), speeds.ravel()
belief = model.value_distribution(grid)
visited = model.rollout_buffer.observations.reshape(-1, 4)

figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for axes, shown, title in zip(panels, (belief.mean, belief.std), ("value", "its deviation"), strict=True):
    drawn = axes.pcolormesh(angles, speeds, shown.reshape(angles.shape), shading="gouraud")
    axes.plot(visited[:, 2], visited[:, 3], "w.", markersize=1, alpha=0.6)
    axes.set(xlabel="angle of the pole", title=title, xlim=(-0.4, 0.4), ylim=(-4, 4))
    figure.colorbar(drawn, ax=axes)
panels[0].set(ylabel="angular velocity")
plt.show()

# %%
# Where the policy has been, the critic is surer than elsewhere:

print(f"median deviation on the way {walk.std.median():.2f}, on the grid {belief.std.median():.2f}")
