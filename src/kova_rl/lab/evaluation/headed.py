"""A network critic with a head beside it, which is solved in closed form when the critic is examined."""

from __future__ import annotations

import torch

from kova_rl.head import Head
from kova_rl.lab.evaluation.network import Make, NetworkCritic
from kova_rl.lab.evaluation.transitions import Array, Transitions
from kova_rl.optimizer import Kova


class HeadedCritic(NetworkCritic):
    """Learns as the network critic does; its values and their deviations are those of the head."""

    def __init__(
        self, make: Make, inputs: int, gamma: float, seed: int, *, window: int | None, weighted: bool
    ) -> None:
        super().__init__(make, inputs, gamma, seed, window=window, weighted=weighted)
        kova = self.optimizer if isinstance(self.optimizer, Kova) else None
        self.head = Head(self.critic, gamma, memory=window, filter=kova)

    def observe(self, batch: Transitions) -> None:
        """Learn, and show the transitions to the head."""
        super().observe(batch)
        self.show(batch)

    def show(self, batch: Transitions) -> None:
        """What the head costs a step."""
        states, after = (torch.from_numpy(x.astype("float32")) for x in (batch.states, batch.next_states))
        rewards, over, cut = map(torch.from_numpy, (batch.rewards, batch.terminated, batch.truncated))
        weights = torch.from_numpy(batch.weights) if self.weighted else None
        self.head.observe(states, rewards, after, over, cut, weights)

    def average(self, states: Array, *, drawn: bool = True) -> tuple[float, float]:
        """The mean value of states and its standard error; with that of the sample if they were drawn.

        The head's alone: what the features learned of each state's chance is averaged, and with the filter's
        own spread the intervals would be twice as wide after some thousand samples.
        """
        seen = self.head.features(torch.as_tensor(states, dtype=torch.float32))
        belief = self.head.solve().belief(seen)
        sample = float(belief.mean.var()) / len(states) if drawn and len(states) > 1 else 0.0
        return float(belief.mean.mean()), (float(belief.covariance.mean()) + sample) ** 0.5

    def mean_std(self, states: Array) -> tuple[Array, Array]:
        """Values of states (features, n x k) and their standard deviations."""
        belief = self.head.posterior(torch.as_tensor(states, dtype=torch.float32))
        return belief.mean.numpy(), belief.std.numpy()
