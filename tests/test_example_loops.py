"""The examples that have an Adam twin: both run, both learn, and their times are printed side by side."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys

import pytest

from tests.test_examples import EXAMPLES, example

TWINS = {
    "ppo_continuous": ["--steps", "512", "--envs", "2", "--horizon", "128", "--epochs", "2"],
    "fitted_value": ["--episodes", "3", "--epochs", "2"],
    "vanilla_pg": ["--env", "Pendulum-v1", "--steps", "512", "--envs", "2", "--adam-passes", "2"],
}


@pytest.mark.parametrize("critic", ["adam", "kova"])
@pytest.mark.parametrize("name", TWINS)
def test_both_critics_run_as_commands(name: str, critic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), "--critic", critic, *TWINS[name]],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "processor seconds" in done.stdout
    assert bool(re.search(r"state: -?\d+\.\d\d \+- \d+\.\d\d", done.stdout)) is (critic == "kova")


def test_fitted_values_are_better_than_the_mean_return() -> None:
    """One pass of Kova is about as good as many of Adam; 1 would be the mean return for every state."""
    module = example("fitted_value")
    errors = {critic: module.main(module.Args(critic=critic, episodes=8)) for critic in ("kova", "adam")}
    assert errors["kova"] < 0.9
    assert errors["kova"] < 1.2 * errors["adam"]


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["adam", "kova"])
def test_continuous_ppo_learns(critic: str) -> None:
    """A random policy of Pendulum has about -1,200 an episode."""
    module = example("ppo_continuous")
    assert module.main(module.Args(critic=critic, steps=60_000)) > -900


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["adam", "kova"])
def test_the_vanilla_policy_gradient_learns(critic: str) -> None:
    """A random policy of CartPole has 22."""
    module = example("vanilla_pg")
    assert module.main(module.Args(env="CartPole-v1", critic=critic, steps=20_000, adam_passes=5)) > 45


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torchrl has warnings of its own
def test_torchrls_ppo_runs_with_either_critic(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchrl")
    module = example("torchrl_ppo")
    for critic in ("adam", "kova"):
        assert -17 < module.main(module.Args(critic=critic, rollouts=2, horizon=400, epochs=2)) < 0
    printed = capsys.readouterr().out
    assert printed.count("processor seconds") == 2
    assert re.search(r"value of the first state: -\d+\.\d\d \+- \d+\.\d\d", printed)


def test_discrete_actions_are_refused() -> None:
    module = example("ppo_continuous")
    with pytest.raises(SystemExit, match="expected continuous"):
        module.main(module.Args(env="CartPole-v1"))


def test_ten_lines_are_the_change() -> None:
    """Without the lines that only Adam needs, and without those that only Kova needs."""
    lines = (EXAMPLES / "ppo_continuous.py").read_text().splitlines()
    adam = [line for line in lines if "KOVA" not in line]
    kova = [line for line in lines if "ADAM" not in line]
    changed = [line for line in difflib.ndiff(adam, kova) if line[0] in "+-"]
    assert 2 < len(changed) <= 12
    assert len(lines) < 200
