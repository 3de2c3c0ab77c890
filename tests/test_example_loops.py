"""The examples that have an Adam twin: both run, both learn, and their times are printed side by side."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
import torch
import tyro

from tests.test_examples import EXAMPLES, example

TWINS = {
    "ppo_continuous": ["--steps", "512", "--envs", "2", "--horizon", "128", "--epochs", "2"],
    "fitted_value": ["--episodes", "3", "--epochs", "2"],
    "vanilla_pg": ["--env", "Pendulum-v1", "--steps", "512", "--envs", "2", "--adam-passes", "2"],
}


@pytest.mark.parametrize("critic", ["adam", "kova"])
@pytest.mark.parametrize("name", TWINS)
def test_both_critics_run(name: str, critic: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = example(name)
    module.main(tyro.cli(module.Args, args=["--critic", critic, *TWINS[name]]))
    printed = capsys.readouterr().out
    assert "processor seconds" in printed
    assert bool(re.search(r"state: -?\d+\.\d\d \+- \d+\.\d\d", printed)) is (critic == "kova")


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


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # skrl has warnings of its own
def test_skrls_ppo_runs_with_either_critic(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("skrl")
    module = example("skrl_ppo")
    for critic in ("adam", "kova"):
        args = module.Args(critic=critic, steps=500, envs=2, horizon=128, epochs=2, batches=4)
        assert -2_000 < module.main(args) < -100
    printed = capsys.readouterr().out
    assert printed.count("processor seconds") == 2
    assert re.search(r"value of the first state: -?\d+\.\d\d \+- \d+\.\d\d", printed)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_skrls_adam_keeps_off_the_filtered_value(tmp_path: Path) -> None:
    """The optimizer of the agent has the policy alone, and the filter is in what skrl saves."""
    pytest.importorskip("skrl")
    module = example("skrl_ppo")
    agent = module.make(module.Args(envs=1, horizon=8))[1]
    theirs = {id(p) for group in agent.optimizer.param_groups for p in group["params"]}
    assert theirs == {id(p) for p in agent.policy.parameters()}
    assert not theirs & {id(p) for p in agent.value.parameters()}
    agent.save(str(tmp_path / "agent.pt"))
    seen, one = torch.ones(1, 3), torch.ones(1)
    agent.critic.step(lambda: agent.value.net(seen).squeeze(-1), one, ratio=one)
    moved = agent.critic.variances()
    agent.load(str(tmp_path / "agent.pt"))
    assert not torch.equal(agent.critic.variances(), moved)
    assert (agent.critic.variances() == 1.0).all(), "the prior again"


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
