"""The optimizer: what PyTorch and its users see of the filter. It keeps the memory, saves and loads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Never

import torch
from torch import Tensor, nn

from kova_rl.batch import refuse_call, refuse_scaler, refuse_unless_function, warn_if_slow
from kova_rl.errors import KovaError
from kova_rl.filter.checks import check_lr
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution
from kova_rl.filter.observation import Observation
from kova_rl.info import StepInfo
from kova_rl.jacobian import Predict, keeping_autocast
from kova_rl.linear import is_linear
from kova_rl.parameters import uncompiled
from kova_rl.posterior import Belief
from kova_rl.shorthand import chosen, where_it_belongs
from kova_rl.state import moved, pack, unpack
from kova_rl.tracker import Tracker

ARGUMENTS = ("module", "lr", "covariance", "evolution", "observation", "eta", "prior")


class Kova(torch.optim.Optimizer):
    r"""Tracks the weights of a value network with an extended Kalman filter (KOVA).

    The weights are a Gaussian random process that is seen through noisy targets,
    ``theta_t = theta_{t-1} + v_t`` and ``y_t = h(u_t; theta_t) + n_t``. One step is

    .. math::
        \begin{aligned}
        P^-    &= \text{evolution}(P)                 && \text{predict (Alg. 1, line 2)} \\
        S      &= H' P^- H + P_n                      && \text{innovation covariance (eq. 9)} \\
        K      &= P^- H S^{-1}                        && \text{gain (eq. 10)} \\
        \theta &\leftarrow \theta + \alpha K (y - h)  && \text{update (eq. 5)} \\
        P      &= P^- - \alpha K S K'
        \end{aligned}

    with H the gradients of the N predictions, in the structure that ``covariance`` keeps of P.

    Args:
        module: Any ``nn.Module``; its trainable parameters are tracked. Pass a submodule, such as the
            last layer, to filter that alone and leave the rest to another optimizer.
        lr: alpha in (0, 1]. 1 is the filter; a scheduler may lower it, to 0 at last.
        covariance: What is kept of P, see :mod:`kova_rl.covariance`. None is ``Kronecker()`` for a critic
            whose trainable parameters all belong to ``nn.Linear`` layers, and ``LowRank(32)`` for every
            other, both with the paper's prior ``P_0 = I``.
        evolution: How P grows between updates, see :mod:`kova_rl.evolution`. None is ``Leakage(0.001)``.
        observation: How noisy the targets are, see :mod:`kova_rl.observation`. None is ``Adaptive()``, which
            learns it. With a noise that has no unit (``BatchSize``, ``MaxRatio``), the evolution's None is
            ``Leakage(0.1)``; with ``Memoryless`` the noise is ``BatchSize()``, as in the released code.
        eta: Short for the default evolution with this ``eta``: how fast it forgets.
        prior: Short for the default covariance with this ``prior``: a number, a dict from a layer's name to
            its number, or ``covariance.FanIn()``.

    Raises:
        ValueError: A setting out of range, a module without trainable parameters, a covariance and an
            evolution that do not go together, or one thing said twice (``eta`` and ``evolution``).
        TypeError: An argument that there is not; the message says where it belongs.

    Example:
        >>> import torch
        >>> from kova_rl import Kova
        >>> _ = torch.manual_seed(0)
        >>> critic = torch.nn.Linear(3, 1)
        >>> optimizer = Kova(critic)
        >>> states = torch.randn(64, 3)
        >>> for _ in range(50):
        ...     info = optimizer.step(lambda: critic(states).squeeze(-1), targets=states.sum(1))
        >>> belief = optimizer.posterior(lambda: critic(states[:2]).squeeze(-1))
        >>> bool((belief.mean - states[:2].sum(1)).abs().max() < 0.05)
        True

    Reference:
        Shashua and Mannor, "Kalman meets Bellman: Improving Policy Evaluation through Value
        Tracking", 2020, Algorithm 1.
    """

    _OURS = ("module", "covariance", "_tracker", "_device")

    def __init__(
        self,
        module: nn.Module,
        lr: float = 1.0,
        covariance: Covariance | None = None,
        evolution: Evolution | None = None,
        observation: Observation | None = None,
        *,
        eta: float | None = None,
        prior: Prior | None = None,
        **others: Never,
    ) -> None:
        if others:
            raise TypeError(where_it_belongs(others, ARGUMENTS))
        module = uncompiled(module)
        check_lr(lr)
        warn_if_slow(lr)
        linear = covariance is None and is_linear(module)
        covariance, evolution, observation = chosen(covariance, evolution, observation, eta, prior, linear)
        tracker = Tracker(module, covariance, evolution, observation)
        tensors = tracker.parameters.tensors
        super().__init__([{"params": tensors}], {"lr": float(lr)})
        self.module, self.covariance, self._tracker = module, covariance, tracker
        with torch.inference_mode(False):  # what is kept must be writable later
            self._device = tensors[0].device
            self.state[tensors[0]] = tracker.init()

    @property
    def evolution(self) -> Evolution:
        return self._tracker.evolution

    @property
    def observation(self) -> Observation:
        return self._tracker.observation

    # ------------------------------------------------------------------ learning

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        predict: Predict | None = None,
        targets: Tensor | None = None,
        *,
        look: tuple[int, int] = (1, 1),
        replays: float = 1.0,
        **noise_inputs: Tensor,
    ) -> StepInfo:
        """One prediction and update of the filter.

        Args:
            predict: Calls the module and returns one prediction a sample, of shape (N,). A critic
                with several outputs picks one: ``lambda: q(obs).gather(1, actions).squeeze(1)``.
            targets: Of shape (N,); taken as constants.
            look: ``(k, n)`` if these samples are gone through n times, and this is the k-th. However often it
                is looked at, a sample counts once: the noise is n times as large and P grows by the n-th
                part, so that n looks leave P as one would. What is learned from innovations (``Adaptive``,
                ``VariableLeakage``, the unit of std) learns at the first look, because those of samples that
                were already fitted say nothing. ``Memoryless``, which carries no P, takes no notice.
            replays: How often a sample of a replay buffer is drawn in all: 64 with batches of 64 and an
                update for every new sample. A sample counts once here too, so the noise is so many times as
                large; P grows as ever, because time goes on between updates. Noises without a unit take no
                notice: to them a whole batch is one observation.
            **noise_inputs: What the observation noise needs, such as ``ratio=``.

        Returns:
            What people want to log, see :class:`~kova_rl.StepInfo`.

        Raises:
            InvalidBatch: Wrong shapes, no predictions or targets, or a noise input missing or out of range.
            NonFiniteBatch: A target, prediction or gradient that is not finite.
            CovarianceWindup: An unbounded evolution has wound up.
            NotPositiveDefinite: The innovation covariance can't be factorised.

        Whatever it raises, neither the weights nor the covariance have changed.
        """
        if targets is None or not callable(predict) or isinstance(predict, nn.Module):
            refuse_call(predict, targets)
        self._refuse_inside_sampled("step()")
        memory, lr = self._memory(), float(self.param_groups[0]["lr"])
        kind = self._device.type
        if torch.is_autocast_enabled(kind):
            predict = keeping_autocast(predict, kind)
            with torch.autocast(kind, enabled=False):
                found = self._tracker.step(memory, lr, predict, targets, look, replays, noise_inputs)
        else:
            found = self._tracker.step(memory, lr, predict, targets, look, replays, noise_inputs)
        return StepInfo(*found, self)

    # ------------------------------------------------------------------ believing

    @torch.no_grad()
    def posterior(self, predict: Predict) -> Belief:
        """Mean, standard deviation and joint covariance of predictions, after the last update.

        Args:
            predict: As for :meth:`step`, on any states; N may differ.

        Returns:
            A detached :class:`~kova_rl.Belief`. Its spread is that of the prediction, without target
            noise. The unit-free observation noises have their spread scaled to the unit of the targets, by
            the running mean of the normalised innovation squared.
        """
        self._refuse_inside_sampled("posterior()")
        refuse_unless_function(predict, "posterior(lambda: critic(obs).squeeze(-1))")
        memory, kind = self._memory(), self._device.type
        if torch.is_autocast_enabled(kind):
            predict = keeping_autocast(predict, kind)
        with torch.autocast(kind, enabled=False):
            return self._tracker.belief(memory, predict)

    @contextmanager
    def sampled(self, generator: torch.Generator | None = None) -> Iterator[None]:
        """Weights drawn from the posterior inside the block, and restored to the bit after it.

        Example:
            >>> import torch
            >>> from kova_rl import Kova
            >>> critic = torch.nn.Linear(2, 1)
            >>> optimizer = Kova(critic)
            >>> with optimizer.sampled(torch.Generator().manual_seed(0)):
            ...     q = critic(torch.ones(1, 2))
        """
        self._refuse_inside_sampled("sampled()")
        with torch.no_grad():
            draw = self._tracker.draw(self._memory(), generator)
        with self._tracker.parameters.displaced(draw):
            yield

    @property
    def tracked(self) -> bool:
        """Whether there is a posterior. ``Memoryless`` keeps none."""
        return self._tracker.structure.tracked

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's ``GradScaler`` asks an optimizer before it steps; here the place for a clear word."""
        if all(p.grad is None for p in self._tracker.parameters.tensors):
            refuse_scaler()
        return False

    def _refuse_inside_sampled(self, what: str) -> None:
        if self._tracker.parameters.away:
            raise KovaError(f"{what} inside sampled(): leave the block first, its weights are only a draw")

    def variances(self) -> Tensor:
        """Variance of each weight, of length d, neuron by neuron, in the order of the filter."""
        return self._tracker.variances(self._memory())

    def unwhitened(self, change: Tensor) -> Tensor:
        """A change of the filter's coordinates as one of the weights, neuron by neuron."""
        return self._tracker.parameters.unwhitened(change)

    # ------------------------------------------------------------------ state

    def _memory(self) -> dict[str, Any]:
        """The filter's state, kept on the first parameter, on the device of the weights."""
        first = self._tracker.parameters.tensors[0]
        memory: dict[str, Any] = self.state[first]
        if self._device != first.device:
            memory = self.state[first] = moved(memory, first.device)
            self._device = first.device
        return memory

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise KovaError("Kova tracks the one module that it was built with: build a second Kova")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that the filter remembers: tensors, numbers and strings only."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state = pack(self._memory(), self.param_groups[0], self._tracker.identity())
        for after in self._optimizer_state_dict_post_hooks.values():
            state = after(self, state) or state
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, to the bit and in its own dtype.

        Raises:
            StateMismatch: The state is of another architecture, covariance, evolution, noise, prior or dtype,
                or it has numbers that no filter could have come to. Nothing was loaded.

        As in ``torch.optim``, ``lr`` comes from the state. The other numbers of the settings (eta, decay ...)
        are those of this Kova, and may differ from those that the state was made with.
        """
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        with torch.inference_mode(False):
            mine, variances = self._memory(), self._tracker.structure.variances
            memory, group = unpack(state_dict, mine, self._tracker.identity(), variances, self._device)
        self.state[self._tracker.parameters.tensors[0]] = memory
        self.param_groups[0].update(group)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_inside_sampled("a copy of the optimizer")  # or it would take the draw for the mean
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in self._OURS}}

    def __repr__(self) -> str:
        return (
            f"Kova({type(self.module).__name__} of {len(self._tracker.parameters)} weights, "
            f"lr={self.param_groups[0]['lr']}, covariance={self.covariance}, "
            f"evolution={self.evolution}, observation={self.observation})"
        )
