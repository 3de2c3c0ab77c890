"""What every algorithm with a filtered critic shares."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn

from kova_rl.errors import KovaError
from kova_rl.filter.checks import check_choice
from kova_rl.filter.observation import Observation
from kova_rl.head import Solution, Stream, solve
from kova_rl.head.features import Features
from kova_rl.head.prior import prior_variance
from kova_rl.head.solution import widened
from kova_rl.jacobian import Predict
from kova_rl.optimizer import Kova
from kova_rl.posterior import Belief
from kova_rl.sb3.diagnostics import Diagnostics
from kova_rl.sb3.guard import GuardedEnvironment
from kova_rl.sb3.saving import SafeSaving
from kova_rl.sb3.settings import KovaSettings

__all__ = ["FilteredCritic", "about", "last_linear", "refuse_other_layers", "release", "solved_head"]


class FilteredCritic(GuardedEnvironment, SafeSaving, BaseAlgorithm):
    """A mixin: the argument ``kova=``, the filters and their state, diagnostics, and the guard.

    Stands before the host's class in the bases. A subclass puts its filters into ``self.filters`` when the
    model is set up, and calls :meth:`_filter` for each batch.
    """

    kova: KovaSettings | None
    filters: SimpleNamespace
    """The filters by name: ``v``, ``q``, or ``q0`` and ``q1``. Empty if ``kova`` is None."""

    noise_inputs: ClassVar[tuple[str, ...]] = ()
    """The inputs of observation noises that the algorithm can give."""
    explains_variance = True
    """Whether the explained variance is ours to write, because the host does not."""
    use: ClassVar[str]
    """What the critic learns from, in the words of :mod:`kova_rl.defaults`."""
    loops = False
    """Whether the critic learns from rollouts with advantages, in a loop that can be set."""

    def __init__(
        self,
        *args: Any,
        kova: KovaSettings | Mapping[str, Any] | None = KovaSettings(),  # noqa: B008 (it is frozen)
        **kwargs: Any,
    ) -> None:
        self.kova = KovaSettings.of(kova)
        self.filters = SimpleNamespace()
        self._diagnostics: dict[str, Diagnostics] = {}
        self._bars: tuple[Any, list[Solution]] | None = None
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Help and editors show the host's arguments and ours, in place of ``*args``."""
        super().__init_subclass__(**kwargs)
        found: dict[str, inspect.Parameter] = {}
        for base in reversed(cls.__mro__):
            if "__init__" in vars(base) and issubclass(base, BaseAlgorithm) and base is not BaseAlgorithm:
                own = inspect.signature(vars(base)["__init__"]).parameters
                flexible = any(p.kind is p.VAR_KEYWORD for p in own.values())
                found = {**(found if flexible else {}), **own}
        plain = [p for p in found.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        plain.sort(key=lambda p: p.kind)
        cls.__signature__ = inspect.Signature(plain[1:])  # type: ignore[attr-defined]

    def _setup_model(self) -> None:
        self.kova = KovaSettings.of(self.kova)  # load may have been given a dict
        if self.kova is not None and self.kova.given and not self.loops:
            raise ValueError(
                f"{' and '.join(self.kova.given)} can't be set for {type(self).__name__}, which learns "
                "from a replay buffer and has no rollouts or advantages: KovaPPO, KovaTRPO and KovaA2C have"
            )
        super()._setup_model()  # type: ignore[safe-super]

    def _add_filter(self, name: str, module: nn.Module) -> None:
        assert self.kova is not None
        refuse_other_layers(module)
        built = self.kova.build(module, self.use)
        missing = set(built.observation.inputs) - set(self.noise_inputs)
        if missing:
            kinds = [kind for kind in Observation.__subclasses__() if isinstance(kind.inputs, tuple)]
            usable = [kind.__name__ for kind in kinds if set(kind.inputs) <= set(self.noise_inputs)]
            raise ValueError(
                f"{type(built.observation).__name__} needs {', '.join(sorted(missing))}=, which "
                f"{type(self).__name__} does not have: use {', '.join(usable)}, or Robust with one of them"
            )
        setattr(self.filters, name, built)
        self._diagnostics[name] = Diagnostics()

    def _filter(self, name: str, predict: Predict, targets: Tensor, **noise_inputs: Tensor) -> None:
        """One update of the filter of this name."""
        kova = self._filter_of(name)
        wanted: dict[str, Any] = {key: noise_inputs[key] for key in kova.observation.inputs}
        info = kova.step(predict, targets, replays=self._replays(len(targets)), **wanted)
        self._diagnostics[name].add(info, targets)

    def _loaded(self, given: Collection[str]) -> None:
        super()._loaded(given)
        if "kova" in given and self.kova is not None:  # an optimizer's state brings its own rate
            for kova in vars(self.filters).values():
                kova.param_groups[0]["lr"] = float(self.kova.lr)

    def _replays(self, batch: int) -> float:
        """How often a sample is drawn in all, by batches of this size."""
        return 1.0

    def _note(self, name: str, predictions: Tensor, targets: Tensor) -> None:
        """Remember what a critic that is not filtered predicted, for the same value loss in the logger."""
        if name not in vars(self.filters):
            noted = self._diagnostics.setdefault(name, Diagnostics())
            noted.note(targets.flatten() - predictions.detach().flatten(), targets.flatten())

    def _filter_of(self, name: str) -> Kova:
        kova: Kova = getattr(self.filters, name)
        return kova

    def value_distribution(
        self, obs: Any, actions: Any = None, *, bars: Literal["solved", "filter"] = "solved"
    ) -> Belief:
        """The critic's values of these observations, with a standard deviation each.

        Targets that bootstrap make the filter's own error bars too narrow. By default the critic's last layer
        is solved for the fixed point of the transitions in the model's buffer (see :class:`~kova_rl.Head`),
        and the bars are those of the solution, with the critic's distance to it.

        Args:
            obs: One observation or a batch, as for ``predict``.
            actions: For critics of state and action, see the class.
            bars: "solved", or "filter" for the filter's own, as ``Kova.posterior`` has them. They are
                also what comes, with a warning, where the buffer is empty, as it is after ``load``.

        Raises:
            KovaError: The critic is not filtered (``kova=None``).
            ValueError: ``obs`` is the pair that Gymnasium's ``reset`` returns.
        """
        if not vars(self.filters):
            raise KovaError(
                "kova=None keeps the host's optimizer, which has no error bars: build the model with kova={}"
            )
        if isinstance(obs, tuple):
            raise ValueError(
                "obs must be an observation or a batch of them, got a tuple. Gymnasium's env.reset() returns "
                "the pair (obs, info): pass obs alone"
            )
        self.policy.set_training_mode(False)
        tensors, _ = self.policy.obs_to_tensor(obs)
        given = None if actions is None else self._checked(actions, tensors)
        check_choice("bars", bars, ("solved", "filter"))
        with torch.no_grad():
            own = self._belief(tensors, given)
            return own if bars == "filter" else self._solved(own, tensors, given)

    def _solved(self, own: Belief, obs: Any, actions: Tensor | None) -> Belief:
        """The filter's means, with the bars of a solved head where there is data for one."""
        stamp = (self.num_timesteps, sum(p._version for p in self.policy.parameters()))
        if self._bars is None or self._bars[0] != stamp:
            self._bars = (stamp, self._solutions())
        if not self._bars[1]:
            warnings.warn(
                "the model has no transitions at hand (after load it has none until it learns): these are "
                "the filter's own error bars, which are too narrow where targets bootstrap",
                stacklevel=4,
            )
            return own
        return about(own, self._judged(self._bars[1], obs, actions))

    def _solutions(self) -> list[Solution]:
        """The critic's heads, solved from the buffer; none if it is empty."""
        raise NotImplementedError

    def _judged(self, solutions: list[Solution], obs: Any, actions: Tensor | None) -> Belief:
        """What the solved heads say of these observations."""
        raise NotImplementedError

    def _checked(self, actions: Any, obs: Any) -> Tensor:
        """Actions as a tensor, one for each observation."""
        given = torch.as_tensor(actions, device=self.device)
        count = len(next(iter(obs.values())) if isinstance(obs, Mapping) else obs)
        shape = (count, *(self.action_space.shape or ()))
        if given.shape != shape and not (count == 1 and given.shape == shape[1:]):
            raise ValueError(f"actions must be one for each observation, {shape}, got {tuple(given.shape)}")
        if isinstance(self.action_space, spaces.Discrete):
            first, last = int(self.action_space.start), int(self.action_space.start + self.action_space.n) - 1
            if not bool(((given >= first) & (given <= last)).all()):
                raise ValueError(
                    f"actions must be whole numbers from {first} to {last}, got {given.tolist()}"
                )
        return given

    def _belief(self, obs: Any, actions: Tensor | None) -> Belief:
        raise NotImplementedError

    def _record_filters(self) -> None:
        """Write what the filters did to the logger."""
        several = len(vars(self.filters)) > 1
        seen = {}
        for name, diagnostics in self._diagnostics.items():
            found = diagnostics.record(self.logger, f"kova/{name}" if several else "kova")
            if found is not None:
                seen[name] = found
        if "v" in seen:  # where V is filtered it is the value; else the mean of the Q networks
            seen = {"v": seen["v"]}
        if seen:
            losses, shares = zip(*seen.values(), strict=True)
            self.logger.record("train/value_loss", sum(losses) / len(losses))
            if self.explains_variance:
                self.logger.record("train/explained_variance", sum(shares) / len(shares))

    def dump_logs(self, *args: Any) -> None:
        self._record_filters()
        super().dump_logs(*args)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, variables = super()._get_torch_save_params()
        return [*modules, *(f"filters.{name}" for name in vars(self.filters))], variables

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "filters", "_diagnostics", "_bars"]


