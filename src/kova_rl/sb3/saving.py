"""Saving and loading models of Stable-Baselines3 without running code from a file."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import getattr_static
from types import FunctionType
from typing import Any, ClassVar, Self

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.type_aliases import GymEnv, TensorDict

from kova_rl.errors import KovaError
from kova_rl.sb3.files import archive, normalisation, replay
from kova_rl.sb3.files.archive import Target

__all__ = ["SafeSaving"]

REBUILT = ("lr_schedule", "_kept_normalisation")
"""Left out of the file: the host makes ``lr_schedule`` of ``learning_rate`` again."""
NEEDED = ("policy_class", "observation_space", "action_space", "verbose")
PARTS = ("about", "data", "params", "variables", "normalisation")
OUTSIDE = ("env", "policy", "replay_buffer", "rollout_buffer", "_logger", "_vec_normalize_env")
"""Never taken from a file. The host would make an ``env`` of its name, and import the module in that."""
METHODS = (FunctionType, property, classmethod, staticmethod)


_FOREIGN: ContextVar[bool] = ContextVar("foreign", default=False)
"""While a file of the host's own is loaded, which may be of another class."""


@contextmanager
def _foreign() -> Iterator[None]:
    token = _FOREIGN.set(True)
    try:
        yield
    finally:
        _FOREIGN.reset(token)


