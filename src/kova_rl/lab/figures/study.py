"""The study that chose the default of ``Kova()``: a factorial on small mazes and on policy evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console

from kova_rl import covariance, evolution, observation
from kova_rl.filter.checks import check_choice, check_whole
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.filter.evolution import Evolution
from kova_rl.lab import files
from kova_rl.lab.evaluation.run import EvaluationRun
from kova_rl.lab.figures.study_table import Entry, markdown, table
from kova_rl.lab.mazes.critics import Adam, Filtered
from kova_rl.lab.mazes.run import MazeRun
from kova_rl.lab.mazes.series import gather, history
from kova_rl.lab.mazes.series import markdown as series_markdown
from kova_rl.lab.mazes.series import table as series_table
from kova_rl.lab.names import check_name
from kova_rl.lab.pack import Folder, found
from kova_rl.lab.run import Run
from kova_rl.lab.spec import hyphened
from kova_rl.lab.sweep.make import Place, make_all
from kova_rl.lab.terminal import say

__all__ = ["configurations", "redraw", "study"]

Setting = Adam | Filtered

PAIRS: dict[type[Covariance], tuple[type[Evolution], ...]] = {
    covariance.Kronecker: (evolution.Leakage, evolution.VariableLeakage),
    covariance.LowRank: (evolution.Leakage, evolution.VariableLeakage),
    covariance.NeuronBlocks: (evolution.Leakage, evolution.PriorAnchored, evolution.DirectionalForgetting),
    covariance.Diagonal: (evolution.Leakage, evolution.PriorAnchored, evolution.DirectionalForgetting),
    covariance.Full: (evolution.PriorAnchored, evolution.DirectionalForgetting),
}
"""What is compared: structures with the bounded evolutions that forget. Leakage would invert Full."""
ETAS: dict[type[Covariance], tuple[float, ...]] = dict.fromkeys(
    (covariance.Kronecker, covariance.LowRank), (0.1, 0.01, 0.001)
)
"""Of the others: 0.1 and 0.01."""
PRIORS: dict[str, Prior] = {"I": 1.0, "fan-in": covariance.FanIn(1.0)}
NOISES = (observation.BatchSize, observation.Adaptive)
RATES = (1e-2, 3e-3, 1e-3, 3e-4)
"""Of Adam, to compare with."""

DEFAULTS = (
    "Kronecker, Leakage 0.001, Adaptive, P0 I",
    "LowRank, Leakage 0.001, Adaptive, P0 I",
    "LowRank, Leakage 0.001, Adaptive, P0 fan-in",
)
"""What ``Kova()`` is, what it was before ``Kronecker``, and before the study was whole."""
MAZES, LARGE = ("maze4", "maze6"), "maze10"
TASKS = tuple(product(("chain", "grid"), ("on-policy", "switch")))


@dataclass(frozen=True)
class Size:
    """How much is run."""

    steps: int
    """In each small maze."""
    samples: int
    """Of each task."""
    few: int
    """Seeds of every setting."""
    seeds: int
    """Seeds of the better ones."""
    final_steps: int
    final_seeds: int


SCALES = {
    "smoke": Size(500, 1_000, 1, 1, 500, 1),
    "desk": Size(5_000, 10_000, 1, 2, 10_000, 1),
    "paper": Size(5_000, 10_000, 1, 4, 30_000, 3),
}


def configurations(structures: Sequence[str] = ()) -> Iterator[tuple[str, Setting]]:
    """Every setting of the factorial by its name, the cheap ones first; of these structures, or of all."""
    for lr in RATES:
        yield f"Adam {lr:g}", Adam(lr)
    for (prior_name, prior), noise in product(PRIORS.items(), NOISES):
        named = f"Memoryless, {noise.__name__}, P0 {prior_name}"
        yield named, Filtered(covariance.LowRank(prior=prior), evolution.Memoryless(0.01), noise())
    for structure, evolutions in PAIRS.items():
        if structures and hyphened(structure.__name__) not in structures:
            continue
        for kind, noise, eta, (prior_name, prior) in product(
            evolutions, NOISES, ETAS.get(structure, (0.1, 0.01)), PRIORS.items()
        ):
            named = f"{structure.__name__}, {kind.__name__} {eta:g}, {noise.__name__}, P0 {prior_name}"
            yield named, Filtered(structure(prior=prior), kind(eta=eta), noise())  # type: ignore[call-arg]


def study(
    scale: str, seeds: int | None, place: Place, console: Console, structures: Sequence[str] = ()
) -> list[Entry]:
    """Run what is not finished, in three rounds, print the tables and write them.

    All settings on the small mazes and the tasks with few seeds; the best sixth, and all of Adam and
    Memoryless, with more; the best four tracked filters, the default, the best Adam and the best
    Memoryless on the 10x10 maze. With ``structures``, only theirs, Adam and Memoryless.
    """
    for name in structures:
        check_name("--structures", name, [hyphened(each.__name__) for each in PAIRS])
    check_choice("--scale", scale, tuple(SCALES))
    size = SCALES[scale]
    if seeds is not None:
        check_whole("--seeds", seeds, least=size.few)
        size = replace(size, seeds=seeds)
    settings = dict(configurations(structures))
    first = _made(_small(settings, range(size.few), size), place, console)
    chosen = _kept(collect(first))
    kept = {label: critic for label, critic in settings.items() if label in chosen}
    second = _made(_small(kept, range(size.seeds), size), place, console)
    better = _written(place.root, first, second, [], console)  # the last round takes long
    third = _made(
        [
            MazeRun(label, LARGE, settings[label], seed, size.final_steps)
            for seed, label in product(range(size.final_seeds), finalists(better))
        ],
        place,
        console,
    )
    return _written(place.root, first, second, third, console)


def redraw(root: Path, console: Console) -> list[Entry]:
    """The tables again, from the runs in this folder."""
    places, labels = [*MAZES, *(" ".join(task) for task in TASKS)], list(dict(configurations()))
    known = [(folder, folder.json("config.json")) for folder in found(root)]
    known.sort(key=lambda each: (each[1]["seed"], labels.index(each[1]["label"])))
    small = [each for place in places for each in known if each[1]["environment"] == place]
    first = [folder for folder, config in small if config["seed"] == 0]
    entries = collect(first)
    kept = _kept(entries)
    seeds = set.intersection(*({c["seed"] for _, c in small if c["label"] == label} for label in kept))
    second = [folder for folder, config in small if config["label"] in kept and config["seed"] in seeds]
    order = finalists(collect(second))
    third = [each for each in known if each[1]["environment"] == LARGE and each[1]["label"] in order]
    third.sort(key=lambda each: order.index(each[1]["label"]))
    return _written(root, first, second, [folder for folder, _ in third], console)


def _kept(entries: Sequence[Entry]) -> list[str]:
    """Those of the second round: the best sixth, and all of Adam and Memoryless."""
    best = [entry.name for entry in entries[: len(entries) // 6]]
    return best + [entry.name for entry in entries if not is_tracked(entry.name) and entry.name not in best]


def _small(settings: Mapping[str, Setting], seeds: range, size: Size) -> list[Run]:
    """These settings on the small mazes and the tasks."""
    runs: list[Run] = [
        MazeRun(label, maze, critic, seed, size.steps)
        for seed, maze, (label, critic) in product(seeds, MAZES, settings.items())
    ]
    return runs + [
        EvaluationRun(label, *task, critic, seed, size.samples)
        for seed, task, (label, critic) in product(seeds, TASKS, settings.items())
    ]


def _made(runs: Sequence[Run], place: Place, console: Console) -> list[Folder]:
    """The folders of the runs, all of which are made now."""
    sweep = make_all(runs, place, console, ("kova", "study", "--out", place.root))
    if len(sweep.of("done")) < len(runs):
        raise SystemExit(130 if sweep.of("waiting", "running") else 1)
    folders = {folder.name: folder for folder in found(place.root)}
    return [folders[run.name] for run in runs]


def _written(
    root: Path, first: list[Folder], second: list[Folder], third: list[Folder], console: Console
) -> list[Entry]:
    """Write the tables of the rounds, print the last; the entries of the second round."""
    entries, better = collect(first), collect(second)
    seeds = len({folder.json("config.json")["seed"] for folder in second})
    title = f"The better {len(better)}, ranked among themselves, {_lengths(second)}, {seeds} seeds"
    report = markdown(title, better) + "\n"
    report += markdown(f"The first round: {len(entries)} settings, {_lengths(first)}, 1 seed", entries)
    if third:
        series = gather(third)
        steps, count = int(series[0].steps[-1]), max(len(each.rates) for each in series)
        final = f"The best on the 10x10 maze, {steps:,} steps, {count} seeds"
        console.print(table(title, better[:20]))
        console.print(series_table(final, series))
        report += "\n" + series_markdown(final, series)
        say(console, f"All of it: {root / 'study.md'}, runs: {root}")
    files.write(root / "study.md", report.encode())
    return better


def _lengths(folders: Sequence[Folder]) -> str:
    steps = {c["kind"]: c["steps"] for c in (folder.json("config.json") for folder in folders)}
    return f"{steps['maze']:,} steps a maze, {steps['evaluation']:,} samples a task"


def is_tracked(label: str) -> bool:
    """Whether a setting of this name is a filter with a posterior."""
    return not label.startswith(("Adam", "Memoryless"))


def finalists(entries: Sequence[Entry]) -> list[str]:
    """The best four tracked filters, the default and its other prior, the best Adam and Memoryless."""
    names = [entry.name for entry in entries]
    best = [name for name in names if is_tracked(name) and not name.startswith("Full")][:4]
    others = [next(name for name in names if name.startswith(kind)) for kind in ("Adam", "Memoryless")]
    return list(dict.fromkeys([*best, *(name for name in names if name in DEFAULTS), *others]))


def collect(folders: Sequence[Folder]) -> list[Entry]:
    """One entry a setting, best first: by the mean of its ranks in all columns."""
    columns: dict[str, dict[str, list[float]]] = {}
    cost: dict[str, list[float]] = {}
    for folder in folders:
        config = folder.json("config.json")
        label, place, steps = config["label"], config["environment"], config["steps"]
        if config["kind"] == "maze":
            mark = float(history(folder).curve(np.arange(1, steps + 1)).mean())
            cost.setdefault(label, []).append(1e3 * folder.json("summary.json")["processor"] / steps)
        else:
            error = np.nan_to_num(folder.arrays()["error"], nan=np.inf).astype(np.float64)
            mark, place = float(np.exp(np.log(error).mean())), f"{config['task']}, {config['condition']}"
        columns.setdefault(place, {}).setdefault(label, []).append(mark)
    return Entry.ranked(columns, cost)
