"""A run on a stream: a critic that is examined on every rollout before it learns it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch

from kova_rl.lab.log import read_log
from kova_rl.lab.pack import Folder
from kova_rl.lab.run import Work, hashed
from kova_rl.lab.streams.store import Stream, read

__all__ = ["COLUMNS", "StreamRun", "csv_text", "opened", "rows", "shipped"]

COLUMNS = ("stream", "critic", "seed", "noise_first", "noise_second", "error", "bias", "coverage", "seconds")


def shipped() -> dict[str, Path]:
    """The streams that come with the package, by environment."""
    folder = Path(str(resources.files("kova_rl.lab.streams"))) / "data"
    return {path.stem: path for path in sorted(folder.glob("*.npz"))}


def opened(name: str, rollouts: int) -> Stream:
    """The first rollouts of a file, or of a stream that comes with the package."""
    stream = read(shipped().get(name, Path(name)))
    return Stream(stream.meta, stream.rollouts[:rollouts], stream.ratios[:rollouts])


@dataclass(frozen=True)
class StreamRun:
    """A stream, a critic and a seed."""

    kind: ClassVar[str] = "stream"

    stream: str
    """A file, or the name of one that comes with the package."""
    recorded: str
    """What it was recorded of: environment and seed."""
    critic: str
    """A name, see :func:`kova_rl.lab.streams.critics.critic_named`."""
    seed: int
    steps: int
    """Rollouts that are learned."""

    @cached_property
    def name(self) -> str:
        """Of its folder."""
        return hashed(self.flat(), self.recorded, self.critic, f"seed{self.seed}")

    def flat(self) -> dict[str, Any]:
        """All settings."""
        kind = self.critic.split(":")[0]
        return {
            **{"label": self.critic, "algorithm": "stream", "environment": self.recorded},
            **{"critic": kind if kind in ("adam", "memoryless") else "kova"},
            **{"seed": self.seed, "steps": self.steps},
        }

    def perform(self, work: Work) -> dict[str, Any]:
        """Examine and learn, from the beginning: it takes seconds."""
        from kova_rl.lab.streams.critics import critic_named
        from kova_rl.lab.streams.examine import examine

        torch.set_num_threads(1)
        found = examine(opened(self.stream, self.steps), critic_named(self.critic), self.seed)
        numbers = (found.noise, found.error, found.bias, found.coverage)
        for step, row in enumerate(zip(*(column.tolist() for column in numbers), strict=True), start=2):
            known = (None if math.isnan(x) else x for x in row)
            noted = dict(zip(("noise", "error", "bias", "coverage"), known, strict=True))
            work.record({"step": step, **noted})
        return {"steps": self.steps, "processor": round(found.seconds, 3)}


def rows(folders: Sequence[Folder]) -> list[dict[str, str]]:
    """The table of these runs."""
    out = []
    for folder in folders:
        config, log = folder.json("config.json"), read_log(folder.path, folder.read("log.jsonl"))
        noise, half = [record["noise"] for record in log], (len(log) + 1) // 2
        means = [fmean(noise[:half]), fmean(noise[half:])]
        for key in ("error", "bias", "coverage"):
            known = [record[key] for record in log if record[key] is not None]
            means.append(fmean(known) if known else math.nan)
        numbers = [*means, folder.json("summary.json")["processor"]]
        stream = f"{config['environment']}-{config['steps']}"
        values = [stream, config["label"], str(config["seed"]), *(f"{number:.4g}" for number in numbers)]
        out.append(dict(zip(COLUMNS, values, strict=True)))
    return out


def csv_text(table: Sequence[dict[str, str]]) -> str:
    """As a file of comma-separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()
