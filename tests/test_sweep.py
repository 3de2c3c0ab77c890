"""Sweeps, with real processes: grids, and what is left after things go wrong."""

from __future__ import annotations

import errno
import io
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kova_rl import cli
from kova_rl.lab.backends.processes import Processes
from kova_rl.lab.commands.sweep import SweepRuns
from kova_rl.lab.commands.train import Train
from kova_rl.lab.run import make as train
from kova_rl.lab.store import Store, explained
from kova_rl.lab.sweep.grid import expand, read_sweep
from kova_rl.lab.sweep.live import Dashboard, report
from kova_rl.lab.sweep.noted import read_commands
from kova_rl.lab.sweep.search import Search
from kova_rl.lab.sweep.supervise import Sweep
from kova_rl.lab.training.config import RunConfig
from tests.here import Here
from tests.runs import PPO, outcome, ppo, stored

pytest.importorskip("stable_baselines3")

ROOT = Path(__file__).parent.parent


def faulty(name: str, at: int, marker: Path, **changes: Any) -> RunConfig:
    options = {"at": at, "marker": str(marker)}
    return ppo(
        environment=name, imports=["tests.faults.environments"], environment_options=options, **changes
    )


def shown(sweep: Sweep) -> str:
    console = Console(file=io.StringIO(), width=200)
    report(sweep, console)
    console.print(Dashboard(sweep))
    return console.file.getvalue()  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- grids