def about(own: Belief, solved: Belief) -> Belief:
    """Centred on the critic's own means: the spread of the solution, its distance, and the filter's own."""
    solved = widened(solved, own)
    distance = (solved.mean.reshape(own.mean.shape) - own.mean.to(solved.mean)).flatten()
    std = (solved.std.flatten().square() + distance.square()).sqrt().reshape(own.mean.shape)

    def joint() -> Tensor:
        return (solved.covariance + torch.outer(distance, distance)).to(own.mean)

    return Belief(own.mean, std.to(own.mean), joint)


def solved_head(features: Features, stream: Stream) -> Solution:
    """The head of a critic solved from a buffer's transitions."""
    tracked = features.weights
    return solve(stream, tracked, prior=prior_variance(stream, tracked), rounding=features.rounding)


def release(optimizer: torch.optim.Optimizer, weights: Iterable[nn.Parameter]) -> None:
    """Take weights out of the host's optimizer: something else moves them now."""
    taken = {id(p) for p in weights}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]


def last_linear(network: nn.Module) -> nn.Linear:
    """The last linear layer of a critic."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError(f"{type(network).__name__} has no linear layer for layers='last' to filter")
    return layers[-1]


def refuse_other_layers(module: nn.Module) -> None:
    """A filter of convolutions would need a gradient of a million weights for each sample."""
    for name, part in module.named_modules():
        trained = any(p.requires_grad for p in part.parameters(recurse=False))
        if trained and not isinstance(part, nn.Linear):
            raise ValueError(
                f"the critic has weights in {name}, a {type(part).__name__}, which is not a linear layer: "
                "filter the last layer alone with kova=dict(layers='last'), and the host's optimizer keeps "
                "the others"
            )
