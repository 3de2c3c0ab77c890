"""A module evaluated at many vectors of weights at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kova_rl.errors import InvalidBatch

__all__ = ["ManyWeights"]

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.Softplus, nn.Identity)
"""Activations that the fast path applies to all sigma points at once."""


class ManyWeights:
    """A module as a function of a vector of weights, for many vectors at once."""

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            raise ValueError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not named:
            raise ValueError(f"{type(module).__name__} has no trainable parameters: KTD needs at least one")
        kinds = {(p.dtype, p.device) for p in named.values()}
        if len(kinds) > 1 or not all(dtype.is_floating_point for dtype, _ in kinds):
            listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ValueError(f"all parameters must have one real dtype and one device, got {listed}")
        self.module, self.names, self.parameters = module, list(named), list(named.values())
        self.shapes = {name: list(p.shape) for name, p in named.items()}
        self._sizes = [p.numel() for p in self.parameters]
        self.size = sum(self._sizes)
        self._layers = _plain_layers(module)

    def gather(self) -> Tensor:
        """The weights as a vector."""
        return torch.cat([p.detach().flatten() for p in self.parameters])

    @torch.no_grad()
    def scatter(self, weights: Tensor) -> None:
        """Write a vector into the module."""
        for p, part in zip(self.parameters, weights.split(self._sizes), strict=True):
            p.copy_(part.view_as(p))

    def __call__(self, points: Tensor, states: Tensor) -> Tensor:
        """Outputs of each row of ``points`` at each state: (points) x (states) x (outputs)."""
        parts = points.split(self._sizes, 1)
        stacked = [part.view(-1, *p.shape) for part, p in zip(parts, self.parameters, strict=True)]
        if self._layers and (states.ndim != 2 or states.shape[1] != stacked[0].shape[2]):
            raise InvalidBatch(
                f"the network takes observations of length {stacked[0].shape[2]}, got shape "
                f"{tuple(states.shape[1:])}"
            )
        out = self._batched(stacked, states) if self._layers else self._mapped(stacked, states)
        out = out[:, :, None] if out.ndim == 2 else out
        if out.ndim != 3 or out.shape[1] != len(states):
            raise InvalidBatch(
                "the module must return one row of outputs for each observation, got shape "
                f"{tuple(out.shape[1:])} for {len(states)} observations"
            )
        return out

    def _batched(self, stacked: Sequence[Tensor], states: Tensor) -> Tensor:
        """Linear layers as batched products: half the time of ``vmap``."""
        out, rest = states.expand(len(stacked[0]), *states.shape), iter(stacked)
        for layer in self._layers:
            if not isinstance(layer, nn.Linear):
                out = layer(out)
                continue
            weight = next(rest).mT
            if layer.bias is None:
                out = torch.bmm(out, weight)
            else:
                out = torch.baddbmm(next(rest)[:, None], out, weight)
        return out

    def _mapped(self, stacked: Sequence[Tensor], states: Tensor) -> Tensor:
        """Any module."""
        frozen = [(name, p) for name, p in self.module.named_parameters() if not p.requires_grad]
        fixed = {
            name: value.to(states) if value.is_floating_point() else value
            for name, value in [*frozen, *self.module.named_buffers()]
        }

        def outputs(weights: dict[str, Tensor]) -> Tensor:
            result: Tensor = torch.func.functional_call(self.module, {**fixed, **weights}, (states,))
            return result

        found: Tensor = torch.vmap(outputs)(dict(zip(self.names, stacked, strict=True)))
        return found


def _plain_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a plain stack of Linear layers and activations; empty for any other module."""
    layers = list(module) if type(module) is nn.Sequential else [module]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    weights = [p for layer in linear for p in layer.parameters()]
    plain = (
        all(type(layer) in (nn.Linear, *ELEMENTWISE) for layer in layers)
        and bool(linear)
        and linear[0] is layers[0]
        and all(p.requires_grad for p in weights)
        and len(set(map(id, weights))) == len(weights)
        and not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    )
    return layers if plain else []
