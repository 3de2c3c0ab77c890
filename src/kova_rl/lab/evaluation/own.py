"""Policy evaluation on an environment of your own, with Monte-Carlo returns for the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from kova_rl.filter.checks import check_choice, check_real, check_whole
from kova_rl.lab.evaluation.critics import CRITICS, Problem, build
from kova_rl.lab.evaluation.environment import Env, Policy, acting, collect, make_env
from kova_rl.lab.evaluation.estimate import Estimate
from kova_rl.lab.evaluation.headed import HeadedCritic
from kova_rl.lab.evaluation.network import Make
from kova_rl.lab.evaluation.panel import OWN, Panel, final_error, panels
from kova_rl.lab.evaluation.protocol import STEP, Curves, final, follow, looks, stacked
from kova_rl.lab.evaluation.rollouts import Truth, truth
from kova_rl.lab.evaluation.run import TUNING_SEEDS, EvaluationRun
from kova_rl.lab.evaluation.transitions import Transitions
from kova_rl.lab.evaluation.units import Units
from kova_rl.lab.pack import Folder
from kova_rl.lab.run import Work, make
from kova_rl.lab.terminal import NowAndThen

DEFAULT = ("kova-head", "kova", "kova-paper", "memoryless", "adam", "gptd-kernel", "lstd")


@dataclass
class Own:
    """An environment, a policy, and how they are looked at. Nothing is walked before it is needed."""

    env: str | Callable[[], Env]
    policy: Policy
    gamma: float
    samples: int
    states: int
    rollouts: int
    _seen: dict[int, Transitions] = field(default_factory=dict)

    @cached_property
    def made(self) -> Env:
        """The environment."""
        return make_env(self.env)

    @cached_property
    def truth(self) -> Truth:
        """Of states of fresh episodes, whose seed no critic learns from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2_000)
            return truth(self.made, self.policy, self.gamma, 2_000, self.states, self.rollouts)

    def seen(self, seed: int) -> Transitions:
        """What every critic of this seed is shown."""
        if seed not in self._seen:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)  # of a policy that draws its actions with torch
                self._seen[seed] = collect(self.made, self.policy, self.samples, seed)
        return self._seen[seed]

    def learn(
        self, critic: str | Make, setting: float | None, seed: int, tick: Callable[[int], None]
    ) -> Curves:
        """One run, its errors and its values at the end in the environment's own units."""
        known, seen = self.truth, self.seen(seed)
        plain = not isinstance(self.made.observation_space, gymnasium.spaces.Box)
        units = Units.of(seen, self.gamma, plain)
        shown, at = units.transitions(seen), looks(self.samples, 1)
        learner = build(critic, Problem(shown.states.shape[1], self.gamma, seed), setting)
        batches = shown.pieces(STEP)
        rows = follow(learner, lambda: next(batches), 0, at, units.exam(known), tick)
        curves, exam = stacked(at, rows), units.exam(known)
        end = {name: x * units.reward for name, x in final(learner, exam).items()}
        if isinstance(learner, HeadedCritic):
            end["answer"] = np.array(learner.average(shown.begins)) * units.reward
        return curves | {"error": curves["error"] * units.reward} | end


def answer(panel: Panel) -> str:
    """How good the policy is, in one line: the value of an episode's begin, with a 95% interval."""
    found = [run["answer"] for runs in panel.curves.values() for run in runs if "answer" in run]
    if not found:
        return ""
    worth = Estimate.mean([Estimate(*run.tolist()) for run in found])
    return (
        f"The policy is worth {worth} at the beginning of an episode (discounted), from {len(found)} walks."
    )


