"""KFAC: a Kronecker-factored natural gradient with a trust region, the optimizer of ACKTR."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kova_rl.baselines.kfac_factors import (
    LinearBlock,
    Memory,
    average_,
    blocks_of,
    check_same,
    copied,
    decomposed,
    natural_gradient,
)
from kova_rl.baselines.kfac_recording import Call, factors_of
from kova_rl.errors import InvalidBatch, KovaError, NonFiniteBatch, StateMismatch
from kova_rl.filter.checks import check_fraction, check_positive, check_real, check_whole

__all__ = ["KFAC", "KFACInfo"]

FORMAT = 1


class KFACInfo(NamedTuple):
    """What a step found."""

    nu: float
    """The factor that the trust region put on the step, in (0, 1]."""
    kl: float
    """``lr^2 nu^2 <natural gradient, gradient>``, what ``kl_clip`` bounds: twice the KL, to second order."""


class KFAC(torch.optim.Optimizer):
    r"""Natural gradient of the trainable parameters of a module, with Kronecker-factored Fisher blocks.

    A layer with input a (a one appended for the bias) and gradient g of a sample's log-likelihood at
    its output has the Fisher block

    .. math::
        F \approx A \otimes G, \quad A = \overline{a a'}, \quad G = \overline{g g'}

    averaged over the batch, then exponentially over batches. For one sample, and for an output of unit
    Gaussian likelihood, that is exact. Any other parameter of at most 1,000 elements, such as a ``log_std``,
    keeps its full Fisher matrix. With the gradient D of the loss as a matrix and :math:`A = Q_A d_A Q_A'`,

    .. math::
        N &= Q_G \big[ (Q_G' D Q_A) / (d_G d_A' + \lambda) \big] Q_A', \quad
        \nu = \min\Big(1, \sqrt{\kappa / (\alpha^2 {\textstyle\sum} \langle N, D \rangle)}\Big), \\
        M &\leftarrow \mu M + \nu N, \quad \theta \leftarrow \theta - \alpha (1 - \mu) M

    The factor :math:`1 - \mu` is that of the released ACKTRs: a step is an average of clipped natural
    gradients, so that momentum alone can't leave the trust region. Factors and eigenvectors are float64
    whatever the weights are and eigenvalues are clamped at 0, so that at a constant lr no step is longer
    than :math:`\sqrt{\kappa / \lambda}`.

    The samples of :meth:`observe` are drawn from the model's own distribution, not taken from the data:
    only then are the averages the Fisher matrix.

    Args:
        module: Its trainable parameters are optimised. Each nn.Linear may be called once a recording.
        lr: alpha, above 0; a schedule may take it down to 0.
        momentum: mu in [0, 1).
        damping: lambda, added to every eigenvalue of F.
        kl_clip: kappa, the trust region's size.
        decay: rho of the factors' exponential average, in [0, 1). Its bias at the start is corrected: the
            first batch counts in full, t batches with the weights ``rho^(t-i)`` over their sum.
        refresh: Steps between eigendecompositions.
        weight_decay: Of the L2 penalty, whose gradient is added to the loss's.

    Raises:
        ValueError: A setting out of range, or a parameter that has no block: see the message.

    Example:
        >>> import torch
        >>> from kova_rl.baselines import KFAC
        >>> _ = torch.manual_seed(0)
        >>> policy, states = torch.nn.Linear(3, 2), torch.randn(64, 3)
        >>> optimizer = KFAC(policy)
        >>> for _ in range(200):
        ...     with optimizer.recording():
        ...         actions = torch.distributions.Categorical(logits=policy(states))
        ...     optimizer.observe(actions.log_prob(actions.sample()), retain_graph=True)
        ...     optimizer.zero_grad()
        ...     actions.log_prob((states[:, 0] > 0).long()).mean().neg().backward()
        ...     info = optimizer.step()
        >>> bool((policy(states).argmax(1) == (states[:, 0] > 0)).float().mean() > 0.95)
        True

    Reference:
        Wu, Mansimov, Liao, Grosse and Ba, Scalable trust-region method for deep reinforcement learning using
        Kronecker-factored approximation, 2017; Martens and Grosse 2015 for the factors.
    """

    _OURS = ("module", "_blocks", "_calls", "_recording", "_info")

    def __init__(
        self,
        module: nn.Module,
        lr: float = 0.25,
        momentum: float = 0.9,
        damping: float = 0.01,
        kl_clip: float = 0.001,
        decay: float = 0.99,
        refresh: int = 10,
        weight_decay: float = 0.0,
    ) -> None:
        check_positive("lr", lr)
        check_fraction("momentum", momentum)
        check_positive("damping", damping)
        check_positive("kl_clip", kl_clip)
        check_fraction("decay", decay)
        check_whole("refresh", refresh, 1)
        least = isinstance(weight_decay, int | float) and weight_decay >= 0
        check_real("weight_decay", weight_decay, "a number, at least 0", least)
        settings = {"lr": lr, "momentum": momentum, "damping": damping, "kl_clip": kl_clip}
        settings |= {"decay": decay, "refresh": refresh, "weight_decay": weight_decay}
        blocks = blocks_of(module)
        super().__init__([{"params": [p for block in blocks for p in block.parameters]}], settings)
        self.module, self._blocks = module, blocks
        self._calls: dict[nn.Linear, Call] = {}
        self._recording = False
        self._info: KFACInfo | None = None
        with torch.inference_mode(False):
            self.state[blocks[0].parameters[0]] = {block.name: block.init() for block in blocks}

    @property
    def info(self) -> KFACInfo | None:
        """What the last :meth:`step` found, for who can't see what it returned."""
        return self._info

    # ------------------------------------------------------------------ the Fisher matrix

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the inputs and outputs of every layer, for :meth:`observe`. One forward pass."""
        if self._recording:
            raise KovaError("recording() inside recording(): leave the first block")
        self._calls = {}
        layers = [block.layer for block in self._blocks if isinstance(block, LinearBlock)]
        hooks = [layer.register_forward_hook(self._record) for layer in layers]
        self._recording = True
        try:
            yield
        except BaseException:
            self._calls = {}
            raise
        finally:
            self._recording = False
            for hook in hooks:
                hook.remove()

    def _record(self, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        name = next(b.name for b in self._blocks if isinstance(b, LinearBlock) and b.layer is layer)
        if layer in self._calls:
            raise InvalidBatch(
                f"{name} was called twice in one recording, its factors need one call: pass all inputs in "
                "one batch, or use a recording and an observe() for each call"
            )
        self._calls[layer] = Call.of(name, args[0], output)

    def observe(self, log_likelihoods: Tensor, retain_graph: bool = False) -> None:
        """Average the factors of one batch in.

        Args:
            log_likelihoods: (N,), one a sample, of what was drawn from the model's own distribution
                (detached: the draw itself must carry no gradient), computed inside :meth:`recording`.
            retain_graph: Whether the same graph will be used again, such as for the loss.

        Raises:
            InvalidBatch: Not (N,) with a graph, or layers recorded with another N.
            NonFiniteBatch: A log-likelihood, an input or a gradient is NaN or infinite.
            KovaError: Nothing was recorded.

        After an error nothing has changed. Layers on which the log-likelihoods do not depend keep their
        factors.
        """
        calls, self._calls = self._calls, {}
        batch = factors_of(self._blocks, calls, log_likelihoods, retain_graph)
        memory, decay = self._memory(), self.param_groups[0]["decay"]
        for name, factors in batch.items():
            average_(memory[name], factors, decay)

    # ------------------------------------------------------------------ learning

    @torch.no_grad()
    def step(self) -> KFACInfo:  # type: ignore[override]
        """One natural-gradient step, from the gradients that ``loss.backward()`` left.

        Raises:
            KovaError: No gradients yet, or a parameter whose Fisher block was never observed.
            NonFiniteBatch: A gradient is NaN or infinite, or too large.

        After an error nothing has changed.
        """
        group, memory = self.param_groups[0], self._memory()
        lr, mu = float(group["lr"]), float(group["momentum"])
        gradients = self._gradients(memory, float(group["weight_decay"]))
        fresh: dict[str, Memory] = {
            name: decomposed(memory[name])
            for name in gradients
            if memory[name]["steps"] % group["refresh"] == 0
        }
        natural = {
            name: natural_gradient(D, fresh.get(name, memory[name]), float(group["damping"]))
            for name, D in gradients.items()
        }
        length = lr**2 * sum(float((N * gradients[name]).sum()) for name, N in natural.items())
        if not math.isfinite(length):
            raise NonFiniteBatch(
                "the gradients overflow. Nothing was changed. Normalise the rewards, or clip the gradients."
            )
        nu = 1.0 if length <= group["kl_clip"] else math.sqrt(group["kl_clip"] / length)
        for block in self._blocks:
            if block.name in natural:
                mine = memory[block.name]
                mine.update(fresh.get(block.name, {}))
                mine["momentum"] = mu * mine["momentum"] + nu * natural[block.name]
                mine["steps"] += 1
                block.subtract_(lr * (1 - mu) * mine["momentum"])
        self._info = KFACInfo(nu, max(length, 0.0) * nu**2)
        return self._info

    def _gradients(self, memory: Memory, weight_decay: float) -> dict[str, Tensor]:
        found = {block.name: block.gradient(weight_decay) for block in self._blocks}
        gradients = {name: D for name, D in found.items() if D is not None}
        if not gradients:
            raise KovaError("step() before any gradient: call loss.backward() first")
        for name, D in gradients.items():
            if memory[name]["observed"] == 0:
                raise KovaError(
                    f"step() before any observe() of {name}: run the forward pass in `with "
                    "optimizer.recording():` and call observe() with the samples' log-likelihoods"
                )
            if not torch.isfinite(D).all():
                raise NonFiniteBatch(
                    f"the gradient of {name} is not finite. Nothing was changed. Look for NaNs in the "
                    "rewards, the observations or the loss."
                )
        return gradients

    # ------------------------------------------------------------------ state

    @property
    def _device(self) -> torch.device:
        return self._blocks[0].parameters[0].device

    def _memory(self) -> dict[str, Any]:
        """The factors of every block, kept on the first parameter, on the device of the weights."""
        first = self._blocks[0].parameters[0]
        memory: dict[str, Any] = self.state[first]
        if memory[self._blocks[0].name]["A"].device != self._device:
            memory = self.state[first] = copied(memory, self._device)
        return memory

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise KovaError("KFAC optimises the one module that it was built with: build a second KFAC")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """A copy of factors, eigenvectors, momentum and settings: tensors, numbers and strings only."""
        settings = {key: value for key, value in self.param_groups[0].items() if key != "params"}
        return {
            "state": {0: copied(self._memory(), self._device)},
            "param_groups": [{**settings, "params": list(range(len(self.param_groups[0]["params"])))}],
            "kfac": {"format": FORMAT},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, to the bit and in float64. ``StateMismatch`` loads nothing."""
        if not isinstance(state_dict, dict) or state_dict.get("kfac") != {"format": FORMAT}:
            raise StateMismatch(f"not a state dict of KFAC, format {FORMAT} (was it another optimizer's?)")
        mine = self.state_dict()
        check_same(state_dict.get("state"), mine["state"], "state")
        (settings,) = ({**group} for group in state_dict["param_groups"])
        if settings.pop("params") != mine["param_groups"][0].pop("params"):
            raise StateMismatch("the state dict is of another number of parameters")
        check_same(settings, mine["param_groups"][0], "param_groups")
        with torch.inference_mode(False):
            self.state[self._blocks[0].parameters[0]] = copied(state_dict["state"][0], self._device)
        self.param_groups[0].update(settings)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in self._OURS}}
