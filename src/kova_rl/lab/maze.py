"""One run in a maze: a critic, a seed, a number of steps; its data in one file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import kova_rl
from kova_rl import envs
from kova_rl.agents import DoubleQ, FromReplay, History, OneTransition, Settings
from kova_rl.errors import KovaError
from kova_rl.lab import files
from kova_rl.lab.critics import Critic

__all__ = ["MAZES", "Run", "network", "run", "run_file"]

MAZES: dict[str, dict[str, Any]] = {
    "maze4": {"id": "kova/Maze4-v0"},
    "maze6": {"id": "kova/Maze-v0", "size": 6, "walls": 0.3, "layout_seed": 5},
    "maze10": {"id": "kova/Maze10-v0"},
}
"""The mazes by their short names; the 6x6 one is drawn at random."""

CHUNK = 100
"""Steps between two ticks of the progress bar."""


@dataclass(frozen=True)
class Run:
    """What is run. The name is for people; ``config`` is what makes two runs the same."""

    name: str
    maze: str
    critic: Critic
    seed: int
    steps: int
    out: Path
    looks: int = 0
    """How many times, evenly spaced, the values of all cells and their std are kept."""
    settings: Settings = field(default_factory=Settings)

    @property
    def config(self) -> dict[str, Any]:
        config = {"maze": self.maze, "critic": repr(self.critic), "seed": self.seed, "steps": self.steps}
        return {**config, "looks": self.looks, "settings": vars(self.settings).copy()}

    @property
    def path(self) -> Path:
        return self.out / "data" / f"{files.named(self.maze, self.name)}_seed{self.seed}.npz"


def network(cells: int) -> nn.Sequential:
    """The paper's Q-network: cells - cells - 4, ReLU; d = 340 for 4x4, 10,504 for 10x10."""
    return nn.Sequential(nn.Linear(cells, cells), nn.ReLU(), nn.Linear(cells, 4))


def make(maze: str) -> gymnasium.Env[Any, Any]:
    """The maze of this short name."""
    options = dict(MAZES[maze])
    return gymnasium.make(options.pop("id"), disable_env_checker=True, **options)


def layout(maze: str) -> envs.Layout:
    """Its walls."""
    unwrapped: Any = make(maze).unwrapped
    found: envs.Layout = unwrapped.layout
    return found


def run(job: Run, tick: Callable[[int], None]) -> None:
    """Train, and write the data; a filter that breaks down leaves its agent to play on as it is."""
    torch.manual_seed(job.seed)
    env = make(job.maze)
    assert env.observation_space.shape is not None
    q = network(env.observation_space.shape[0])
    learner = job.critic.learner(q, job.steps, job.settings.gamma)
    agent = DoubleQ(env, q, learner, job.settings, job.seed)
    marks = {round(job.steps * (i + 1) / job.looks) for i in range(job.looks)}
    looks: list[tuple[int, Tensor, Tensor]] = []
    broken: dict[str, Any] | None = None
    cpu = time.process_time()
    spent = {"learned": job.steps, "looking": 0.0}
    while agent.steps < job.steps:
        until = min([job.steps, agent.steps + CHUNK, *(m for m in marks if m > agent.steps)])
        before = agent.steps
        try:
            agent.learn(until - agent.steps)
            if agent.steps in marks:
                started = time.process_time()
                looks.append((agent.steps, *beliefs(agent)))
                spent["looking"] += time.process_time() - started
        except KovaError as error:
            broken = {"step": agent.steps, "error": f"{type(error).__name__}: {error}"}
            agent.learner = None
            spent["learned"], spent["cpu_seconds"] = agent.steps, time.process_time() - cpu
            spent["evaluations"] = agent.acted + learner.evaluations
        tick(agent.steps - before)
    # What learning cost: until it was done, or broke down.
    spent.setdefault("cpu_seconds", time.process_time() - cpu)
    spent["cpu_seconds"] -= spent.pop("looking")
    spent.setdefault("evaluations", agent.acted + learner.evaluations)
    arrays = {
        "ends": np.array(agent.history.ends, np.int32),
        "successes": np.array(agent.history.successes, bool),
        "returns": np.array(agent.history.returns, np.float32),
    }
    if looks:
        arrays |= {"looks": np.array([look[0] for look in looks], np.int32)}
        arrays |= {"q_mean": np.stack([look[1].numpy() for look in looks]).astype(np.float32)}
        arrays |= {"q_std": np.stack([look[2].numpy() for look in looks]).astype(np.float32)}
    counts = {"window": agent.history.window, "broken": broken}
    versions = {"kova_rl": kova_rl.__version__, "torch": torch.__version__}
    files.save(job.path, arrays, {"name": job.name, "config": job.config, **counts, **spent, **versions})


def beliefs(agent: DoubleQ) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of Q, cells x 4; std is NaN for a critic without error bars."""
    images = torch.from_numpy(np.ascontiguousarray(agent.env.unwrapped.layout.images))  # type: ignore[attr-defined]
    learner = agent.learner
    if isinstance(learner, OneTransition):
        belief = learner.ktd.posterior(images)
        return belief.mean.float(), belief.std.float()
    with torch.no_grad():
        mean: Tensor = agent.network(images)
    optimizer = learner.optimizer if isinstance(learner, FromReplay) else None
    if not isinstance(optimizer, kova_rl.Kova):
        return mean, torch.full_like(mean, float("nan"))
    rows = images.repeat_interleave(mean.shape[1], 0)  # one prediction a row
    actions = torch.arange(mean.shape[1]).repeat(len(images))[:, None]
    belief = optimizer.posterior(lambda: agent.network(rows).gather(1, actions).squeeze(1))
    std = belief.std if belief.tracked else torch.full_like(belief.std, float("nan"))
    return mean, std.view_as(mean)


def run_file(path: Path) -> tuple[History, dict[str, NDArray[Any]], dict[str, Any]]:
    """The history, the arrays and the description of a run that was written."""
    arrays, meta = files.load(path)
    if not {"ends", "successes", "returns"} <= arrays.keys() or "window" not in meta:
        raise ValueError(f"{path} is not the data of a run in a maze")
    columns = (arrays[name].tolist() for name in ("ends", "successes", "returns"))
    return History(int(meta["window"]), *columns), arrays, meta
