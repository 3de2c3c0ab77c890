"""The file of a recorded stream: one compressed npz, written whole or not at all."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kova_rl import atomic
from kova_rl.value_loop import Rollout

__all__ = ["Stream", "StreamMeta", "read", "write"]

SMALL = np.float16
"""Of observations and ratios: normalised, they are of order 1, and are kept to three digits."""
EXACT = ("rewards", "terminated", "truncated")


@dataclass(frozen=True)
class StreamMeta:
    """What a stream was recorded of."""

    environment: str
    seed: int
    rollouts: int
    steps: int
    envs: int
    critic: str = "adam"
    gamma: float = 0.99
    lam: float = 0.95


@dataclass(frozen=True)
class Stream:
    """Rollouts of one run, in their order, with the ratio of the policy after each to the one that acted."""

    meta: StreamMeta
    rollouts: list[Rollout]
    ratios: list[Tensor]

    @property
    def inputs(self) -> int:
        """Numbers in an observation."""
        return int(self.rollouts[0].observations.shape[1])


def write(path: Path, meta: StreamMeta, found: Iterable[tuple[Rollout, Tensor]]) -> None:
    """Write the rollouts of a run."""
    columns: dict[str, list[NDArray[Any]]] = {}
    for rollout, ratio in found:
        cut = rollout.last[:0] if rollout.cut is None else rollout.cut
        row = {
            "observations": rollout.observations,
            "rewards": rollout.rewards,
            "terminated": rollout.terminated,
            "truncated": rollout.truncated,
            "last": rollout.last,
            "cut": cut,
            "ratio": ratio,
        }
        for name, value in row.items():
            kept = value.numpy() if name in EXACT else value.numpy().astype(SMALL)
            columns.setdefault(name, []).append(kept)
    arrays = {name: np.concatenate(values) for name, values in columns.items()}
    with atomic.opened(path) as file:
        np.savez_compressed(file, meta=np.array(json.dumps(asdict(meta))), **arrays)  # type: ignore[arg-type]


def read(path: Path) -> Stream:
    """Read a stream again.

    Raises:
        ValueError: The file is not one, or it is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = StreamMeta(**json.loads(str(file["meta"])))
            arrays = {name: file[name] for name in file.files if name != "meta"}
    except FileNotFoundError:
        raise ValueError(f"there is no stream {path}: kova record ENV --out {path} makes one") from None
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a recorded stream, or damaged ({error})") from None
    return Stream(meta, *_split(meta, arrays))


def _split(meta: StreamMeta, arrays: dict[str, NDArray[Any]]) -> tuple[list[Rollout], list[Tensor]]:
    """Each rollout for itself."""
    whole = {name: torch.from_numpy(value) for name, value in arrays.items()}
    whole = {name: value.float() if value.dtype is torch.float16 else value for name, value in whole.items()}
    count, steps, envs = meta.rollouts, meta.steps, meta.envs
    rewards, terminated, truncated = (
        whole[name].reshape(count, steps, envs) for name in ("rewards", "terminated", "truncated")
    )
    observations, ratios = (whole[name].split(steps * envs) for name in ("observations", "ratio"))
    last = whole["last"].split(envs)
    cut = whole["cut"].split(truncated.flatten(1).sum(1).tolist())
    cuts = [part if len(part) else None for part in cut]
    rows = zip(observations, rewards, terminated, truncated, last, cuts, strict=True)
    return [Rollout(*row) for row in rows], list(ratios)