def test_lists_multiply_out() -> None:
    values = {**PPO, "seed": [0, 1, 2], "critic": ["kova", "adam"], "host": {"n_steps": [64, 128]}}
    runs = expand(values, "grid.toml")
    assert len({run.name for run in runs}) == len(runs) == 12
    assert {run.network for run in runs} == {(8,)}, "a list of its own kind is one value"
    assert len(expand({**PPO, "network": [[8], [8, 8]]}, "grid.toml")) == 2
    grids = {**PPO, "grid": [{"critic": "adam", "seed": [0, 1]}, {"critic": "kova", "eta": [0.1, 0.2]}]}
    assert [run.critic for run in expand(grids, "grid.toml")] == ["adam", "adam", "kova", "kova"]
    assert len(expand({**PPO, "seed": [0, 0]}, "grid.toml")) == 1, "each once"
    assert [run.seed for run in expand(values, "grid.toml", {"seed": 5, "critic": "adam"})] == [5, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sead": [0, 1]}, "grid.toml: a setting must be one of .*did you mean seed"),
        ({"seed": []}, "seed is an empty list"),
        ({"seed.x": 3, "seed": 0}, "seed is a table"),
        ({"critic.x": 3}, "critic is a value, 'kova', and can't have x too"),
        ({"seed": [0, "one"]}, "seed must be a whole number, got 'one'"),
        ({"grid": {"seed": 1}}, r"grid must be tables, \[\[grid\]\]"),
        ({"grid": [{}, {"critic": "adm"}]}, r"\[\[grid\]\] 2: critic must be .*did you mean adam"),
    ],
)
def test_a_mistake_in_a_sweep_is_refused_before_anything_runs(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand({**PPO, **change}, "grid.toml")


def test_the_papers_sweeps_come_with_the_package(tmp_path: Path) -> None:
    counts = {name: len(expand(read_sweep(name), name)) for name in ("fig3", "ablation", "grid")}
    assert counts == {
        "fig3": 5 * 8 * (3 * 3 + 3),
        "ablation": 2 * 8 * (2 * 3 * 2 + 1),
        "grid": 5 * 8 * (3 * 2 * 3 + 3 * 2),
    }
    with pytest.raises(ValueError, match="did you mean ablation"):
        read_sweep("ablaton")
    with pytest.raises(ValueError, match="can't be read"):
        read_sweep(str(tmp_path / "nothing.toml"))


# ---------------------------------------------------------------------- the commands


def test_train_takes_every_setting_and_its_preset() -> None:
    config = Train(
        "ppo", "Hopper-v5", critic="memoryless", steps=1e5, prior="0.5", host=("n_steps=512",)
    ).config()
    assert (config.preset, config.steps, config.lr, config.prior) == ("ppo", 100_000, 0.1, 0.5)
    assert (config.host["n_steps"], config.host["batch_size"]) == (512, 64)
    assert Train("ppo", "Hopper-v5", preset="none").config().host == {}
    assert Train("dqn", "CartPole-v1", decay=True, imports=("json",)).config().preset is None
    with pytest.raises(ValueError, match="did you mean trpo"):
        Train("tropo", "Hopper-v5").config()
    with pytest.raises(ValueError, match="must be name=value, got 'n_steps'"):
        Train("ppo", "Hopper-v5", host=("n_steps",)).config()


def test_train_trains_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = ("n_steps=64", "batch_size=32", "n_epochs=2")
    command = Train("ppo", "CartPole-v1", out=tmp_path, steps=128, network=(8,), host=host)
    command.run()
    command.run()
    first, second = (line for line in capsys.readouterr().out.splitlines() if "after 128 steps" in line)
    assert ["finished before" in line for line in (first, second)] == [False, True]
    (noted,) = read_commands(tmp_path)
    assert (
        noted
        == f"kova train ppo CartPole-v1 --out {tmp_path} --steps 128 --network 8 --host {' '.join(host)}"
    )
    with pytest.raises(ValueError, match="did you mean CartPole-v1"):
        Train("ppo", "CartPole-v7", out=tmp_path).run()
    with pytest.raises(ValueError, match="can't be a folder"):
        Train("ppo", "CartPole-v1", out=tmp_path / "commands.txt").run()
    assert len(stored(tmp_path)) == len(list(tmp_path.glob("*/"))) == 1, "a refused run leaves nothing"
    broken = faulty("Raises-v0", 50, tmp_path / "marker")
    arguments = {name: getattr(broken, name) for name in ("algorithm", "environment", "network", "imports")}
    options = ("at=50", f"marker={tmp_path / 'marker'}")
    with pytest.raises(ValueError, match="RuntimeError: the pole broke at step 50"):
        Train(**arguments, steps=512, out=tmp_path, host=host, environment_options=options).run()
    (failure,) = tmp_path.glob("*/failure.json")
    assert json.loads(failure.read_text())["attempts"] == 1
    with pytest.raises(ValueError, match=r"the run failed, see .*: ValueError: the simulator diverged"):
        Train(
            "ppo",
            "Diverges-v0",
            tmp_path,
            steps=512,
            imports=arguments["imports"],
            host=host,
            environment_options=options,
        ).run()
    assert len(list(tmp_path.glob("*/failure.json"))) == len(stored(tmp_path)) - 1 == 2


# ---------------------------------------------------------------------- faults


def test_one_run_goes_wrong_and_the_others_finish(tmp_path: Path) -> None:
    """SIGKILL of a worker in mid-run, an exception at step 1,000, a full disk, and a name that is unknown."""
    killed, full = tmp_path / "killed", tmp_path / "full"
    runs = {
        "good": ppo(),
        "killed": faulty("Killed-v0", 100, killed),
        "raises": faulty("Raises-v0", 1000, tmp_path / "no", steps=1280, segments=1),
        "full": faulty("Full-v0", 100, full),
        "unknown": ppo(environment="CartPol-v1"),
    }
    killed.touch(), full.touch()
    for name in ("good", "killed", "full"):
        train(runs[name], tmp_path / "whole")
    killed.unlink(), full.unlink()
    sweep = Sweep(list(runs.values()), tmp_path / "runs", retries=1)
    sweep.supervise(Processes(sweep.root, slots=2))
    found = dict(zip(runs, sweep.entries, strict=True))
    assert {name: entry.status for name, entry in found.items()} == {
        "good": "done",
        "killed": "done",
        "raises": "failed",
        "full": "failed",
        "unknown": "failed",
    }
    assert [entry.attempts for entry in found.values()] == [1, 2, 2, 2, 1]
    assert found["raises"].message == "RuntimeError: the pole broke at step 1000"
    assert "no space left in" in found["full"].message
    assert "did you mean CartPole-v1" in found["unknown"].message
    failure = json.loads((Store(sweep.root, runs["raises"].name).path / "failure.json").read_text())
    assert (failure["status"], failure["attempts"]) == ("failed", 2)
    assert "in fault" in failure["log"], "the end of its log: the traceback"
    text = shown(sweep)
    assert "2 of 5 runs done, 3 failed" in text
    assert "failed after 2 tries" in text
    for name in ("good", "killed"):
        assert outcome(sweep.root, runs[name]) == outcome(tmp_path / "whole", runs[name])

    full.touch()  # there is space again
    again = Sweep([runs["good"], runs["full"]], sweep.root)
    assert [entry.before for entry in again.entries] == [True, False]
    again.supervise(Here(again.root, slots=1))
    assert outcome(again.root, runs["full"]) == outcome(tmp_path / "whole", runs["full"])
    assert Store(again.root, runs["full"].name).failure() is None


SWEEP = """
algorithm = "ppo"
environment = "CartPole-v1"
critic = ["adam", "kova"]
seed = [0, 1]
steps = 3000
network = [8]
host = { n_steps = 100, batch_size = 50, n_epochs = 2 }
"""


def supervisor(file: Path, out: Path) -> subprocess.Popen[bytes]:
    """A sweep in a process of its own."""
    code = (
        "from pathlib import Path; from kova_rl.lab.commands.sweep import SweepRuns; "
        f"SweepRuns({str(file)!r}, Path({str(out)!r}), jobs=2).run()"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, cwd=ROOT)


def killed_at_random_moments(folder: Path, times: int, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    file, out, chance = folder / "sweep.toml", folder / "runs", random.Random(seed)
    file.write_text(SWEEP.replace("[0, 1]", "0"))
    runs = expand(read_sweep(str(file)), "sweep.toml")
    for run in runs:
        train(run, folder / "whole")
    for _ in range(times):
        parent = supervisor(file, out)
        before = sum(path.stat().st_size for path in out.glob("*/log.jsonl"))
        until = time.monotonic() + 60
        while time.monotonic() < until and parent.poll() is None:
            if sum(path.stat().st_size for path in out.glob("*/log.jsonl")) != before:
                break
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        for run in runs:
            with Store(out, run.name).locked(patience=20):  # the workers have ended with their supervisor
                pass
    SweepRuns(str(file), out).run()
    assert [run.name for run in stored(out)] == sorted(run.name for run in runs), "each once"
    for run in runs:
        assert outcome(out, run) == outcome(folder / "whole", run)


@pytest.mark.usefixtures("in_this_process")
def test_the_sweeps_parent_is_killed(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, times=1, seed=0)


@pytest.mark.slow
def test_the_sweeps_parent_is_killed_often(tmp_path: Path) -> None:
    for seed in range(4):
        killed_at_random_moments(tmp_path / str(seed), times=5, seed=seed)


def test_an_error_of_the_environments_files_is_not_blamed_on_the_folder(tmp_path: Path) -> None:
    ours = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "log.jsonl"))
    theirs = PermissionError(errno.EACCES, "Permission denied", "/dev/joystick")
    assert "may not write in" in explained(ours, tmp_path)
    assert explained(theirs, tmp_path).startswith("PermissionError: [Errno 13]")
    assert "no space left in" in explained(OSError(errno.ENOSPC, "No space left on device"), tmp_path)


