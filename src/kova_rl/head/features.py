"""What a critic's last layer sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from kova_rl.errors import InvalidBatch

__all__ = ["Features", "blocks", "last_layer"]

CHUNK = 8192
"""Observations that pass through the critic at once."""


def last_layer(critic: Any) -> nn.Linear:
    """The last ``nn.Linear`` of a module, in the order in which its parts are listed."""
    if isinstance(critic, nn.Module):
        layers = [part for part in critic.modules() if isinstance(part, nn.Linear)]
        if layers:
            return layers[-1]
    raise ValueError(
        f"the critic must be a module that ends in an nn.Linear, got {type(critic).__name__}: "
        "for another callable name its last layer, layer="
    )


class Features:
    """Inputs of the last layer for any observations, with a 1 for its bias; and its weights as one vector.

    A layer of several rows, one an action, has a block of columns for each: those of the action that was
    taken hold the features, the others zeros.

    Args:
        critic: Maps a batch of observations to the outputs of ``layer``.
        layer: Its last layer.
    """

    def __init__(self, critic: Callable[[Any], Tensor], layer: nn.Linear) -> None:
        self.critic, self.layer = critic, layer
        self.actions = layer.out_features
        self.inputs = layer.in_features + (layer.bias is not None)
        self._checked = False

    @torch.no_grad()
    def __call__(self, states: Tensor | Mapping[str, Tensor]) -> Tensor:
        """N x inputs, in float64; observations may be several tensors by name."""
        named = states if isinstance(states, Mapping) else {"": states}
        count = len(next(iter(named.values())))
        parts = []
        for i in range(0, count, CHUNK):
            some = {name: rows[i : i + CHUNK] for name, rows in named.items()}
            parts.append(self._part(some if isinstance(states, Mapping) else some[""], min(CHUNK, count - i)))
        if not parts:
            return self.layer.weight.new_zeros(0, self.inputs).double()
        return torch.cat(parts)

    def _part(self, states: Any, count: int) -> Tensor:
        if not self._checked:
            self._seen(states, -1.0)
            self._seen(states, 1.0)
            self._checked = True
        found = self._seen(states).reshape(count, self.layer.in_features).double()
        if self.layer.bias is None:
            return found
        return torch.cat([found, found.new_ones(len(found), 1)], dim=1)

    def _seen(self, states: Any, sign: float = 0.0) -> Tensor:
        """Inputs of the layer; with a sign, raises unless the critic returns what the layer does.

        The layer then gives numbers up to 100 of this sign, since small ones would pass a tanh unchanged.
        """
        seen: list[Tensor] = []
        said: list[Tensor] = []

        def note(_: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
            seen.append(given[0])
            said.append(_probe(out) * sign if sign else out)
            return said[-1]

        hook = self.layer.register_forward_hook(note)
        try:
            out = self.critic(states)
        finally:
            hook.remove()
        if len(seen) != 1 or (sign and not _same(out, said[0])):
            raise InvalidBatch(
                f"the critic must end in its layer {self.layer}, called once: it was called {len(seen)} times"
                + (", and what came out of it is not what the critic returned" if seen else "")
            )
        return seen[0]

    def of_actions(self, features: Tensor, actions: Tensor) -> Tensor:
        """A block of columns for each row of the layer, of which the action's holds the features."""
        return blocks(one_hot(actions, self.actions), features)

    @property
    def weights(self) -> Tensor:
        """Of the layer, row after row, each with its bias, in float64."""
        rows = self.layer.weight.detach()
        if self.layer.bias is not None:
            rows = torch.cat([rows, self.layer.bias.detach()[:, None]], dim=1)
        return rows.double().flatten()

    @torch.no_grad()
    def write(self, weights: Tensor) -> None:
        """Put these into the layer."""
        rows = weights.reshape(self.actions, self.inputs)
        self.layer.weight.copy_(rows[:, : self.layer.in_features])
        if self.layer.bias is not None:
            self.layer.bias.copy_(rows[:, -1])

    @property
    def rounding(self) -> float:
        """The relative precision that the features are computed in."""
        return torch.finfo(self.layer.weight.dtype).eps


def _probe(out: Tensor) -> Tensor:
    """Numbers from near 0 to 100, in the place of these."""
    steps = torch.arange(1, out.numel() + 1, dtype=out.dtype, device=out.device)
    return (steps * (100 / out.numel())).view_as(out)


def blocks(choice: Tensor, features: Tensor) -> Tensor:
    """A block of features for each action, times its probability; N x (actions k)."""
    return (choice.to(features)[:, :, None] * features[:, None, :]).flatten(1)


def _same(out: Tensor, of_layer: Tensor) -> bool:
    if out.numel() != of_layer.numel():
        return False
    return bool(torch.equal(out.flatten(), of_layer.flatten()))
