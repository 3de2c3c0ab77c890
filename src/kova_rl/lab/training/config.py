"""What a training run is: one dataclass, checked when it is made, with a hash that names its directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, get_type_hints

from kova_rl.filter.checks import check_positive, check_whole
from kova_rl.lab import files
from kova_rl.lab.training.critic import check_critic, named
from kova_rl.lab.training.names import check_name

__all__ = ["ALGORITHMS", "RunConfig", "check_fields"]

ALGORITHMS = ("a2c", "acktr", "ddpg", "dqn", "ppo", "sac", "trpo")
Scalar = bool | int | float | str
Options = Mapping[str, Scalar]


@dataclass(frozen=True)
class RunConfig:
    """One training run. What is None is the default of the algorithm or of Kova."""

    algorithm: str
    """ppo, trpo, a2c, acktr, sac, ddpg or dqn."""
    environment: str
    """Any Gymnasium id."""
    critic: str = "kova"
    """kova (tracked filter), memoryless (the paper's released code), adam, or kfac for acktr."""
    steps: int = 1_000_000
    """Environment steps; on-policy algorithms finish their last rollout."""
    seed: int = 0
    """Of everything random in the run."""
    preset: str | None = None
    """The preset that the settings began with."""
    lr: float | None = None
    """alpha, Kova's step size, in (0, 1]; 1 if not given."""
    eta: float | None = None
    """Share of the past that a step of Kova forgets."""
    covariance: str | None = None
    """What Kova keeps of P: kronecker, low-rank, neuron-blocks, layer-blocks, diagonal, full, ...."""
    rank: int | None = None
    """Of the covariance low-rank."""
    evolution: str | None = None
    """How P grows between updates: leakage, memoryless, fading-memory, ..."""
    observation: str | None = None
    """How noisy the targets are: adaptive, max-ratio, batch-size, robust or importance-weighted."""
    prior: float | str | None = None
    """P_0: a variance, or fan-in."""
    layers: str = "all"
    """Filter all layers of the critic, or its last."""
    learning_rate: float | None = None
    """Of the algorithm's own optimizer: the policy's, and with the critic adam the critic's."""
    decay: bool = False
    """Let learning_rate fall to 0 linearly."""
    network: tuple[int, ...] | None = None
    """Hidden layers of policy and critic, such as 64 64."""
    activation: str | None = None
    """tanh or relu."""
    normalise_observations: bool = True
    """By their running mean and variance, as in the paper."""
    normalise_rewards: bool = True
    """By the running variance of the return, as in the paper; logs have the unnormalised return."""
    n_envs: int = 1
    """Copies of the environment, stepped in turn."""
    segments: int = 10
    """Parts that the run is cut into; a checkpoint is written between two."""
    imports: tuple[str, ...] = ()
    """Modules to import first, which register the environment."""
    environment_options: Options = field(default_factory=dict)
    """Arguments of gymnasium.make."""
    host: Options = field(default_factory=dict)
    """Arguments of the Stable-Baselines3 algorithm, such as n_steps or batch_size."""

    def __post_init__(self) -> None:
        for name, kind in _kinds().items():
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
        """The same with Kova's defaults filled in."""
        return replace(self, **named(self))

    def flat(self) -> dict[str, Any]:
        """For JSON: complete, and the options as ``host.n_steps``."""
        out: dict[str, Any] = {}
        whole = self.complete()
        for each in fields(whole):
            value = getattr(whole, each.name)
            if isinstance(value, Mapping):
                out |= {f"{each.name}.{key}": value[key] for key in sorted(value)}
            else:
                out[each.name] = list(value) if isinstance(value, tuple) else value
        return out

    @cached_property
    def name(self) -> str:
        """Of the run's directory: what it is, and a hash of all its settings."""
        text = json.dumps(self.flat(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return files.named(self.algorithm, self.environment, self.critic, f"seed{self.seed}", digest)


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """``{"host.n_steps": 64}`` as ``{"host": {"n_steps": 64}}``."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        outer, dot, inner = key.partition(".")
        if dot or isinstance(value, Mapping):
            table = out.setdefault(outer, {})
            if not isinstance(table, dict):
                raise ValueError(f"{outer} is a value, {table!r}, and can't have {inner or 'a table'} too")
            table.update({inner: value} if dot else value)
        elif isinstance(out.get(key), dict):
            raise ValueError(f"{key} is a table, {out[key]!r}, and can't be {value!r} too")
        else:
            out[key] = value
    return out


def check_fields(values: Mapping[str, Any], where: str) -> None:
    """Raise ``ValueError`` for a key that is no setting of a run."""
    for key in values:
        check_name(f"{where}: a setting", key, [each.name for each in fields(RunConfig)])


@cache
def _kinds() -> dict[str, Any]:
    return {name: kind for name, kind in get_type_hints(RunConfig).items() if name != "name"}


_WANTED = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", type(None): "nothing",
}  # fmt: skip


def _cast(name: str, value: Any, kind: Any) -> Any:
    """The value as this type, or ``ValueError``. TOML has 1e6 for a million and 1 for 1.0."""
    if kind == Options:
        if not isinstance(value, Mapping) or not all(isinstance(v, Scalar) for v in value.values()):
            raise ValueError(f"{name} must be a table of numbers, strings and true or false, got {value!r}")
        return dict(value)
    kinds = getattr(kind, "__args__", (kind,)) if not hasattr(kind, "__origin__") else (kind,)
    for each in kinds:
        if getattr(each, "__origin__", None) is tuple:
            if isinstance(value, list | tuple):
                return tuple(_cast(name, item, each.__args__[0]) for item in value)
        elif each is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif each is int and isinstance(value, float) and value.is_integer():
            return int(value)
        elif type(value) is each:
            return value
    wanted = [_WANTED.get(each, "a list") for each in kinds if each is not type(None)]
    raise ValueError(f"{name} must be {' or '.join(wanted)}, got {value!r}")
