"""The command ``kova train``."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kova_rl.lab.arguments import Count, Number, Sizes, Switch
from kova_rl.lab.terminal import NowAndThen, say
from kova_rl.lab.training.commands import add_command
from kova_rl.lab.training.config import ALGORITHMS, RunConfig
from kova_rl.lab.training.live import number
from kova_rl.lab.training.names import assignment, check_name
from kova_rl.lab.training.presets import preset_names, resolve
from kova_rl.lab.training.store import Busy, Store, check_writable, explained

__all__ = ["Train"]

Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Options = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...", help_behavior_hint="")]


@dataclass
class Train:
    """Train one run, or go on with it from its last checkpoint.

    What is not given is the preset's, then the algorithm's or Kova's own default. The run gets a folder in
    --out, with its settings, log and model; the same command again skips it if it is finished.

    examples:
      kova train ppo Swimmer-v5 --critic kova --steps 1e6 --seed 0 --out runs
      kova train sac Pendulum-v1 --critic memoryless --eta 0.01 --lr 0.1
      kova train ppo MyEnv-v0 --import my_module --host n_steps=512 batch_size=128
    """

    algorithm: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGORITHM")]
    """ppo, trpo, a2c, acktr, sac, ddpg or dqn."""
    environment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENVIRONMENT")]
    """Any Gymnasium id; one of your own with --import."""
    out: Path = Path("runs")
    """Folder of the runs; made if it is not there."""
    preset: Name = None
    """ppo, trpo, sac or acktr (the paper's tables), a .toml file, or none; the algorithm's if not given."""
    critic: Name = None
    """kova (tracked filter; default), memoryless (the paper's released code), adam, or kfac for acktr."""
    steps: Number = None
    """Environment steps; the preset's, or 1e6."""
    seed: Count = None
    """Of everything random in the run; 0."""
    lr: Number = None
    """alpha, Kova's step size, in (0, 1]; the preset's, or 1."""
    eta: Number = None
    """Share of the past that a step of Kova forgets, in [0, 1); the preset's, 0.1, or 0.001 if adaptive."""
    covariance: Name = None
    """What Kova keeps of P: kronecker (default), low-rank, neuron-blocks, layer-blocks, diagonal, ...."""
    rank: Count = None
    """Of the covariance low-rank; 32."""
    evolution: Name = None
    """How P grows: leakage (default), variable-leakage, prior-anchored, stationary, memoryless, ..."""
    observation: Name = None
    """How noisy the targets are: max-ratio (ppo, trpo and a2c), adaptive (the others), batch-size, ..."""
    prior: Name = None
    """P_0: a variance or fan-in; 1."""
    layers: Name = None
    """Which layers of the critic are filtered: all (default) or last."""
    learning_rate: Number = None
    """Of the algorithm's own optimizer; the preset's, or the algorithm's default."""
    decay: Switch = None
    """Whether learning_rate falls to 0 linearly; the preset's, or False."""
    network: Sizes = None
    """Hidden layers, such as 64 64; the preset's, or the algorithm's default."""
    activation: Name = None
    """tanh or relu; the preset's, or the algorithm's default."""
    normalise_observations: Switch = None
    """By their running mean and variance; True, as in the paper."""
    normalise_rewards: Switch = None
    """By the running variance of the return; True, as in the paper. The log has the unnormalised return."""
    n_envs: Count = None
    """Copies of the environment; 1."""
    segments: Count = None
    """Parts with a checkpoint between them; 10."""
    imports: Annotated[
        tuple[str, ...], tyro.conf.arg(name="import", metavar="MODULE ...", help_behavior_hint="")
    ] = ()
    """Modules to import first, which register the environment."""
    environment_options: Options = ()
    """Arguments of gymnasium.make, as name=value."""
    host: Options = ()
    """Arguments of the Stable-Baselines3 algorithm, as name=value; the preset's, or its defaults."""

    def config(self) -> RunConfig:
        """The run, checked."""
        check_name("algorithm", self.algorithm, ALGORITHMS)
        names = {each.name for each in fields(RunConfig)}
        given = {name: value for name, value in vars(self).items() if name in names and value is not None}
        for name in ("environment_options", "host"):
            given[name] = dict(assignment(f"--{name.replace('_', '-')}", each) for each in given[name])
        if self.prior is not None and self.prior != "fan-in":
            given["prior"] = assignment("--prior", f"prior={self.prior}")[1]
        if self.preset is None and self.algorithm in preset_names():
            given["preset"] = self.algorithm
        elif self.preset == "none":
            del given["preset"]
        given = {name: value for name, value in given.items() if value not in ((), {})}
        return resolve(given, "kova train")

    def _words(self) -> list[object]:
        """The command, for the page."""
        words: list[object] = ["kova", "train", self.algorithm, self.environment]
        for each in fields(self)[2:]:
            value = getattr(self, each.name)
            if value != each.default or each.name == "out":
                option = "--import" if each.name == "imports" else f"--{each.name.replace('_', '-')}"
                words += [option, *(value if isinstance(value, tuple) else (value,))]
        return words

    def run(self) -> None:
        """Train, with a progress bar."""
        from kova_rl.lab.training.run import Refused, train

        config, console = self.config(), Console()
        check_writable(self.out)
        store = Store(self.out, config)
        before = store.summary() is not None
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            bar, now = progress.add_task(config.environment, total=config.steps), NowAndThen(console)

            def tell(record: dict[str, Any]) -> None:
                shown = f"{config.environment}, return {number(record['return'])}"
                progress.update(bar, completed=record["step"], description=shown)
                now(lambda: f"{shown}, step {record['step']:,} of {config.steps:,}")

            try:
                summary = train(config, self.out, tell)
            except Refused as error:
                store.forget()
                raise ValueError(str(error)) from None
            except Busy as error:
                raise ValueError(str(error)) from None
            except KeyboardInterrupt:
                where = "the last checkpoint" if store.started else "the start: there is no checkpoint yet"
                say(console, f"Stopped. The same command goes on from {where}.")
                raise SystemExit(130) from None
            except Exception as error:
                message, see = explained(error, store.path), ""
                with contextlib.suppress(OSError):
                    store.fail(message, 1, traceback.format_exc())
                    see = f", see {store.path / 'failure.json'}"
                raise ValueError(f"the run failed{see}: {message}") from error
        add_command(self.out, self._words())
        say(
            console,
            f"{config.algorithm} on {config.environment} with {config.critic}: return "
            f"{number(summary['final_return'])} after {summary['steps']:,} steps, {summary['seconds']:.0f} s"
            + (", finished before" if before else ""),
        )
        say(console, f"log.jsonl, summary.json and model.zip: {store.path}")
