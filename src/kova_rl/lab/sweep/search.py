"""A search in place of a grid: Optuna proposes settings, their runs are made, and it hears their returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.table import Table

from kova_rl.filter.checks import check_whole
from kova_rl.lab.names import check_name
from kova_rl.lab.sweep.grid import expand
from kova_rl.lab.sweep.live import number
from kova_rl.lab.sweep.supervise import Entry
from kova_rl.lab.tables import Sheet
from kova_rl.lab.training.config import RunConfig, check_fields, unflatten

__all__ = ["Proposal", "Search", "ranking", "score"]

KEYS = ("trials", "batch", "seed", "space")
RANGE = ("low", "high", "log", "choices")


@dataclass
class Proposal:
    """Settings that were proposed, and the runs that try them."""

    settings: dict[str, Any]
    runs: list[RunConfig]
    trial: Any = field(repr=False)
    score: float | None = None
    """Mean of the final returns; None if a run failed."""


@dataclass(frozen=True)
class Search:
    """The table ``[search]`` of a sweep's file.

    The same file makes the same proposals, as long as it hears the same returns: so a search resumes as a
    sweep does, by giving the same command again.

    Args:
        space: For each setting ``{low, high}``, with ``log = true`` if logarithmic; or ``{choices}``.
        trials: Proposals in all.
        batch: Proposals at a time; those of a batch do not know of each other.
        seed: Of the proposals.
    """

    space: Mapping[str, Mapping[str, Any]]
    trials: int = 20
    batch: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("batch", 1), ("seed", 0)):
            check_whole(f"[search]: {name}", getattr(self, name), least)
        if not self.space:
            raise ValueError("[search] must have a space, for example space.eta = { low = 1e-3, high = 0.1 }")
        check_fields(unflatten(self.space), "[search.space]")
        for name, given in self.space.items():
            _check_range(name, given)

    @classmethod
    def of(cls, values: Any, where: str) -> Search:
        """From the table of a file."""
        if not isinstance(values, Mapping) or not isinstance(values.get("space", {}), Mapping):
            raise ValueError(f"{where}: [search] and [search.space] must be tables, got {values!r}")
        for key in values:
            check_name(f"{where}, [search]: a key", key, KEYS)
        space: dict[str, Any] = {}
        for name, given in values.get("space", {}).items():
            nested = isinstance(given, Mapping) and all(isinstance(part, Mapping) for part in given.values())
            space |= {f"{name}.{inner}": part for inner, part in given.items()} if nested else {name: given}
        return cls(**{**values, "space": space})

    def check(self, values: Mapping[str, Any], where: str, overrides: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if an end of a range, or a choice, makes a run that would be refused."""
        both = sorted(set(self.space) & set(overrides))
        if both:
            raise ValueError(f"{where}: {', '.join(both)} is searched, and can't be set too")
        first = {name: _ends(given)[0] for name, given in self.space.items()}
        for name, given in self.space.items():
            for end in _ends(given):
                expand(values, f"{where}, [search.space]", {**overrides, **first, name: end})

    def proposals(
        self, values: Mapping[str, Any], where: str, overrides: Mapping[str, Any]
    ) -> Iterator[list[Proposal]]:
        """Batches; each must be scored before the next is asked for.

        Args:
            values: The sweep's other settings; their lists multiply out, for each proposal.
            where: What is said in errors.
            overrides: Settings that win over the sweep's.

        Raises:
            ValueError: Optuna is not installed.
        """
        try:
            import optuna
        except ImportError:
            raise ValueError("a search needs Optuna: pip install 'kova-rl[search]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=self.seed))
        for begin in range(0, self.trials, self.batch):
            asked = [study.ask() for _ in range(min(self.batch, self.trials - begin))]
            batch = []
            for trial in asked:
                chosen = {name: _suggest(trial, name, given) for name, given in self.space.items()}
                batch.append(Proposal(chosen, expand(values, where, {**overrides, **chosen}), trial))
            yield batch
            for proposal in batch:
                failed = optuna.trial.TrialState.FAIL
                study.tell(proposal.trial, proposal.score, state=failed if proposal.score is None else None)


def _check_range(name: str, given: Any) -> None:
    """Raise ``ValueError`` unless this is ``{low, high}`` or ``{choices}``."""
    table = given if isinstance(given, Mapping) else {}
    for key in table:
        check_name(f"[search.space]: a key of {name}", key, RANGE)
    if ("choices" in table) == ("low" in table and "high" in table):
        raise ValueError(f"[search.space]: {name} must have low and high, or choices, got {given!r}")
    if "choices" in given:
        if not isinstance(given["choices"], list | tuple) or not given["choices"]:
            raise ValueError(f"[search.space]: choices of {name} must be a list, got {given['choices']!r}")
        return
    low, high = given["low"], given["high"]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        raise ValueError(f"[search.space]: low and high of {name} must be numbers, got {low!r} and {high!r}")
    if not low < high or (given.get("log") and low <= 0):
        least = "0 < low < high, since log is true" if given.get("log") else "low < high"
        raise ValueError(f"[search.space]: {name} must have {least}, got {low!r} and {high!r}")


def _ends(given: Mapping[str, Any]) -> Sequence[Any]:
    return given["choices"] if "choices" in given else (given["low"], given["high"])


def _suggest(trial: Any, name: str, given: Mapping[str, Any]) -> Any:
    if "choices" in given:
        return trial.suggest_categorical(name, given["choices"])
    low, high, log = given["low"], given["high"], bool(given.get("log", False))
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=log)
    return trial.suggest_float(name, low, high, log=log)


def score(proposal: Proposal, entries: list[Entry]) -> None:
    """Take the mean of the final returns, over environments and seeds."""
    names = {run.name for run in proposal.runs}
    found = [entry for entry in entries if entry.run.name in names]
    returns = [entry.score for entry in found if entry.status == "done" and entry.score is not None]
    proposal.score = fmean(returns) if len(returns) == len(proposal.runs) else None


def ranking(tried: list[Proposal]) -> Table:
    """The proposals, the best first; those with a failed run last."""
    best = sorted(tried, key=lambda each: -math.inf if each.score is None else each.score, reverse=True)
    rows = [
        [number(one.score), *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in one.settings.values())]
        for one in best
    ]
    headings = ["return", *(tried[0].settings if tried else ())]
    return Sheet("Proposals by mean final return", headings, rows, words=()).rich()
