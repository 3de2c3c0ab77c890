"""Runs as the lab stores them, which the tests of the report write."""

import io
import json
import zlib

import numpy as np
import pytest
from rich.console import Console

from kova_rl.lab.report import report, table

ENVIRONMENTS = ("Swimmer-v5", "Hopper-v5", "HalfCheetah-v5", "Ant-v5", "Walker2d-v5")
LEVEL = {"kova": 1.2, "memoryless": 1.0, "adam": 0.8, "kfac": 0.6}
COST = {"kova": 1.5, "memoryless": 1.4, "adam": 1.0, "kfac": 1.2}


def write_run(directory, algorithm, environment, critic, seed, *, status="done", records=60, **settings):
    """One run of the store, which rises towards a level and scatters by its seed."""
    config = {"algorithm": algorithm, "environment": environment, "critic": critic, "seed": seed}
    config |= {"steps": 100_000, "preset": "paper"} | settings
    path = directory / "_".join(map(str, (algorithm, environment, critic, seed, *settings.values())))
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(zlib.crc32(path.name.encode()))
    scale = {"Swimmer-v5": 60, "Hopper-v5": 2000, "HalfCheetah-v5": 3000}.get(environment, 2500)
    level, lines = scale * (LEVEL[critic] + 0.2 * rng.normal()), []
    for i, step in enumerate(np.linspace(0, config["steps"], records + 1)[1:].astype(int)):
        value = level * (1 - np.exp(-4 * step / config["steps"])) + 0.03 * scale * rng.normal()
        record = {"step": int(step), "seconds": step / 1000, "episodes": i}
        record |= {"return": None if i == 0 else value, "train/value_loss": 1.0, "train/entropy": 2.0}
        lines.append(json.dumps(record))
        if status != "done" and i > records // 2:
            break
    (path / "log.jsonl").write_text("\n".join(lines) + "\n")
    if status == "done":
        summary = {
            "status": "done",
            "steps": config["steps"],
            "seconds": 100.0,
            "processor": COST[critic] * 100,
            "final_return": value,
        }
        (path / "summary.json").write_text(json.dumps(summary))
    if status == "failed":
        failure = {
            "status": "failed",
            "attempts": 2,
            "message": "NaN in <obs>",
            "log": "Traceback\nValueError",
        }
        (path / "failure.json").write_text(json.dumps(failure))
    return path


def write_runs(directory, algorithms, environments, critics, seeds, **options):
    for algorithm in algorithms:
        for environment in environments:
            for critic in critics:
                for seed in range(seeds):
                    write_run(directory, algorithm, environment, critic, seed, **options)


def change(path, **values):
    """Other values in a JSON object."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def end_at(path, value):
    """A final return of our choice."""
    change(path / "summary.json", final_return=value)


def printed(directory):
    console = Console(width=100, record=True, file=io.StringIO())
    table(directory, console)
    return console.export_text()


def caption(directory, figure):
    """Of a figure on the page."""
    page = report(directory).read_text().split(f'<figure id="{figure}"')[1]
    return page.split("<figcaption>")[1].split("</figcaption>")[0]


@pytest.fixture
def small(tmp_path):
    """Two environments, three critics, three seeds, and runs that failed or are not finished."""
    write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("kova", "memoryless", "adam"), 3)
    write_run(tmp_path, "ppo", "Swimmer-v5", "kova", 9, status="failed")
    write_run(tmp_path, "ppo", "Swimmer-v5", "adam", 9, status="unfinished")
    (tmp_path / "figures").mkdir()
    return tmp_path