def evaluate(
    env: str | Callable[[], Env],
    policy: Any,
    *,
    gamma: float = 0.99,
    samples: int = 10_000,
    seeds: int = 3,
    critics: Sequence[str] = DEFAULT,
    deterministic: bool = True,
    states: int = 50,
    rollouts: int = 8,
    keep: Path | None = None,
    identity: str = "",
    console: Console | None = None,
) -> Panel:
    """Value error and coverage of critics that learn the values of your policy in your environment.

    Args:
        env: A registered name, or a function that makes the environment.
        policy: A function of the observation that returns an action, or a Stable-Baselines3 model.
        gamma: Discount, in [0, 1].
        samples: Transitions that each critic sees.
        seeds: How many seeds are averaged.
        critics: Names of ``critics.CRITICS``.
        deterministic: Whether a model's actions are its most likely ones, or drawn.
        states: How many states are examined.
        rollouts: Returns that are averaged for each, where the environment can be copied.
        keep: Folder for one folder a run; runs that are there are not made again.
        identity: What tells this environment and policy from others in that folder.
        console: Where the progress bar goes, or a line now and then if it is no terminal; None is standard
            output, ``Console(quiet=True)`` is silence.

    Returns:
        The curves, by critic and seed, for ``table.rich_table`` and ``figure.draw``; ``note`` says how the
        truth was found and how sure it is.
    """
    check_real("gamma", gamma, "a number in [0, 1]", isinstance(gamma, (int, float)) and 0 <= gamma <= 1)
    for name, value, least in (
        ("samples", samples, 20 * STEP),
        ("seeds", seeds, 1),
        ("states", states, 2),
        ("rollouts", rollouts, 2),
    ):
        check_whole(name, value, least)
    for name in critics:
        check_choice("critics", name, tuple(CRITICS))
    title = env if isinstance(env, str) else getattr(env, "__name__", "environment")
    with TemporaryDirectory() as nowhere, Progress(console=console, transient=True) as progress:
        root = Path(nowhere) if keep is None else keep
        bar, now = progress.add_task(title, total=None), NowAndThen(progress.console)

        def say(line: str) -> None:
            progress.update(bar, description=line)
            now(lambda: line)

        own = Own(env, Watched(acting(policy, deterministic), title, say), gamma, samples, states, rollouts)

        def made(critic: str, setting: float, seed: int) -> Folder:
            run = OwnRun(CRITICS[critic].label, title, OWN, critic, seed, samples, setting, own, identity)
            doing = f"{title}, {run.label}, seed {seed}"
            make(run, root, lambda record: say(f"{doing}: {record['step']:,} of {samples:,} samples"))
            return Folder(root / run.name)

        def tuned(critic: str) -> float:
            choices = CRITICS[critic].choices
            if len(choices) == 1:
                return choices[0]
            return min(choices, key=lambda s: final_error(made(critic, s, TUNING_SEEDS[0]).arrays()))

        chosen = {critic: tuned(critic) for critic in critics}
        return panels([made(name, chosen[name], seed) for name in critics for seed in range(seeds)], critics)[
            0
        ]


@dataclass
class Watched:
    """A policy that tells how often it was asked: most of the time goes into the walks for the truth."""

    policy: Policy
    title: str
    say: Callable[[str], None]
    steps: int = 0

    def __call__(self, observation: Any) -> Any:
        self.steps += 1
        if self.steps % 100 == 0:
            self.say(f"{self.title}, walking: {self.steps:,} steps")
        return self.policy(observation)


@dataclass(frozen=True)
class OwnRun(EvaluationRun):
    """A run in an environment of one's own, which is made in this process: a policy can be anything."""

    own: Any = None
    """The environment and the policy."""
    identity: str = ""

    def flat(self) -> dict[str, Any]:
        """With what the truth depends on."""
        own = {name: getattr(self.own, name) for name in ("gamma", "states", "rollouts")}
        return {**super().flat(), "environment": self.task, "identity": self.identity, **own}

    def learn(self, tick: Callable[[int], None]) -> Curves:
        """In the environment's units."""
        curves: Curves = self.own.learn(self.critic, self.setting, self.seed, tick)
        return curves

    def perform(self, work: Work) -> dict[str, Any]:
        """As always; the summary says how the truth was found."""
        return {**super().perform(work), "note": _note(self.own.truth)}


def _note(known: Truth) -> str:
    spread = f"their values have mean {known.values.mean():.3g} and spread {known.values.std():.3g}"
    if np.isnan(known.doubt).any():
        return f"{known.note}; {spread}"
    doubt = float(np.sqrt(np.mean(known.doubt**2)))
    return f"{known.note}; {spread}; standard error of the truth {doubt:.2g}"
