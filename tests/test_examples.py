"""The examples run and learn, and the code of the guide to Stable-Baselines3 runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
import tyro

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "stable-baselines3.md"
RANDOM = 25
"""More than a random policy's mean return in CartPole, which is 22."""


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # tyro and dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ppo", ["--steps", "300", "--envs", "2", "--horizon", "64", "--env", "Acrobot-v1"]),
        ("dqn", ["--steps", "300", "--warm-up", "100"]),
        ("dqn", ["--steps", "300", "--warm-up", "100", "--thompson"]),
    ],
)
def test_they_run_with_the_arguments_of_a_command(
    name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = example(name)
    module.main(tyro.cli(module.Args, args=arguments))
    assert re.search(r"value of .*start state: -?\d+\.\d\d \+- \d+\.\d\d", capsys.readouterr().out)


def test_one_runs_as_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "fitted_value.py"), "--episodes", "2"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "error of the values of new states" in done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_all_end_as_a_command_does(path: Path) -> None:
    """So that what holds of one run as a command holds of all."""
    assert path.read_text().endswith('if __name__ == "__main__":\n    main(tyro.cli(Args))\n')


@pytest.mark.parametrize(
    ("name", "settings", "least"),
    [
        ("ppo", {"steps": 25_000}, 4 * RANDOM),
        ("dqn", {"steps": 6_000}, 4 * RANDOM),
        ("dqn", {"steps": 6_000, "thompson": True}, 4 * RANDOM),
    ],
)
def test_they_learn(name: str, settings: dict[str, int], least: float) -> None:
    module = example(name)
    assert module.main(module.Args(**settings)) > least


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_continuous_actions_are_refused(name: str) -> None:
    module = example(name)
    with pytest.raises(SystemExit, match="expected discrete"):
        module.main(module.Args(env="Pendulum-v1"))


class Flip(gym.Env):  # type: ignore[type-arg]
    """A bit that flips at each step and is the reward. It starts anywhere; each step ends the episode."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, terminates: bool) -> None:
        self.terminates, self.bit = terminates, 0

    def _seen(self) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[self.bit]

    def reset(
        self, *, seed: int | None = None, options: object = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        super().reset(seed=seed)
        self.bit = int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        reward, self.bit = float(self.bit), 1 - self.bit
        return self._seen(), reward, self.terminates, not self.terminates, {}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {"steps": 8_192, "envs": 4, "horizon": 64, "batch": 64}),
        ("dqn", {"steps": 2_500, "warm_up": 500}),
    ],
)
@pytest.mark.parametrize("terminates", [True, False])
def test_a_time_limit_cuts_an_episode_but_not_its_value(
    name: str, settings: dict[str, int], terminates: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand, at a discount of 1/2: V(0) = V(1)/2 and V(1) = 1 + V(0)/2, or the bit if the episode is over.

    Were the first state of the next episode taken for the successor, it would be 1/2 and 3/2.
    """
    known = f"Flip{terminates}-v0"
    if known not in gym.registry:
        gym.register(known, Flip, kwargs={"terminates": terminates}, disable_env_checker=True)
    module = example(name)
    module.main(module.Args(env=known, gamma=0.5, reward_scale=0.5, **settings))
    start = int(np.random.Generator(np.random.PCG64(module.Args.seed)).integers(2))
    found = [float(value) for value in re.findall(r"start state: (\S+) ", capsys.readouterr().out)]
    assert found == pytest.approx([start if terminates else (2 / 3, 4 / 3)[start]] * len(found), abs=0.06)
    assert len(found) == (1 if name == "ppo" else 2)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_two_lines_are_the_change(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert len(lines) < 200
    assert sum("Kova(" in line for line in lines) == 1
    assert sum(".step(lambda" in line for line in lines) == 1
    assert not any("stable_baselines3" in line for line in lines)


def blocks() -> list[tuple[str, str]]:
    """The Python blocks of the guide, by the heading that they stand under."""
    found, heading = [], ""
    for part in re.finditer(r"^## (.+?)$|^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S):
        if part[1]:
            heading = part[1]
        else:
            found.append((heading, part[2]))
    return found


@pytest.mark.parametrize(("heading", "code"), [pytest.param(*one, id=one[0]) for one in blocks()])
def test_the_code_of_the_guide_runs(heading: str, code: str) -> None:
    exec(compile(code, f"{GUIDE.name}: {heading}", "exec"), {"__name__": "guide"})


def test_the_guide_names_what_is_logged() -> None:
    from stable_baselines3.common.logger import Logger

    from kova_rl.sb3 import KovaPPO, KovaSAC

    text = GUIDE.read_text()
    ppo = KovaPPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu")
    sac = KovaSAC("MlpPolicy", "Pendulum-v1", buffer_size=500, batch_size=16, filtered="both", device="cpu")
    for model, steps in ((ppo, 64), (sac, 110)):
        model.set_logger(Logger(folder=None, output_formats=[]))
        model.learn(steps, log_interval=None)
        model._record_filters()
        keys = {re.sub(r"^kova/(v|q\d)/", "kova/", key) for key in model.logger.name_to_value}
        named = set(re.findall(r"`((?:kova|train)/\w+)`", text))
        assert named <= keys
        assert {key for key in keys if key.startswith("kova/")} <= named
