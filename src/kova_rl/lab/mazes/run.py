"""A run in a maze: double Q-learning with a critic."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import kova_rl
from kova_rl import envs
from kova_rl.agents import DoubleQ, FromReplay, OneTransition, Settings
from kova_rl.errors import KovaError
from kova_rl.lab import files, spec
from kova_rl.lab.mazes.critics import Critic
from kova_rl.lab.run import Work, hashed
from kova_rl.lab.store import DATA

__all__ = ["MAZES", "MazeRun", "layout", "make", "network"]

MAZES: dict[str, dict[str, Any]] = {
    "maze4": {"id": "kova/Maze4-v0"},
    "maze6": {"id": "kova/Maze-v0", "size": 6, "walls": 0.3, "layout_seed": 5},
    "maze10": {"id": "kova/Maze10-v0"},
}
"""The mazes by their short names; the 6x6 one is drawn at random."""

RECORDS = 50
"""Of the log, in all."""


@dataclass(frozen=True)
class MazeRun:
    """A critic, a seed and a number of steps in a maze. The label is for people."""

    kind: ClassVar[str] = "maze"

    label: str
    maze: str
    critic: Critic
    seed: int
    steps: int
    looks: int = 0
    """How many times, evenly spaced, the values of all cells and their std are kept."""
    settings: Settings = field(default_factory=Settings)

    @property
    def short(self) -> str:
        """Its name without the hash."""
        return files.named(self.maze, self.label, f"seed{self.seed}")

    @cached_property
    def name(self) -> str:
        """Of its folder."""
        return hashed(self.flat(), self.maze, self.label, f"seed{self.seed}")

    def flat(self) -> dict[str, Any]:
        """All settings, defaults written out."""
        named = {"label": self.label, "algorithm": "double-q", "environment": self.maze}
        counted = {"seed": self.seed, "steps": self.steps, "looks": self.looks}
        agent = {f"agent.{name}": value for name, value in vars(self.settings).items()}
        return {**named, "critic": self.critic.kind, **counted, **agent, **spec.flatten(self.critic.table())}

    def perform(self, work: Work) -> dict[str, Any]:
        """Train from the beginning; a filter that breaks down leaves its agent to play on as it is."""
        lesson = Lesson(self, work)
        files.save(work.path / DATA, lesson.arrays())
        return lesson.summary()


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


class Lesson:
    """The training of one run, and what is kept of it.

    Args:
        run: What is run.
        work: Where its records go.
    """

    def __init__(self, run: MazeRun, work: Work) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(run.seed)
        env = make(run.maze)
        assert env.observation_space.shape is not None
        q = network(env.observation_space.shape[0])
        self.run, self.learner = run, run.critic.learner(q, run.steps, run.settings.gamma)
        self.agent = DoubleQ(env, q, self.learner, run.settings, run.seed)
        self.looks: list[tuple[int, Tensor, Tensor]] = []
        self.broken: dict[str, Any] | None = None
        self._cpu, self._looking = time.process_time(), 0.0
        self._cost: dict[str, Any] = {}
        self._go(work)

    def _go(self, work: Work) -> None:
        steps, clock = self.run.steps, time.perf_counter()
        looks = {round(steps * (i + 1) / self.run.looks) for i in range(self.run.looks)}
        records = {round(steps * (i + 1) / RECORDS) for i in range(RECORDS)}
        for mark in sorted((looks | records | {steps}) - {0}):
            while self.agent.steps < mark:
                try:
                    self.agent.learn(mark - self.agent.steps)
                except KovaError as error:
                    self._break(error)
            if mark in looks and self.broken is None:
                self._look()
            if mark in records:
                seconds = round(time.perf_counter() - clock, 3)
                work.record({"step": mark, "seconds": seconds, "success": self.agent.history.rate()})
        self._count(steps)

    def _look(self) -> None:
        started = time.process_time()
        try:
            self.looks.append((self.agent.steps, *beliefs(self.agent)))
        except KovaError as error:
            self._break(error)
        self._looking += time.process_time() - started

    def _break(self, error: KovaError) -> None:
        self.broken = {"step": self.agent.steps, "error": f"{type(error).__name__}: {error}"}
        self._count(self.agent.steps)
        self.agent.learner = None

    def _count(self, learned: int) -> None:
        """What learning cost: until it was done, or broke down."""
        if not self._cost:
            processor = round(time.process_time() - self._cpu - self._looking, 4)
            evaluations = self.agent.acted + self.learner.evaluations
            self._cost = {"learned": learned, "processor": processor, "evaluations": evaluations}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The episodes, and the looks."""
        history = self.agent.history
        arrays: dict[str, NDArray[Any]] = {
            "ends": np.array(history.ends, np.int32),
            "successes": np.array(history.successes, bool),
            "returns": np.array(history.returns, np.float32),
        }
        if self.looks:
            steps, mean, std = zip(*self.looks, strict=True)
            arrays["looks"] = np.array(steps, np.int32)
            arrays["q_mean"], arrays["q_std"] = (
                np.stack([each.numpy() for each in kept]).astype(np.float32) for kept in (mean, std)
            )
        return arrays

    def summary(self) -> dict[str, Any]:
        """What it came to."""
        return {
            "steps": self.run.steps,
            "window": self.agent.history.window,
            "broken": self.broken,
            **self._cost,
        }


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
