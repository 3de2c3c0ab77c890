"""What a training run is: one dataclass, which the command line, files and records share.

A new setting is one field here, with its help: ``kova train`` takes it, TOML files set and sweep it, records
and the folder's hash have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, ClassVar, get_type_hints

from kova_rl.algorithms import ALGORITHMS
from kova_rl.filter.checks import check_positive, check_whole
from kova_rl.lab import spec
from kova_rl.lab.names import check_name
from kova_rl.lab.run import Work, hashed
from kova_rl.lab.training.critic import check_critic, complete

__all__ = ["LISTS", "STRATEGIES", "TABLES", "Options", "RunConfig", "Strategy", "check_fields", "unflatten"]

Scalar = bool | int | float | str
Options = Mapping[str, Scalar]
Strategy = str | Mapping[str, Any]
"""A name, or a table: ``{ kind = "robust", c = 2.0 }``."""


def setting(default: Any, about: str) -> Any:
    """A field with its default, and its help."""
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"help": about})
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class RunConfig:
    """One training run. What is None is the default of the algorithm or of Kova."""

    kind: ClassVar[str] = "training"

    algorithm: str
    environment: str
    critic: str = setting(
        "kova", "kova (tracked filter), memoryless (the paper's released code), adam, or kfac for acktr."
    )
    steps: int = setting(1_000_000, "Environment steps; on-policy algorithms finish their last rollout.")
    seed: int = setting(0, "Of everything random in the run.")
    preset: str | None = setting(
        None, "ppo, trpo, sac or acktr (the paper's tables), a .toml file, or none; the algorithm's own."
    )
    lr: float | None = setting(None, "alpha, Kova's step size, in (0, 1]; 1.")
    eta: float | None = setting(
        None,
        "Share of the past that a step of Kova forgets, in [0, 1); 0.01 for ppo and trpo, 0.1 for the "
        "others, or with a noise that has no unit.",
    )
    covariance: Strategy | None = setting(
        None, f"What Kova keeps of P: {', '.join(spec.kinds('covariance'))}; kronecker."
    )
    rank: int | None = setting(None, "Of the covariance low-rank; 32.")
    evolution: Strategy | None = setting(
        None, f"How P grows between updates: {', '.join(spec.kinds('evolution'))}; leakage."
    )
    observation: Strategy | None = setting(
        None,
        f"How noisy the targets are: {', '.join(spec.kinds('observation'))}, or a table of one with its "
        "settings, { kind = 'robust', c = 2.0 }; max-ratio for a2c, adaptive for the others.",
    )
    prior: float | Strategy | None = setting(
        None, "P_0: a variance, or fan-in; fan-in for ppo and trpo with a noise that has a unit, else 1."
    )
    layers: str = setting("all", "Filter all layers of the critic, or its last.")
    loop: Options = setting(
        {},
        "How the critic of ppo, trpo and a2c goes through a rollout, of any critic: value_passes=3, "
        "value_lr=1e-3 (of adam), value_lambda, value_batch, value_first, recompute, head.",
    )
    learning_rate: float | None = setting(
        None, "Of the algorithm's own optimizer: the policy's, and with the critic adam the critic's."
    )
    decay: bool = setting(False, "Whether learning_rate falls to 0 linearly.")
    network: tuple[int, ...] | None = setting(None, "Hidden layers of policy and critic, such as 64 64.")
    activation: str | None = setting(None, "tanh or relu.")
    normalise_observations: bool = setting(True, "By their running mean and variance, as in the paper.")
    normalise_rewards: bool = setting(
        True, "By the running variance of the return, as in the paper; logs have the unnormalised return."
    )
    n_envs: int = setting(1, "Copies of the environment, stepped in turn.")
    segments: int = setting(10, "Parts that the run is cut into; a checkpoint is written between two.")
    imports: tuple[str, ...] = setting((), "Modules to import first, which register the environment.")
    environment_options: Options = setting({}, "Arguments of gymnasium.make.")
    host: Options = setting({}, "Arguments of the Stable-Baselines3 algorithm, such as n_steps=512.")

    def __post_init__(self) -> None:
        for name, kind in kinds().items():
            object.__setattr__(self, name, _cast(name, getattr(self, name), kind))
        check_name("algorithm", self.algorithm, ALGORITHMS)
        check_whole("steps", self.steps, least=1)
        check_whole("seed", self.seed, least=0)
        check_whole("segments", self.segments, least=1)
        check_whole("n_envs", self.n_envs, least=1)
        check_name("layers", self.layers, ("all", "last"))
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)
        if self.activation is not None:
            check_name("activation", self.activation, ("relu", "tanh"))
        for size in self.network or ():
            check_whole("network", size, least=1)
        check_critic(self)

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "the configuration") -> RunConfig:
        """From a mapping, nested or flat; ``where`` it is from is said in errors."""
        nested = unflatten(values)
        check_fields(nested, where)
        missing = [name for name in ("algorithm", "environment") if name not in nested]
        if missing:
            raise ValueError(
                f"{where} must say {' and '.join(missing)}, as in algorithm = 'ppo', environment = 'Ant-v5'"
            )
        try:
            return cls(**nested)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def complete(self) -> RunConfig:
        """The same with Kova's defaults filled in, so that a later default is another run."""
        return replace(self, **complete(self))

    def flat(self) -> dict[str, Any]:
        """For JSON: complete, and tables as dotted keys, ``host.n_steps`` and ``observation.c``."""
        whole = self.complete()
        values = {each.name: getattr(whole, each.name) for each in fields(whole)}
        listed: dict[str, Any] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
        }
        for name in TABLES:
            listed[name] = dict(sorted(listed[name].items()))
        return spec.flatten(listed)

    @cached_property
    def name(self) -> str:
        """Of the run's directory: what it is, and a hash of all its settings."""
        return hashed(self.flat(), self.algorithm, self.environment, self.critic, f"seed{self.seed}")

    def perform(self, work: Work) -> dict[str, Any]:
        """Train, from where the run stands."""
        from kova_rl.lab.training.run import perform

        return perform(self, work)