READ_ONLY = """
import os, sys
from pathlib import Path
from kova_rl.lab.attempt import attempt
from kova_rl.lab.store import Store, check_writable
from kova_rl.lab.training.run import open_session
from tests.runs import ppo
root, closed, good = Path(sys.argv[1]), ppo(), ppo(seed=1)
open_session(good, 1, open_session(good).state()).close()  # import all while root may
Store(root, closed.name).path.mkdir()
(root / "closed").mkdir()
for path in (Store(root, closed.name).path, root / "closed"):
    path.chmod(0o555)
if os.getuid() == 0:
    os.chmod(root, 0o777)
    os.setgid(65534), os.setuid(65534)
print(attempt(closed, root, lambda record: None))
print(attempt(good, root, lambda record: None))
check_writable(root / "closed")
"""


def test_a_read_only_directory(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)  # for a child without root's powers
    command = [sys.executable, "-c", READ_ONLY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    closed, good = done.stdout.splitlines()
    assert "status='failed'" in closed
    assert "may not write in" in closed
    assert "status='done'" in good
    assert "choose another --out" in done.stderr


def test_a_run_that_another_process_makes_is_left_to_it(tmp_path: Path) -> None:
    config = ppo(steps=128)
    sweep = Sweep([config], tmp_path)
    with Store(tmp_path, config.name).locked():
        sweep.supervise(Processes(tmp_path, slots=1))
    assert sweep.entries[0].status == "busy"
    assert "another process works on" in shown(sweep)


def test_the_command_skips_what_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP.replace("3000", "200"))
    for run in expand(read_sweep(str(file)), "sweep.toml"):
        train(run, tmp_path / "runs")
    SweepRuns(str(file), tmp_path / "runs").run()
    assert "4 of 4 runs done (4 of them before), 0 failed" in capsys.readouterr().out
    SweepRuns(str(file), tmp_path / "runs", set=("seed=[1,2]",), list=True).run()
    assert "2 of 4 done" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean seed"):
        SweepRuns(str(file), tmp_path / "runs", set=("sed=1",)).run()
    with pytest.raises(ValueError, match="is no list; quote its strings"):
        SweepRuns(str(file), tmp_path / "runs", set=("critic=[adam,kova]",)).run()
    assert len(read_commands(tmp_path / "runs")) == 1, "those that made or found runs"


def test_runs_that_differ_in_a_setting_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        'algorithm = "ppo"\nenvironment = "CartPole-v1"\neta = [0.1, 0.01]\nhost.n_steps = [8, 16]'
    )
    SweepRuns(str(file), tmp_path / "runs", list=True).run()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("  eta=0.1 host.n_steps=8")
    sweep = Sweep(expand(read_sweep(str(file)), "sweep.toml"), tmp_path / "runs")
    for entry in sweep.entries:
        entry.status = "running"
    with (console := Console(width=200)).capture() as captured:
        console.print(Dashboard(sweep))
    assert len({line for line in captured.get().splitlines() if "eta=" in line}) == 4
    assert "kova seed0 eta=0.01 host.n_steps=16" in captured.get()


