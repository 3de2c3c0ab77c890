r"""Target labels ``y(u)``: every row of the paper's Table 1, as pure functions of tensors.

Targets are constants: nothing here is differentiated, and no result requires a gradient. Whatever
the table evaluates at :math:`\theta'` (the target network, or the weights that collected the rollout)
comes in as a tensor. ``terminated`` means that the episode is over and nothing follows; ``truncated``
that it was cut, by a time limit say, and would have gone on. Both are boolean, or numbers 0 and 1.
What a network says of the state after a termination is never looked at: it may be NaN.

:func:`k_step` and :func:`gae` are time-major: row ``t`` is one step, later dimensions are environments.
``next_values[t]`` is the value of the true successor of step ``t``: where an episode was cut, that of
its last observation, not of the one that the environment was reset to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kova_rl.errors import InvalidBatch
from kova_rl.filter.checks import check_real, check_whole

__all__ = ["double_q", "gae", "k_step", "one_step", "q_learning", "soft_value"]


def q_learning(rewards: Tensor, next_q: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    r"""The target of DQN: the best next action, by the target network.

    .. math:: y = r + \gamma \max_{a'} Q(s', a'; \theta')

    Args:
        rewards: r, of any shape.
        next_q: Q(s', a'; theta'), of the shape of the rewards and a last dimension of actions.
        terminated: Whether s' ends the episode; the target is then r alone.
        gamma: Discount, in [0, 1].

    Returns:
        The targets, of the shape of the rewards.

    Example:
        >>> import torch
        >>> from kova_rl import targets
        >>> next_q = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> targets.q_learning(torch.tensor([1.0, 1.0]), next_q, torch.tensor([False, True]), 0.5)
        tensor([2., 1.])
    """
    _check_actions("next_q", next_q, rewards)
    return one_step(rewards, next_q.detach().amax(-1), terminated, gamma)


def double_q(
    rewards: Tensor, next_q_online: Tensor, next_q_target: Tensor, terminated: Tensor, gamma: float
) -> Tensor:
    r"""The target of double Q-learning: the online network chooses, the target network evaluates.

    .. math:: y = r + \gamma\, Q\big(s', \arg\max_{a'} Q(s', a'; \theta); \theta'\big)

    Args:
        rewards: r, of any shape.
        next_q_online: Q(s', a'; theta), of the shape of the rewards and a last dimension of actions.
        next_q_target: Q(s', a'; theta'), of the same shape.
        terminated: Whether s' ends the episode; the target is then r alone.
        gamma: Discount, in [0, 1].

    Returns:
        The targets, of the shape of the rewards.

    Example:
        >>> import torch
        >>> from kova_rl import targets
        >>> online, target = torch.tensor([[1.0, 2.0]]), torch.tensor([[8.0, 4.0]])
        >>> targets.double_q(torch.tensor([1.0]), online, target, torch.tensor([False]), 0.5)
        tensor([3.])
    """
    _check_actions("next_q_online", next_q_online, rewards)
    _check_shape("next_q_target", next_q_target, "next_q_online", next_q_online)
    action = next_q_online.detach().argmax(-1, keepdim=True)
    return one_step(rewards, next_q_target.detach().gather(-1, action).squeeze(-1), terminated, gamma)


def one_step(rewards: Tensor, next_values: Tensor, terminated: Tensor, gamma: float | Tensor) -> Tensor:
    r"""The target of DDPG, and of SAC's Q: one reward and the value of the next state.

    .. math:: y = r + \gamma\, Q(s', \pi(s'); \theta') \qquad \text{or} \qquad
        y = r + \gamma\, V(s'; \theta')

    SAC's expectation over s' is estimated by the one s' that was seen.

    Args:
        rewards: r, of any shape.
        next_values: Q(s', pi(s'); theta') or V(s'; theta'), of the same shape.
        terminated: Whether s' ends the episode; the target is then r alone.
        gamma: Discount, in [0, 1]; or one for each, of the shape of the rewards, as n-step returns have.

    Returns:
        The targets, of the shape of the rewards.

    Example:
        >>> import torch
        >>> from kova_rl import targets
        >>> values, terminated = torch.tensor([4.0, float("nan")]), torch.tensor([False, True])
        >>> targets.one_step(torch.tensor([1.0, 1.0]), values, terminated, 0.5)
        tensor([3., 1.])
    """
    if isinstance(gamma, Tensor):
        _check_shape("gamma", gamma, "rewards", rewards)
    else:
        _check_range("gamma", gamma)
    _check_shape("next_values", next_values, "rewards", rewards)
    over = _flag("terminated", terminated, rewards)
    return rewards.detach() + gamma * torch.where(over, 0.0, next_values.detach())


def soft_value(q: Tensor, log_prob: Tensor, ent_coef: float | Tensor = 1.0, dim: int | None = None) -> Tensor:
    r"""The target of SAC's V: what the policy's own actions are worth, and their entropy.

    .. math:: y = \mathbb{E}_{a \sim \pi}\big[Q(s, a) - \alpha_{ent} \log \pi(a|s)\big]

    Table 1 omits the entropy coefficient, which is to set it to 1, as here by default. The authors'
    released code uses min(Q1, Q2) for Q, and a coefficient that is tuned automatically.

    Args:
        q: Q(s, a) at actions drawn from the policy, of any shape.
        log_prob: log pi(a|s) of these actions, of the same shape.
        ent_coef: The entropy coefficient, at least 0; a number, or a tensor of one, as a tuned one is.
        dim: The dimension that holds several draws for one state, to average over. None takes each
            entry for the only draw of its state.

    Returns:
        The targets, of the shape of ``q`` without ``dim``.

    Example:
        >>> import torch
        >>> from kova_rl import targets
        >>> q, log_prob = torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, 0.0]])
        >>> targets.soft_value(q, log_prob, ent_coef=0.5, dim=1)
        tensor([1.7500])
    """
    ent_coef = float(ent_coef.detach()) if isinstance(ent_coef, Tensor) else ent_coef
    _check_range("ent_coef", ent_coef, "a number, at least 0", float("inf"))
    _check_shape("log_prob", log_prob, "q", q)
    values = q.detach() - ent_coef * log_prob.detach()
    return values if dim is None else values.mean(dim)


def k_step(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, k: int | None
) -> Tensor:
    r"""The target of A3C: k rewards, then the value of the state they led to.

    .. math:: y_m = \sum_{i=0}^{k-1} \gamma^i r_{m+i} + \gamma^k V(s_{m+k}; \theta')

    k is shorter for steps that are near the end: the sum stops at a termination, without a value; at a
    truncation, with the value of the last state; and at the end of the rollout, likewise.

    Args:
        rewards: r_t, time-major: T x anything.
        next_values: V(s_{t+1}; theta') of the true successors, of the same shape.
        terminated: Whether the episode ended with step t.
        truncated: Whether the episode was cut after step t.
        gamma: Discount, in [0, 1].
        k: How many rewards at most; None sums as far as the rollout goes.

    Returns:
        The targets, T x anything.

    Example:
        >>> import torch
        >>> from kova_rl import targets
        >>> no = torch.zeros(3, dtype=torch.bool)
        >>> targets.k_step(torch.ones(3), torch.full((3,), 4.0), no, no, gamma=0.5, k=2)
        tensor([2.5000, 2.5000, 3.0000])
    """
    if k is not None:
        check_whole("k", k, 1)
    y = one_step(rewards, next_values, terminated, gamma)
    ended = _ended(rewards, terminated, truncated)
    if k is None or k >= len(rewards):
        return _backward_sum(torch.where(ended, y, rewards.detach()), ended, gamma)
    for _ in range(k - 1):  # the (n+1)-step target of t takes the n-step target of t + 1
        later = y.roll(-1, 0)  # what wraps round is not used: the last row has ended
        y = torch.where(ended, y, rewards.detach() + gamma * later)
    return y


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    r"""The target of TRPO and PPO: the value, and the generalised advantage estimate added to it.

    .. math:: y_m = V(s_m; \theta') + \sum_{i \ge 0} (\gamma \lambda)^i \big(r_{m+i} +
        \gamma V(s_{m+i+1}; \theta') - V(s_{m+i}; \theta')\big)

    The sum stops at the end of its episode, or of the rollout. The last difference has the value of its
    next state if the episode was cut there, and none if it terminated.

    Args:
        rewards: r_t, time-major: T x anything.
        values: V(s_t; theta'), of the same shape.
        next_values: V(s_{t+1}; theta') of the true successors, of the same shape.
        terminated: Whether the episode ended with step t.
        truncated: Whether the episode was cut after step t.
        gamma: Discount, in [0, 1].
        lam: lambda, in [0, 1]. 0 gives :func:`one_step`; 1 gives :func:`k_step` with ``k=None``, if
            ``next_values[t]`` is ``values[t + 1]`` within episodes.

    Returns:
        The targets, T x anything; subtract ``values`` for the advantages.

    Example:
        >>> import torch
        >>> from kova_rl import targets
        >>> no, ones = torch.zeros(2, dtype=torch.bool), torch.ones(2)
        >>> targets.gae(ones, ones, torch.tensor([1.0, 3.0]), no, no, gamma=0.5, lam=0.5)
        tensor([1.8750, 2.5000])
    """
    _check_range("lam", lam)
    _check_shape("values", values, "rewards", rewards)
    differences = one_step(rewards, next_values, terminated, gamma) - values.detach()
    ended = _ended(rewards, terminated, truncated)
    return values.detach() + _backward_sum(differences, ended, gamma * lam)


def _backward_sum(terms: Tensor, ended: Tensor, decay: float) -> Tensor:
    """``sum_i decay^i terms[t+i]``, up to the first row that has ended.

    By doubling: sums over 1, 2, 4 ... rows, each times what is left of the decay where it goes on.
    """
    total = terms.clone()
    carry = torch.full_like(total, decay).masked_fill_(ended, 0.0)
    step = 1
    while step < len(total):
        total[:-step] += torch.where(carry[:-step] == 0, 0.0, carry[:-step] * total[step:])
        carry = torch.cat([carry[:-step] * carry[step:], carry.new_zeros(carry[-step:].shape)])
        step *= 2
    return total


def _ended(rewards: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
    """Where sums stop: at the ends of episodes and in the last row."""
    if rewards.ndim == 0:
        raise InvalidBatch("rewards must be time-major, T x anything, got a scalar")
    ended = _flag("terminated", terminated, rewards) | _flag("truncated", truncated, rewards)
    ended[-1:] = True
    return ended


def _check_range(name: str, value: float, expected: str = "a number in [0, 1]", most: float = 1) -> None:
    check_real(name, value, expected, True)  # a number at all, before it is compared
    check_real(name, value, expected, 0 <= value <= most)


def _check_shape(name: str, tensor: Tensor, other: str, like: Tensor) -> None:
    """No broadcasting: (N, 1) against (N,) would be N x N targets."""
    if tensor.shape != like.shape:
        raise InvalidBatch(
            f"{name} must have the shape of {other}, {tuple(like.shape)}, got {tuple(tensor.shape)}"
        )


def _check_actions(name: str, q: Tensor, rewards: Tensor) -> None:
    if q.ndim != rewards.ndim + 1 or q.shape[:-1] != rewards.shape or q.shape[-1] == 0:
        expected = ", ".join([*map(str, rewards.shape), "actions"])
        raise InvalidBatch(
            f"{name} must have the shape of rewards and a last dimension of actions, ({expected}), "
            f"got {tuple(q.shape)}"
        )


def _flag(name: str, flag: Tensor, rewards: Tensor) -> Tensor:
    """The flag as booleans, checked."""
    _check_shape(name, flag, "rewards", rewards)
    if flag.dtype != torch.bool and not bool(((flag == 0) | (flag == 1)).all()):
        raise InvalidBatch(f"{name} must be boolean, or 0 and 1, got other numbers in it")
    return flag.detach().bool()
