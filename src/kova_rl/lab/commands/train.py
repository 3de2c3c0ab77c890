"""The command ``kova train``."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import MISSING, Field, dataclass, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tyro.conf import Positional, arg

from kova_rl.algorithms import ALGORITHMS
from kova_rl.lab.arguments import Count, Number, Sizes, Switch
from kova_rl.lab.names import assignment, check_name
from kova_rl.lab.run import Refused, make
from kova_rl.lab.store import Busy, Store, check_writable, explained
from kova_rl.lab.sweep.live import number
from kova_rl.lab.sweep.noted import add_command
from kova_rl.lab.sweep.presets import preset_names, resolve
from kova_rl.lab.terminal import NowAndThen, say
from kova_rl.lab.training.config import STRATEGIES, TABLES, Options, RunConfig, kinds

__all__ = ["Train"]

_OPEN = {"help_behavior_hint": ""}
"""No default in the help, which says it in words."""


def _option(each: Field[Any], hint: Any) -> tuple[str, Any, Any]:
    """A setting of a run as an option: what is not given is None, and the preset's or the default's."""
    about, default = each.metadata["help"], each.default
    if default not in (None, (), "", MISSING):
        about = f"{about[:-1]}; the preset's, or {default}."
    more: dict[str, Any] = {"help": about, **_OPEN}
    if each.name == "imports":
        return each.name, Annotated[tuple[str, ...], arg(name="import", metavar="MODULE ...", **more)], ()
    if hint == Options:
        return each.name, Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", **more)], ()
    known = {int: Count, int | None: Count, float | None: Number, bool: Switch, tuple[int, ...] | None: Sizes}
    plain = Annotated[str | None, arg(metavar="NAME", **more)]
    return each.name, Annotated[known[hint], arg(**more)] if hint in known else plain, None


_WHICH = arg(metavar="ALGORITHM", help=f"{', '.join(ALGORITHMS)}.")
_WHERE = arg(metavar="ENVIRONMENT", help="Any Gymnasium id; one of your own with --import.")
_Settings: Any = make_dataclass(
    "_Settings",
    [
        ("algorithm", Annotated[str, Positional, _WHICH]),
        ("environment", Annotated[str, Positional, _WHERE]),
        ("out", Annotated[Path, arg(help="Folder of the runs; made if it is not there.")], Path("runs")),
        *(_option(each, kinds()[each.name]) for each in fields(RunConfig)[2:]),
    ],
)


@dataclass
class Train(_Settings):  # type: ignore[misc]
    """Train one run, or go on with it from its last checkpoint.

    What is not given is the preset's, then the algorithm's or Kova's own default. The run gets a folder in
    --out, with its settings, log and model; the same command again skips it if it is finished.

    examples:
      kova train ppo Swimmer-v5 --critic kova --steps 1e6 --seed 0 --out runs
      kova train sac Pendulum-v1 --critic memoryless --eta 0.01 --lr 0.1
      kova train dqn CartPole-v1 --observation "{ kind = 'robust', c = 2.0 }"
      kova train ppo MyEnv-v0 --import my_module --host n_steps=512 batch_size=128
    """

    def config(self) -> RunConfig:
        """The run, checked."""
        check_name("algorithm", self.algorithm, ALGORITHMS)
        names = {each.name for each in fields(RunConfig)}
        given = {name: value for name, value in vars(self).items() if name in names and value is not None}
        for name in TABLES:
            given[name] = dict(assignment(f"--{name.replace('_', '-')}", each) for each in given[name])
        for name in STRATEGIES:
            if name in given:
                given[name] = assignment(f"--{name}", f"{name}={given[name]}")[1]
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
        config, console = self.config(), Console()
        check_writable(self.out)
        store = Store(self.out, config.name)
        before = store.summary() is not None
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            bar, now = progress.add_task(config.environment, total=config.steps), NowAndThen(console)

            def tell(record: dict[str, Any]) -> None:
                shown = f"{config.environment}, return {number(record['return'])}"
                progress.update(bar, completed=record["step"], description=shown)
                now(lambda: f"{shown}, step {record['step']:,} of {config.steps:,}")

            try:
                summary = make(config, self.out, tell)
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
