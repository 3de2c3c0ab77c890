"""A run in a maze: double Q-learning with a critic."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from kova_rl.errors import KovaError, StateMismatch
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
EVERY = 2_000
"""Steps between two checkpoints, some seconds."""


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
        """Train, from where the run stands; a filter that breaks down leaves its agent to play on."""
        lesson = Lesson(self)
        if work.start is not None:
            try:
                lesson.restore(work.start.content)
            except StateMismatch:  # of a filter that has left its bounds already, and may say so again
                work.restart()
                lesson = Lesson(self)
        lesson.go(work)
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
    """

    def __init__(self, run: MazeRun) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(run.seed)
        env = make(run.maze)
        assert env.observation_space.shape is not None
        q = network(env.observation_space.shape[0])
        self.run, self.learner = run, run.critic.learner(q, run.steps, run.settings.gamma)
        self.agent = DoubleQ(env, q, self.learner, run.settings, run.seed)
        self.looks: list[tuple[int, Tensor, Tensor]] = []
        self.broken: dict[str, Any] | None = None
        self._clock, self._cpu, self._apart = time.perf_counter(), time.process_time(), 0.0
        self._cost: dict[str, Any] = {}

    def state(self) -> bytes:
        """What the lesson goes on from, bit for bit; it is loaded as weights only, so that no code runs."""
        maze: Any = self.agent.env.unwrapped
        buffer = io.BytesIO()
        lesson = {"looks": self.looks, "broken": self.broken, "cost": self._cost}
        spent = (time.perf_counter() - self._clock, time.process_time() - self._cpu - self._apart)
        parts = {
            "agent": self.agent.state_dict(),
            "maze": maze.state_dict(),
            "lesson": lesson,
            "spent": spent,
        }
        torch.save(parts, buffer)
        return buffer.getvalue()

    def restore(self, content: bytes) -> None:
        """Go on from such a state."""
        parts = torch.load(io.BytesIO(content), weights_only=True)
        self.agent.load_state_dict(parts["agent"])
        maze: Any = self.agent.env.unwrapped
        maze.load_state_dict(parts["maze"])
        self.looks, self.broken, self._cost = parts["lesson"].values()
        self._clock, self._cpu = (
            time.perf_counter() - parts["spent"][0],
            time.process_time() - parts["spent"][1],
        )

    def go(self, work: Work) -> None:
        """Train to the end."""
        steps = self.run.steps
        looks = {round(steps * (i + 1) / self.run.looks) for i in range(self.run.looks)}
        records = {round(steps * (i + 1) / RECORDS) for i in range(RECORDS)}
        kept = set(range(EVERY, steps, EVERY))
        for mark in sorted(looks | records | kept | {steps}):
            if mark <= self.agent.steps:
                continue
            while self.agent.steps < mark:
                try:
                    self.agent.learn(mark - self.agent.steps)
                except KovaError as error:
                    self._break(error)
            with self._aside():
                if mark in looks and self.broken is None:
                    self._look()
                if mark in records:
                    seconds = round(time.perf_counter() - self._clock, 3)
                    work.record({"step": mark, "seconds": seconds, "success": self.agent.history.rate()})
                if mark in kept:
                    work.keep(mark // EVERY, self.state())
        self._count(steps)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What is no part of learning, and not in its time."""
        started = time.process_time()
        yield
        self._apart += time.process_time() - started

    def _look(self) -> None:
        try:
            self.looks.append((self.agent.steps, *beliefs(self.agent)))
        except KovaError as error:
            self._break(error)

    def _break(self, error: KovaError) -> None:
        self.broken = {"step": self.agent.steps, "error": f"{type(error).__name__}: {error}"}
        self._count(self.agent.steps)
        self.agent.learner = None

    def _count(self, learned: int) -> None:
        """What learning cost: until it was done, or broke down."""
        if not self._cost:
            processor = round(time.process_time() - self._cpu - self._apart, 4)
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