STRATEGIES = (*spec.STRATEGIES, "prior")
"""Settings that are a name, or a table with a kind."""
TABLES = ("environment_options", "host", "loop")
LISTS = ("imports", "network")
"""Settings that are lists themselves."""


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """``{"host.n_steps": 64}`` as ``{"host": {"n_steps": 64}}``."""
    return spec.unflatten(values, STRATEGIES)


def check_fields(values: Mapping[str, Any], where: str) -> None:
    """Raise ``ValueError`` for a key that is no setting of a run."""
    for key in values:
        check_name(f"{where}: a setting", key, [each.name for each in fields(RunConfig)])


@cache
def kinds() -> dict[str, Any]:
    """The types of the settings."""
    hints = get_type_hints(RunConfig)
    return {each.name: hints[each.name] for each in fields(RunConfig)}


_WANTED = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing",
}  # fmt: skip


def _cast(name: str, value: Any, kind: Any) -> Any:
    """The value as this type, or ``ValueError``. TOML has 1e6 for a million and 1 for 1.0."""
    if kind == Options:
        if not isinstance(value, Mapping) or not all(isinstance(v, Scalar) for v in value.values()):
            raise ValueError(f"{name} must be a table of numbers, strings and true or false, got {value!r}")
        return dict(value)
    alternatives = getattr(kind, "__args__", (kind,)) if not hasattr(kind, "__origin__") else (kind,)
    for each in alternatives:
        origin = getattr(each, "__origin__", None)
        if origin is tuple:
            if isinstance(value, list | tuple):
                return tuple(_cast(name, item, each.__args__[0]) for item in value)
        elif origin is not None:  # of a strategy
            if isinstance(value, Mapping):
                return dict(value)
        elif each is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif each is int and isinstance(value, float) and value.is_integer():
            return int(value)
        elif type(value) is each:
            return value
    wanted = [_WANTED.get(each, "a list") for each in alternatives if each in _WANTED or each is tuple]
    named = [word for word in wanted if word != "nothing"] or ["a list"]
    raise ValueError(f"{name} must be {' or '.join(named)}, got {value!r}")