def test_a_sweep_into_a_file_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kova_rl.lab.terminal.EVERY", 0.1)
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP.replace("3000", "200"))
    SweepRuns(str(file), tmp_path / "runs", jobs=1, set=("critic=kova", "seed=0")).run()
    assert "1 running, 0 done, 0 failed, 0 waiting; time left" in capsys.readouterr().out


def test_without_stable_baselines3_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP)
    said = "kova: training needs Stable-Baselines3 and sb3-contrib: pip install 'kova-rl[sb3]'\n"
    for words in (["sweep", str(file)], ["train", "ppo", "CartPole-v1"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*words, "--out", str(tmp_path / "runs")])
        shown = capsys.readouterr()
        assert (shown.out.strip(), shown.err) == ("", said)
    assert not list((tmp_path / "runs").iterdir())


def test_an_interrupted_run_is_listed_as_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP)
    run = expand(read_sweep(str(file)), "sweep.toml")[0]

    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "runs", interrupt)
    SweepRuns(str(file), tmp_path / "runs", list=True).run()
    assert f"started  {run.name}" in capsys.readouterr().out


# ---------------------------------------------------------------------- search

SEARCH = (
    SWEEP.replace("3000", "200").replace('["adam", "kova"]', '"kova"')
    + """
[search]
trials = 3
batch = 2
[search.space]
eta = { low = 1e-3, high = 0.3, log = true }
observation = { choices = ["max-ratio", "adaptive"] }
host.n_epochs = { low = 1, high = 3 }
"""
)


@pytest.mark.usefixtures("in_this_process")
def test_a_search_resumes_as_a_sweep_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    file = tmp_path / "search.toml"
    file.write_text(SEARCH)
    command = SweepRuns(str(file), tmp_path / "runs", jobs=2)
    command.run()
    first = capsys.readouterr().out
    assert "3 of 3 proposals tried" in first
    assert len(stored(tmp_path / "runs")) == 3 * 2, "two seeds each"
    assert len({run.eta for run in stored(tmp_path / "runs")}) == 3
    command.run()
    assert capsys.readouterr().out.strip() == first.strip()
    assert len(stored(tmp_path / "runs")) == 3 * 2


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"trails": 3}, "did you mean trials"),
        ({"trials": 0, "space": {"eta": {"low": 0.1, "high": 0.2}}}, "trials must be a whole number"),
        ({}, "must have a space"),
        ({"space": {"etta": {"low": 0.1, "high": 0.2}}}, "did you mean eta"),
        ({"space": {"eta": {"low": 0.1}}}, "must have low and high, or choices"),
        ({"space": {"eta": {"lo": 0.1, "high": 0.2}}}, "did you mean low"),
        ({"space": {"eta": 0.1}}, "eta must have low and high, or choices, got 0.1"),
        (5, "must be tables, got 5"),
        ({"space": {"eta": {"choices": 0.5}}}, "choices of eta must be a list, got 0.5"),
        ({"space": {"eta": {"low": "a", "high": 1}}}, "must be numbers, got 'a' and 1"),
        ({"space": {"eta": {"low": 0.2, "high": 0.1}}}, "eta must have low < high"),
        ({"space": {"eta": {"low": 0, "high": 0.1, "log": True}}}, "0 < low < high, since log is true"),
    ],
)
def test_a_mistake_in_a_search_is_refused(table: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Search.of(table, "search.toml")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ("high = 1.05", {}, r"eta must be a number in \[0, 1\), got 1.05"),
        ("high = 0.3", {"set": ("eta=0.5",)}, "eta is searched, and can't be set too"),
        ("high = 0.3", {"list": True}, "is a search, whose runs are not known beforehand"),
    ],
)
def test_a_search_that_can_not_be_leaves_nothing(
    change: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "search.toml").write_text(SEARCH.replace("high = 0.3", change))
    with pytest.raises(ValueError, match=message):
        SweepRuns(str(tmp_path / "search.toml"), tmp_path / "runs", **options).run()
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_search_with_a_failed_run_ends_with_a_code(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    text = (
        SEARCH.replace("CartPole-v1", "CartPol-v1").replace("[0, 1]", "0").replace("trials = 3", "trials = 1")
    )
    (tmp_path / "search.toml").write_text(text)
    with pytest.raises(SystemExit) as caught:
        SweepRuns(str(tmp_path / "search.toml"), tmp_path / "runs", jobs=1).run()
    assert caught.value.code == 1
