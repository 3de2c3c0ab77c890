"""The command ``kova evaluate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from kova_rl.filter.checks import check_choice, check_whole
from kova_rl.lab import files
from kova_rl.lab.arguments import Count, NoName, NoPath, Real, Whole
from kova_rl.lab.evaluation.critics import CRITICS
from kova_rl.lab.imports import import_module, require_sb3
from kova_rl.lab.terminal import NO_FIGURE, say

if TYPE_CHECKING:
    from kova_rl.lab.evaluation.compare import Comparison
    from kova_rl.lab.evaluation.panel import Panel
    from kova_rl.sb3.policy import SavedPolicy


WHICH = f"Of {', '.join(CRITICS)}; all that are quick if none is named."
Classic = Literal["chain", "grid", "boyan", "all"]
More = Literal["garnet-30", "garnet-100", "garnet-300", "aliased", "baird", "cartpole", "pendulum", "more"]
Name = Literal[Classic, More, "rollouts"]


@dataclass
class Evaluate:
    """Evaluate a fixed policy: value error and coverage of critics, where the true values are known.

    Without --env, on small tasks that are solved exactly. With --env and --policy, on your own, where
    the truth is the mean of Monte-Carlo rollouts.
    """

    task: Name = "chain"
    """A random walk, a grid with slips, Boyan's chain (all: these three), or more: random MDPs, a chain whose
    states look alike, Baird's counterexample, CartPole and Pendulum. Or rollouts: those of recorded PPO runs,
    with the critics, the table and the picture of kova stream, which also takes your own."""
    condition: Literal["on-policy", "off-policy", "deterministic", "switch", "all"] = "on-policy"
    """Who walks: the policy, another one, one without chance, or one whose truth changes half-way."""
    critics: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help=WHICH, help_behavior_hint="")
    ] = ()
    samples: Whole = 10_000
    """Transitions that each critic sees; networks make an update every 8."""
    seeds: Whole = 3
    """How many seeds are averaged."""
    out: Path = Path("evaluate")
    """Folder for the runs, the tables and the pictures. Runs that are in it already are not made again."""
    jobs: Count = None
    """Runs at once; one a core."""
    on: str = "processes"
    """processes, ray, or the address of a Ray cluster, as in kova sweep; not for --env."""
    draw: bool = False
    """Make no runs: print and draw again those in --out."""
    env: NoName = None
    """Your own environment, by its registered name, in place of --task and --condition."""
    policy: NoPath = None
    """Of --env: model.zip of a run, or what model.save() wrote."""
    algorithm: NoName = None
    """Of --policy: PPO, SAC, ...; a file of Kova's says it, one of Stable-Baselines3's own does not."""
    trust: bool = False
    """Load a --policy that Stable-Baselines3 itself saved: such files can run code, so know who wrote it."""
    against: NoPath = None
    """A second policy of --env: which of the two is better, by how much and how sure, in one line."""
    data: NoPath = None
    """Transitions that you have, in place of --env: a file of numpy.savez, see docs/policy-evaluation.md."""
    import_: Annotated[NoName, tyro.conf.arg(name="import", metavar="MODULE")] = None
    """A module to import first, which registers --env."""
    gamma: Real = 0.99
    """Discount in --env."""
    rollouts: Whole = 8
    """Returns from each state of --env that are averaged for the truth, if it can be copied."""
    stochastic: bool = False
    """Draw the actions of --policy in place of the most likely ones."""

    def run(self) -> None:
        """Run what is missing, print the tables, and save all."""
        from kova_rl.lab.evaluation.protocol import STEP

        check_whole("--seeds", self.seeds, least=1)
        check_whole("--samples", self.samples, least=20 * STEP)
        if self.task == "rollouts":
            self._recorded()
            return
        for name in self.critics:
            check_choice("--critics", name, tuple(CRITICS))
        console = Console()
        if self.data is not None:
            from kova_rl.lab.evaluation.estimate import evaluate_file

            worth = evaluate_file(self.data, self.gamma)
            console.print(
                f"The policy is worth {worth} at the beginning of an episode (discounted).", soft_wrap=True
            )
            return
        if self.against is not None:
            console.print(str(self._compared(self.against)), soft_wrap=True)
            return
        if self.draw:
            from kova_rl.lab.evaluation.panel import panels
            from kova_rl.lab.pack import found

            self._report(panels(found(self.out), self.critics), console)
            return
        self._report(self._solved(console) if self.env is None else self._own(self.env, console), console)

    def _recorded(self) -> None:
        """What comes with the package, as ``kova stream`` has it."""
        from kova_rl.lab.commands.stream import Streams

        others = ("env", "policy", "against", "data", "draw")
        given = [name for name in others if getattr(self, name)]
        if self.condition != "on-policy" or given:
            taken = ", ".join(f"--{name}" for name in given) or f"--condition {self.condition}"
            raise ValueError(f"--task rollouts takes no {taken}: what was recorded is all there is")
        Streams(critics=self.critics, seeds=self.seeds, out=self.out, jobs=self.jobs, on=self.on).run()

    def _solved(self, console: Console) -> list[Panel]:
        from kova_rl.lab.evaluation.critics import DEFAULT
        from kova_rl.lab.evaluation.runs import Study, gather
        from kova_rl.lab.evaluation.tasks import CLASSIC, CONDITIONS, MORE, ROLLED
        from kova_rl.lab.sweep.make import Place

        if self.policy is not None:
            raise ValueError("--policy needs the environment that it acts in: --env")
        tasks = {"all": tuple(CLASSIC), "more": (*MORE, *ROLLED)}.get(self.task, (self.task,))
        conditions = CONDITIONS if self.condition == "all" else (self.condition,)
        critics = self.critics or DEFAULT
        place = Place(self.out, self.jobs, self.on)
        words = ("kova", "evaluate", "--task", self.task, "--condition", self.condition, "--out", self.out)
        return gather(Study(tasks, conditions, critics, self.seeds, self.samples, place), console, words)

    def _loaded(self, env: str, path: Path | None) -> SavedPolicy:
        from kova_rl.lab.evaluation.environment import make_env

        if self.import_ is not None:
            import_module(self.import_, "--import must name a module")
        make_env(env).close()  # a misspelt name before anything is loaded
        if path is None:
            raise ValueError("--env needs a policy to evaluate: --policy model.zip")
        require_sb3("--policy")
        from kova_rl.sb3.policy import load

        return load(path, self.algorithm, self.trust)

    def _compared(self, against: Path) -> Comparison:
        from kova_rl.lab.evaluation.compare import compare

        if self.env is None:
            raise ValueError("--against needs the environment that both policies act in: --env")
        return compare(
            self.env,
            self._loaded(self.env, self.policy),
            self._loaded(self.env, against),
            gamma=self.gamma,
            samples=self.samples,
            walks=self.seeds,
            deterministic=not self.stochastic,
        )

    def _own(self, env: str, console: Console) -> list[Panel]:
        from kova_rl.lab.evaluation.own import DEFAULT, evaluate

        policy = self._loaded(env, self.policy)
        panel = evaluate(
            env,
            policy,
            gamma=self.gamma,
            samples=self.samples,
            seeds=self.seeds,
            critics=self.critics or DEFAULT,
            deterministic=not self.stochastic,
            rollouts=self.rollouts,
            keep=self.out,
            identity=f"{policy.identity} {'stochastic' if self.stochastic else 'deterministic'}",
            console=console,
        )
        return [panel]

    def _report(self, panels: list[Panel], console: Console) -> None:
        from kova_rl.lab.evaluation.own import answer
        from kova_rl.lab.evaluation.table import markdown, rich_table

        for panel in panels:
            console.print(rich_table(panel))
            if line := answer(panel):
                console.print(line, soft_wrap=True)
        files.write(self.out / "tables.md", markdown(panels).encode())
        say(console, f"Tables: {self.out / 'tables.md'}; runs: {self.out}")
        try:
            from kova_rl.lab.evaluation.figure import draw
        except ImportError:
            say(console, NO_FIGURE)
            return
        draw(self.out / "evaluation", panels)
        say(console, f"Pictures: {self.out / 'evaluation.png'}, {self.out / 'evaluation.pdf'}")
