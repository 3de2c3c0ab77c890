"""A head beside a critic: shown transitions, it solves the last layer and says how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kova_rl.errors import InvalidBatch, StateMismatch
from kova_rl.filter.checks import check_fraction, check_positive, check_real, check_whole
from kova_rl.head.checks import checked, checked_actions, named
from kova_rl.head.features import Features, blocks, last_layer
from kova_rl.head.lstd import solve
from kova_rl.head.memory import Memory
from kova_rl.head.prior import PRIOR, prior_variance
from kova_rl.head.solution import Solution, widened
from kova_rl.head.stream import Stream
from kova_rl.posterior import Belief

if TYPE_CHECKING:
    from kova_rl.optimizer import Kova

__all__ = ["Head"]

FLOAT = torch.float64


class Head:
    r"""Solves a critic's last layer for the fixed point of the data, with error bars that hold.

    A filter that bootstraps takes :math:`V(s')` for a constant, and its error bars are too narrow. The head
    takes the features that the critic found, whatever optimizer found them, and asks what LSTD(lambda) says
    of the last layer, given the transitions that were seen and the tracked layer as a prior. Its covariance
    is the sandwich of :func:`kova_rl.head.solve`.

    It remembers transitions, not sums: features move while the critic learns, and sums of old features are
    worth little. Showing it a batch costs a copy; the work is done when it is asked.

    Args:
        critic: Ends in an ``nn.Linear``: one row for V(s), or one row an action for Q(s, a).
        gamma: Discount of a step, in [0, 1].
        lam: lambda of LSTD(lambda), in [0, 1].
        memory: How many transitions are remembered; None for all.
        forgetting: Each transition counts by this share less than the one after it, in [0, 1).
        prior: Standard deviation of a typical value about the critic's own before any data, in ``scale``.
        scale: The unit of the values; None takes the root mean square of the returns that were seen, and
            1 before that.
        window: Steps over which successive samples may depend on each other; None for the cube root of n.
        layer: The last layer, where ``critic`` is not a module.
        filter: The optimizer that finds the features, if it is a Kova: its own spread is added, for what the
            layers below the last may have learned of chance.

    Example:
        >>> import torch
        >>> from kova_rl import Head
        >>> _ = torch.manual_seed(0)
        >>> critic = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> head = Head(critic, gamma=0.9)
        >>> states, after = torch.randn(500, 2), torch.randn(500, 2)
        >>> head.observe(states, torch.randn(500) + 1, after, torch.zeros(500, dtype=torch.bool))
        >>> low, high = head.posterior(torch.zeros(1, 2)).interval(0.95)  # the value is 10 everywhere
        >>> bool(low < 10 < high)
        True

    Reference:
        Boyan, "Technical update: least-squares temporal difference learning", 2002; Newey and West, "A
        simple, positive semi-definite, heteroskedasticity and autocorrelation consistent covariance matrix",
        1987.
    """

    def __init__(
        self,
        critic: Callable[[Tensor], Tensor],
        gamma: float,
        *,
        lam: float = 0.0,
        memory: int | None = None,
        forgetting: float = 0.0,
        prior: float = PRIOR,
        scale: float | None = None,
        window: int | None = None,
        layer: nn.Linear | None = None,
        filter: Kova | None = None,
    ) -> None:
        for name, share in (("gamma", gamma), ("lam", lam)):
            check_real(name, share, "a number in [0, 1]", isinstance(share, (int, float)) and 0 <= share <= 1)
        check_fraction("forgetting", forgetting)
        check_positive("prior", prior)
        if scale is not None:
            check_positive("scale", scale)
        for name, count in (("memory", memory), ("window", window)):
            if count is not None:
                check_whole(name, count, least=1)
        self.features = Features(critic, last_layer(critic) if layer is None else layer)
        self.gamma, self.lam, self.forgetting = float(gamma), float(lam), float(forgetting)
        self.prior, self.scale, self.window = float(prior), scale, window
        self.filter = filter
        self._memory = Memory(memory)

    def __repr__(self) -> str:
        return (
            f"Head({self.features.layer}, gamma={self.gamma}, lam={self.lam}, memory={self._memory.size}, "
            f"forgetting={self.forgetting}, prior={self.prior}, scale={self.scale}, window={self.window}, "
            f"filter={type(self.filter).__name__})"
        )

    def __len__(self) -> int:
        """How many transitions are remembered."""
        return len(self._memory)

    # ------------------------------------------------------------------ learning

    @torch.no_grad()
    def observe(
        self,
        states: Tensor,
        rewards: Tensor,
        next_states: Tensor,
        terminated: Tensor,
        truncated: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        discounts: Tensor | None = None,
        actions: Tensor | None = None,
        next_policy: Tensor | None = None,
    ) -> None:
        """Remember N transitions, in the order of time; the next call goes on where this one ended.

        Args:
            states: N observations.
            rewards: Of shape (N,).
            next_states: The observations that followed.
            terminated: Whether nothing follows, of shape (N,).
            truncated: Whether the walk was cut, so that the next transition is not of it. The last of a batch
                that does not go on in the next call is cut as well. None for nowhere.
            weights: Importance weights pi(a|s)/b(a|s), of shape (N,); None for ones.
            discounts: Of what follows, of shape (N,), where it is not ``gamma``, as for n-step returns.
            actions: Of a Q head: whole numbers, of shape (N,).
            next_policy: Of a Q head: the probabilities of the actions in ``next_states``, N x actions.
        """
        given = {
            **{"states": states, "rewards": rewards, "next_states": next_states, "terminated": terminated},
            **{"truncated": truncated, "weights": weights, "discounts": discounts},
            **{"actions": actions, "next_policy": next_policy},
        }
        self._memory.add(checked(given, self.features.actions))

    # ------------------------------------------------------------------ solving

    @torch.no_grad()
    def solve(self) -> Solution:
        """The last layer at the fixed point of what is remembered, and the covariance of its error."""
        stream, tracked = self.stream(), self.features.weights
        return solve(
            stream,
            tracked,
            lam=self.lam,
            prior=prior_variance(stream, tracked, self.prior, self.scale),
            window=self.window,
            rounding=self.features.rounding,
        )

    def stream(self) -> Stream:
        """What is remembered, through the critic as it is now."""
        if not len(self):
            none = self.features.weights.new_zeros(0)
            empty = none.new_zeros(0, len(self.features.weights))
            return Stream(empty, empty, none, none, none.bool(), none, none)
        rows = self._memory.rows()
        before, after = self.features(rows["states"]), self.features(rows["next_states"])
        if "actions" in rows:
            before = self.features.of_actions(before, rows["actions"].long())
            after = blocks(rows["next_policy"], after)
        over = rows["terminated"].bool()
        discounts = (
            rows["discounts"] if "discounts" in rows else torch.full_like(over, self.gamma, dtype=FLOAT)
        )
        weights = rows["weights"] if "weights" in rows else torch.ones_like(over, dtype=FLOAT)
        borders = over | rows["truncated"].bool() if "truncated" in rows else over
        counts = (1 - self.forgetting) ** torch.arange(len(over) - 1, -1, -1, dtype=FLOAT)
        columns = (rows["rewards"], torch.where(over, 0.0, discounts), borders, weights, counts)
        rewards, discounts, borders, weights, counts = (x.to(before.device) for x in columns)
        seen = (rewards.double(), discounts.double(), borders, weights.double(), counts)
        return Stream(before, after, *seen)

    # ------------------------------------------------------------------ answers

    @torch.no_grad()
    def posterior(self, states: Tensor, actions: Tensor | None = None, *, critic: bool = False) -> Belief:
        """What the data say of the values of any states. Each call solves anew; see :meth:`solve`.

        Args:
            states: N observations.
            actions: Of a Q head: whole numbers, of shape (N,); None for all, N x actions.
            critic: Centred on the critic's own values, with the distance to the solution in the spread.
        """
        rows, several = self.features(states), self.features.actions
        taken = None
        if several > 1:
            if actions is None:
                every = torch.arange(several, device=rows.device).repeat(len(rows))
                rows = self.features.of_actions(rows.repeat_interleave(several, 0), every)
            else:
                taken = checked_actions(actions, len(states), several)
                rows = self.features.of_actions(rows, taken)
        belief = self.solve().belief(rows, critic=critic)
        if self.filter is not None:
            belief = widened(belief, self.filter.posterior(lambda: self._predicted(states, taken)))
        return belief.reshaped(-1, several) if several > 1 and taken is None else belief

    def _predicted(self, states: Tensor, actions: Tensor | None) -> Tensor:
        """The critic's own values, in the order of the belief's."""
        out = self.features.critic(states)
        if actions is not None:
            out = out.gather(1, actions[:, None])
        return out.flatten()

    def write(self) -> Solution:
        """Solve, and put the solution into the critic's last layer."""
        solution = self.solve()
        self.features.write(solution.weights)
        return solution

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Tensor]:
        """What is remembered, a tensor a column; neither the critic nor the settings."""
        return {name: column.clone() for name, column in self._memory.rows().items()} if len(self) else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Remember what another head did, in place of all that this one does.

        Raises:
            StateMismatch: Columns that are no transitions, or not those of a head of so many rows.
        """
        memory = Memory(self._memory.size)
        if state:
            try:
                memory.add(checked(named(state), self.features.actions))
            except InvalidBatch as error:
                raise StateMismatch(f"state must be what state_dict() of a head returned: {error}") from error
        self._memory = memory
