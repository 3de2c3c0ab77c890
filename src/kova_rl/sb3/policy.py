"""The policy of a saved model: of ours, or of Stable-Baselines3's own if its writer is trusted."""

from __future__ import annotations

import difflib
import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from kova_rl.algorithms import ALGORITHMS as TABLE
from kova_rl.algorithms import FOREIGN
from kova_rl.sb3.files import archive

__all__ = ["ALGORITHMS", "SavedPolicy", "load"]

OURS = {name.upper(): algorithm.ours for name, algorithm in TABLE.items()}
HOSTS = {name.upper(): algorithm.host for name, algorithm in TABLE.items() if algorithm.host} | FOREIGN
ALGORITHMS = tuple(sorted({*OURS, *HOSTS}))
"""Each may also be written with Kova before it, as the class is called."""
UNUSED: dict[str, Any] = {
    "learning_rate": 1e-3,
    "clip_range": 0.2,
    "clip_range_vf": None,
    "action_noise": None,
}
"""For what a file may lack because only training needs it."""


@dataclass(frozen=True)
class SavedPolicy:
    """A policy that sees observations as it saw them in training: normalised, if it was trained so."""

    model: BaseAlgorithm
    statistics: Mapping[str, Any]
    """Of ``VecNormalize``, empty without."""

    def predict(self, observation: Any, deterministic: bool = True) -> Any:
        """As the model's, of observations that are not normalised."""
        return self.model.predict(self._seen(observation), deterministic=deterministic)

    def _seen(self, observation: Any) -> Any:
        known = self.statistics.get("obs_rms")
        if known is None:
            return observation
        if isinstance(known, dict):
            changed = {name: self._normalised(observation[name], one) for name, one in known.items()}
            return {**observation, **changed}
        return self._normalised(observation, known)

    def _normalised(self, values: Any, known: Any) -> Any:
        clip = self.statistics["clip_obs"]
        scaled = (values - known.mean) / np.sqrt(known.var + self.statistics["epsilon"])
        return np.clip(scaled, -clip, clip).astype(np.float32)

    @property
    def identity(self) -> str:
        """Tells this policy from others: a digest of its weights and of the statistics."""
        digest = hashlib.sha256()
        for name, weights in sorted(self.model.policy.state_dict().items()):
            digest.update(name.encode() + weights.detach().cpu().numpy().tobytes())
        known = self.statistics.get("obs_rms")
        for one in known.values() if isinstance(known, dict) else [] if known is None else [known]:
            digest.update(one.mean.tobytes() + one.var.tobytes())
        return digest.hexdigest()


def load(path: Path, algorithm: str | None = None, trust: bool = False) -> SavedPolicy:
    """The policy in this file, on the CPU.

    Args:
        path: What ``model.save`` wrote, of ours or of Stable-Baselines3, or the ``model.zip`` of a run.
        algorithm: That saved it, in :data:`ALGORITHMS`, with or without Kova before it. A file of ours says
            it, so None will do; a file of Stable-Baselines3's own does not.
        trust: Load a file of Stable-Baselines3's own, which can run code.

    Raises:
        ValueError: No such algorithm or file, a file of another algorithm, or one that is not trusted.
    """
    name = None if algorithm is None else _plain(algorithm)
    if name is not None and name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}{hint}")
    found = next((p for p in (path, path.with_name(path.name + ".zip")) if p.is_file()), None)
    if found is None:
        raise ValueError(f"policy must be a model that model.save() wrote, got {path}, which is not there")
    return _ours(found, name) if archive.is_ours(found) else _hosts(found, name, trust)


def _plain(algorithm: str) -> str:
    """KovaPPO, kovappo and ppo are PPO."""
    name = algorithm.upper().removeprefix("KOVA")
    return next((known for known in ALGORITHMS if known.upper() == name), name)


def _ours(path: Path, name: str | None) -> SavedPolicy:
    parts, _, _ = archive.read(path, "model", "about")
    saved = str(parts["about"].get("class"))
    if saved not in OURS.values():
        raise ValueError(
            f"{path} holds a model of {saved}, a class of your own: load it in Python, and pass it to "
            "kova_rl.lab.evaluation.evaluate"
        )
    if name is not None and OURS.get(name) != saved:
        raise ValueError(f"{path} holds a model of {saved}, not of {name}: leave --algorithm out")
    untrained = {key: value for key, value in UNUSED.items() if key in parts.get("omitted", {})}
    model = getattr(importlib.import_module("kova_rl.sb3"), saved).load(
        path, device="cpu", custom_objects=untrained
    )
    return SavedPolicy(model, model._kept_normalisation or {})


def _hosts(path: Path, name: str | None, trust: bool) -> SavedPolicy:
    if not archive.is_hosts(path):
        raise ValueError(f"{path} is damaged, or not a model that model.save() wrote")
    if not trust:
        raise ValueError(
            f"{path} was saved by Stable-Baselines3 itself, whose files can run code when they are loaded: "
            "if you trust who wrote it, add --trust"
        )
    if name not in HOSTS:
        raise ValueError(
            f"{path} was saved by Stable-Baselines3 itself and does not say by which algorithm: add "
            f"--algorithm, one of {', '.join(sorted(HOSTS))}"
        )
    try:
        model = getattr(importlib.import_module(HOSTS[name]), name).load(path, device="cpu")
    except Exception as error:  # whatever a file of another algorithm or version raises
        raise ValueError(
            f"{path} could not be loaded as a model of {name} ({type(error).__name__}: {error}). "
            "Name the algorithm that saved it: --algorithm"
        ) from None
    return SavedPolicy(model, {})