class SafeSaving(BaseAlgorithm):
    """Saves to a file of JSON and arrays. Put it first: ``class Ours(SafeSaving, PPO)``.

    Weights, optimizers, schedules, counters, the action space's random state and the statistics of a
    ``VecNormalize`` come back to the bit. The global random states, the environments and the replay buffer
    are not in the file; see :meth:`save_replay_buffer` for the last.
    """

    torch_variables: ClassVar[tuple[str, ...]] = ("log_ent_coef", "ent_coef_tensor")
    """What a file may set besides weights and optimizers: the host's entropy coefficients."""
    _kept_normalisation: dict[str, Any] | None = None

    def save(
        self, path: Target, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """Save the model, as one file that is there whole or not at all.

        Attributes that a file without code can't hold, such as a lambda for ``learning_rate``, are left out
        with a warning, so that no run ends at a checkpoint; ``load`` asks for them.

        Args:
            path: Gets the suffix ``.zip`` if it has none; or a binary file.
            exclude: Attributes to leave out, in addition to the host's own; ``load`` takes them in
                ``custom_objects``.
            include: Attributes to save though the host leaves them out.

        Raises:
            TypeError: Weights or states that a file without code can't hold.
        """
        states, variables = self._get_torch_save_params()
        left = {*(exclude or ()), *self._excluded_save_params(), *REBUILT} - set(include or ())
        left |= {name.split(".")[0] for name in (*states, *variables)}
        kept = normalisation.described(self.get_vec_normalize_env()) or self._kept_normalisation
        parts = {
            "about": {"class": type(self).__name__},
            "data": {name: value for name, value in vars(self).items() if name not in left},
            "params": self.get_parameters(),
            "variables": {name: recursive_getattr(self, name) for name in variables},
            "normalisation": kept or {},
        }
        for name, why in archive.write(path, "model", parts, may_lack="data").items():
            warnings.warn(f"left out of the file, load will ask for {name}: {why}", stacklevel=2)

    @classmethod
    def load(
        cls,
        path: Target,
        env: GymEnv | None = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trust: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load a model; no code is run from the file.

        If the model was trained on a ``VecNormalize`` and ``env`` has one, that gets the saved statistics and
        keeps its own settings; if ``env`` has none, it is wrapped in one as it was in training. Without
        ``env`` the statistics wait for :meth:`set_env`.

        Args:
            path: What :meth:`save` wrote, with or without the suffix ``.zip``.
            env: The environment to go on with; needed to train, not to predict.
            device: Where the weights go.
            custom_objects: Attributes to take from here, and not from the file.
            print_system_info: Print the versions of the libraries, now and at the time of saving.
            force_reset: Reset the environment before training goes on.
            trust: Accept a file of Stable-Baselines3's own, which can run code.
            **kwargs: Attributes to change on the loaded model.

        Raises:
            ValueError: The file is damaged, of another class, not of ours, or names an unknown class; or
                :meth:`save` had to leave something out that is not in ``custom_objects``.
        """
        if trust and not archive.is_ours(path):
            with _foreign():
                return super().load(
                    path, env, device, custom_objects, print_system_info, force_reset, **kwargs
                )
        parts, arrays, libraries = archive.read(path, "model", *PARTS)
        cls._check_class(str(parts["about"].get("class")))
        cls._check_names(parts["data"])
        cls._check_variables(parts["variables"])
        data = {**archive.decoded(parts["data"], arrays, skip=custom_objects), **(custom_objects or {})}
        needed = dict.fromkeys((*NEEDED, *parts.get("omitted", {})))
        missing = [name for name in needed if name not in data]
        if missing:
            given = ", ".join(f"{name!r}: ..." for name in missing)
            raise ValueError(
                f"{', '.join(missing)} left out of the file: load(path, custom_objects={{{given}}})"
            )
        replay.unset(data)
        normalised = archive.decoded(parts["normalisation"], arrays)
        if env is None:
            data["_kept_normalisation"] = normalised or None
        else:
            env = normalisation.restored(env, normalised)
        action_space = copy.deepcopy(data["action_space"])
        hosts = archive.hosts_file(
            data,
            archive.decoded(parts["params"], arrays),
            archive.decoded(parts["variables"], arrays),
            libraries,
        )
        try:
            model = super().load(hosts, env, device, data, print_system_info, force_reset, **kwargs)
        except KeyError as error:  # the host's, while it handles an error that says more
            raise (error.__context__ if isinstance(error.__context__, ValueError) else error) from None
        vars(model.action_space).update(vars(action_space))  # the host seeds it anew
        model._loaded({*(custom_objects or ()), *kwargs})
        return model

    def _loaded(self, given: Collection[str]) -> None:
        """Called at the end of :meth:`load`, with the names of what was not taken from the file."""

    def set_parameters(
        self,
        load_path_or_dict: str | TensorDict,
        exact_match: bool = True,
        device: torch.device | str = "auto",
        trust: bool = False,
    ) -> None:
        """Put weights and optimizers into this model, all or nothing.

        Args:
            load_path_or_dict: A file, or what :meth:`get_parameters` gave.
            exact_match: Whether it must have all that the model has, and no more.
            device: Where a file's tensors go.
            trust: Accept a file of Stable-Baselines3's own, which can run code.

        Raises:
            ValueError: They are not the parameters of this class; nothing has changed.
        """
        found: Any = load_path_or_dict
        if not isinstance(found, dict) and not (trust and not archive.is_ours(found)):
            parts, arrays, _ = archive.read(found, "model", *PARTS)
            found = archive.decoded(parts["params"], arrays)
        try:
            self._set_all(found, exact_match, device)
        except (KovaError, KeyError, ValueError):
            if not _FOREIGN.get():
                raise
            self._set_all({"policy": found["policy"]}, False, device)
            warnings.warn(
                f"the file is of another class than {type(self).__name__}: its weights were loaded, and the "
                "optimizers and filters begin anew",
                stacklevel=3,
            )

    def _set_all(self, found: Any, exact_match: bool, device: torch.device | str) -> None:
        """The host's ``set_parameters``, which stops half-way at what does not fit, undone if it does."""
        wanted = set(self._get_torch_save_params()[0])
        if exact_match and isinstance(found, dict) and set(found) != wanted:
            raise ValueError(
                f"Names of parameters do not match: {type(self).__name__} has {', '.join(sorted(wanted))}, "
                f"got {', '.join(sorted(map(str, found)))}. For the weights of another class's policy alone: "
                "set_parameters({'policy': found['policy']}, exact_match=False)"
            )
        before: Any = copy.deepcopy(self.get_parameters())
        try:
            super().set_parameters(found, exact_match, device)
        except Exception:
            super().set_parameters(before, True, device)
            raise

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Set the environment, with the statistics of ``VecNormalize`` that :meth:`load` kept for it."""
        super().set_env(normalisation.restored(env, self._kept_normalisation or {}), force_reset)
        self._kept_normalisation = None

    def save_replay_buffer(self, path: Target) -> None:
        """Save the replay buffer, in the same safe format.

        Raises:
            TypeError: The buffer's class is not registered, or it holds what a file without code can't.
        """
        buffer = getattr(self, "replay_buffer", None)
        if buffer is None:
            raise ValueError(f"{type(self).__name__} has no replay buffer to save: it learns on policy")
        replay.write(path, buffer)

    def load_replay_buffer(self, path: Target, truncate_last_traj: bool = True, trust: bool = False) -> None:
        """Load a replay buffer; no code is run from the file.

        Args:
            path: What :meth:`save_replay_buffer` wrote.
            truncate_last_traj: End the unfinished episode of a ``HerReplayBuffer``: the environment is reset.
            trust: Accept a pickle of Stable-Baselines3's own, which can run code.
        """
        if trust and not archive.is_ours(path):
            super().load_replay_buffer(path, truncate_last_traj)  # type: ignore[misc]
            return
        vars(self)["replay_buffer"] = replay.read(path, self.env, self.device, truncate_last_traj)

    @classmethod
    def _check_variables(cls, names: Iterable[str]) -> None:
        unknown = sorted(set(names) - set(cls.torch_variables))
        if unknown:
            raise ValueError(f"the file has the variables {', '.join(unknown)}, which {cls.__name__} has not")

    @classmethod
    def _check_class(cls, saved: str) -> None:
        if saved not in {parent.__name__ for parent in cls.__mro__}:
            raise ValueError(f"the file holds a model of {saved}, not of {cls.__name__}: call {saved}.load")

    @classmethod
    def _check_names(cls, names: Iterable[str]) -> None:
        taken = [
            name for name in names if name in OUTSIDE or isinstance(getattr_static(cls, name, None), METHODS)
        ]
        if taken:
            raise ValueError(f"the file would replace {', '.join(taken)} of {cls.__name__}: it is damaged")
