"""The optimizer: gathers, calls the filter, writes back, saves and loads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Never

import torch
from torch import Tensor, nn

from kova_rl.batch import (
    check_look,
    check_noise_inputs,
    check_replays,
    innovation_of,
    refuse_call,
    refuse_if_not_finite,
    refuse_unless_function,
    warn_if_slow,
    warn_of_scales,
)
from kova_rl.errors import KovaError, NonFiniteBatch
from kova_rl.filter.checks import FLOATS, check_lr
from kova_rl.filter.compatibility import check_pair
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.covariance.isotropic import Isotropic
from kova_rl.filter.evidence import Evidence, Noise, Workspace
from kova_rl.filter.evolution import Evolution
from kova_rl.filter.observation import Observation
from kova_rl.filter.step import Update
from kova_rl.filter.windup import guarded
from kova_rl.info import StepInfo
from kova_rl.jacobian import JacobianOf, Predict, keeping_autocast
from kova_rl.linear import is_linear
from kova_rl.parameters import Parameters, uncompiled
from kova_rl.posterior import Belief, joint_covariance
from kova_rl.price import warn_if_dear
from kova_rl.shorthand import chosen, where_it_belongs
from kova_rl.state import identity, moved, pack, unpack

ARGUMENTS = ("module", "lr", "covariance", "evolution", "observation", "eta", "prior")
SCALE_DECAY = 0.99
"""Of the running mean of the normalised innovation squared, which gives std its unit."""


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

    _OURS = (
        *("module", "covariance", "evolution", "observation"),
        *("_structure", "_parameters", "_jacobian", "_workspace", "_sampling", "_device", "_dtype"),
    )

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
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"module must be an nn.Module, got {type(module).__name__}: pass the critic itself, not "
                "its parameters()"
            )
        module = uncompiled(module)
        check_lr(lr)
        warn_if_slow(lr)
        linear = covariance is None and is_linear(module)
        covariance, evolution, observation = chosen(covariance, evolution, observation, eta, prior, linear)
        parameters = Parameters(module, covariance.prior)
        check_pair(covariance, evolution, parameters.segments)
        super().__init__([{"params": parameters.tensors}], {"lr": float(lr)})
        self.module, self.covariance = module, covariance
        self.evolution, self.observation = evolution, observation
        self._parameters = parameters
        self._dtype = _filter_dtype(covariance, parameters)
        self._jacobian = JacobianOf(module, parameters)
        self._structure = Isotropic.or_else(covariance, evolution.kind)
        if self._structure.factored and not self._jacobian.may_factor:
            raise ValueError(
                f"{type(covariance).__name__} needs a critic whose trainable parameters all belong to "
                f"nn.Linear layers, none of them shared, and those of {type(module).__name__} do not: use "
                "covariance.LowRank"
            )
        self._workspace = Workspace()
        self._sampling = False
        with torch.inference_mode(False):  # what is kept must be writable later
            self._device = parameters.tensors[0].device
            like = self._like()
            self.state[parameters.tensors[0]] = {
                "step": 0,
                "jitters": 0,
                "nis": 0.0,
                "covariance": self._prior_state(),
                "evolution": evolution.init(like),
                "observation": observation.init(like),
            }

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
        kind = self._parameters.tensors[0].device.type
        if torch.is_autocast_enabled(kind):
            predict = keeping_autocast(predict, kind)
            with torch.autocast(kind, enabled=False):
                return self._step(predict, targets, look, replays, noise_inputs)
        return self._step(predict, targets, look, replays, noise_inputs)

    def _step(
        self,
        predict: Predict,
        targets: Tensor,
        look: tuple[int, int],
        replays: float,
        noise_inputs: dict[str, Tensor],
    ) -> StepInfo:
        self._refuse_inside_sampled("step()")
        first, looks = check_look(look) if self._structure.tracked else (True, 1)
        repeats = looks * (1.0 if self.observation.unit_free else check_replays(replays))
        memory = self._memory()
        lr = float(self.param_groups[0]["lr"])
        if not 0.0 <= lr <= 1.0:
            check_lr(lr, allow_zero=True)
        check_noise_inputs(self.observation, noise_inputs)

        predictions, jacobian = self._jacobian(predict, self._dtype)
        innovation = innovation_of(targets, predictions, self._dtype)
        noise = Noise(self.observation.covariance(memory["observation"], innovation, noise_inputs))
        if repeats > 1:
            noise = Noise(noise.covariance * repeats)
        evidence = Evidence(jacobian, innovation, noise, memory["step"], self._workspace)
        try:
            update = self._updated(memory, evidence, lr, first, looks)
        except KovaError:
            refuse_if_not_finite(targets, predictions, memory["step"])  # then it was the batch's fault
            raise
        nis = update.nis
        if not math.isfinite(nis):
            refuse_if_not_finite(targets, predictions, memory["step"])
            raise NonFiniteBatch(
                f"step {memory['step']}: the normalised innovation overflows (its square is {nis}). Nothing "
                "was changed. Normalise the inputs and the targets of the critic."
            )

        if memory["step"] == 0:
            warn_of_scales(innovation, jacobian, self.observation.unit_free)
            linear, segments = self._jacobian.may_factor, self._parameters.segments
            warn_if_dear(self._structure, segments, len(innovation), linear, stacklevel=6)
        if repeats > 1:
            nis = noise.one_look(nis, update.predicted_variance(), repeats)
        if first and self.observation.learns:
            expected = update.predicted_variance()
            self.observation.observe(memory["observation"], innovation, expected, jacobian.gram)
        update.commit()
        self._parameters.add_(update.delta)
        if first:
            self.evolution.observe(memory["evolution"], nis)
        seen = nis if first or memory["step"] == 0 else self._mean_nis(memory)
        memory["nis"] += (1 - SCALE_DECAY) * (seen - memory["nis"])
        memory["step"] += 1
        memory["jitters"] += update.jitter > 0.0
        return StepInfo(innovation, nis, update.delta, update.jitter, self)

    def _updated(
        self, memory: dict[str, Any], evidence: Evidence, lr: float, first: bool, looks: int
    ) -> Update:
        """The update of the covariance that is kept, or of a fresh one if it has wound up."""
        state = memory["covariance"]
        change = self.evolution.change(memory["evolution"])
        if looks > 1:
            change = change.part(looks)
        if first:
            change = change.opened(self.observation.valid(memory["observation"]))

        def update() -> Update:
            return self._structure.step(state, change, evidence, lr)

        if self.evolution.windup == "ignore":
            return update()

        def afresh() -> Update:
            fresh = self._prior_state()
            made = self._structure.step(fresh, change, evidence, lr)

            def commit() -> None:
                made.commit()
                state.update(fresh)

            return made._replace(commit=commit)

        def variances() -> Tensor:
            return self._structure.variances(state)

        return guarded(self.evolution, change, variances, evidence.step, update, afresh)

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
        memory = self._memory()
        kind = self._device.type
        if torch.is_autocast_enabled(kind):
            predict = keeping_autocast(predict, kind)
        with torch.autocast(kind, enabled=False):
            predictions, jacobian = self._jacobian(predict, self._dtype, once=True)
            variances, product = self._structure.spread(memory["covariance"], jacobian)
            scale = self._unit(memory)
            std = variances.clamp_(min=0.0).mul_(scale).sqrt_().to(predictions.dtype)
        joint = partial(joint_covariance, product, scale, predictions.dtype)
        return Belief(predictions, std, joint, self._structure.tracked)

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
        if not self._structure.tracked:
            raise KovaError(
                f"{type(self.evolution).__name__} keeps no posterior to draw weights from: use a tracked "
                "evolution, such as evolution.Leakage with covariance.LowRank"
            )
        memory = self._memory()
        tensors = self._parameters.tensors
        with torch.no_grad():
            kept = [p.detach().clone() for p in tensors]
            normal = torch.randn(
                len(self._parameters),
                generator=generator,
                dtype=self._dtype,
                device=generator.device if generator is not None else tensors[0].device,
            ).to(tensors[0].device)
            draw = self._structure.draw(memory["covariance"], normal)
            self._parameters.add_(draw * self._unit(memory) ** 0.5)
        self._sampling = True
        try:
            yield
        finally:
            self._sampling = False
            with torch.no_grad():
                for p, value in zip(tensors, kept, strict=True):
                    p.copy_(value)

    @property
    def tracked(self) -> bool:
        """Whether there is a posterior. ``Memoryless`` keeps none."""
        return self._structure.tracked

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's ``GradScaler`` asks an optimizer before it steps; here the place for a clear word."""
        if all(p.grad is None for p in self._parameters.tensors):
            raise KovaError(
                "a GradScaler has nothing to unscale here: Kova computes the gradients of its predictions "
                "itself, in float32 or float64, and needs no loss.backward(). Call "
                "optimizer.step(predict, targets) without the scaler, also inside torch.autocast"
            )
        return False

    def _refuse_inside_sampled(self, what: str) -> None:
        if self._sampling:
            raise KovaError(f"{what} inside sampled(): leave the block first, its weights are only a draw")

    def variances(self) -> Tensor:
        """Variance of each weight, of length d, neuron by neuron, in the order of the filter."""
        memory = self._memory()
        whitened = self._structure.variances(memory["covariance"])
        root = self._parameters.root(self._like())
        return root.square() * whitened.to(root)

    def unwhitened(self, change: Tensor) -> Tensor:
        """A change of the filter's coordinates as one of the weights, neuron by neuron."""
        return self._parameters.unwhitened(change)

    def _unit(self, memory: dict[str, Any]) -> float:
        """The factor s that gives the covariance the unit of the targets squared."""
        if not self.observation.unit_free or memory["step"] == 0:
            return 1.0
        return self._mean_nis(memory)

    def _mean_nis(self, memory: dict[str, Any]) -> float:
        return float(memory["nis"] / (1 - SCALE_DECAY ** memory["step"]))

    # ------------------------------------------------------------------ state

    def _memory(self) -> dict[str, Any]:
        """The filter's state, kept on the first parameter, on the device of the weights."""
        first = self._parameters.tensors[0]
        memory: dict[str, Any] = self.state[first]
        if self._device != first.device:
            memory = self.state[first] = moved(memory, first.device)
            self._device = first.device
        return memory

    def _prior_state(self) -> dict[str, Any]:
        """What the structure keeps of ``P = P_0``."""
        return self._structure.init(self._parameters.segments, self._like(), self.evolution.kind)

    def _like(self) -> Tensor:
        """An empty tensor with the filter's dtype, on the device of the weights."""
        return self._parameters.tensors[0].new_empty(0, dtype=self._dtype)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise KovaError("Kova tracks the one module that it was built with: build a second Kova")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that the filter remembers: tensors, numbers and strings only."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state = pack(self._memory(), self.param_groups[0], self._identity())
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
            mine, variances = self._memory(), self._structure.variances
            memory, group = unpack(state_dict, mine, self._identity(), variances, self._device)
        self.state[self._parameters.tensors[0]] = memory
        self.param_groups[0].update(group)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _identity(self) -> dict[str, Any]:
        return identity(self._parameters, self._structure, self.evolution, self.observation)

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_inside_sampled("a copy of the optimizer")  # or it would take the draw for the mean
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in self._OURS}}

    def __repr__(self) -> str:
        return (
            f"Kova({type(self.module).__name__} of {len(self._parameters)} weights, "
            f"lr={self.param_groups[0]['lr']}, covariance={self.covariance}, "
            f"evolution={self.evolution}, observation={self.observation})"
        )


def _filter_dtype(covariance: Covariance, parameters: Parameters) -> torch.dtype:
    """The dtype that the filter computes in; it stays so if the module's changes."""
    dtype = covariance.dtype or parameters.tensors[0].dtype
    if dtype not in FLOATS:
        raise ValueError(
            f"the weights are {dtype}, which the filter can't compute in: pass "
            "dtype=torch.float32 to the covariance"
        )
    return dtype
