"""Recorded streams: what is in the file, what is examined, the table and the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kova_rl import cli, covariance
from kova_rl.lab.report import read
from kova_rl.lab.streams import examine, picture, store
from kova_rl.lab.streams.critics import SHORT, critic_named
from kova_rl.lab.streams.run import shipped
from kova_rl.sb3 import KovaSettings
from kova_rl.value_loop import Rollout, ValueLoop


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rollouts of Pendulum in two environments, with a time limit in some of them."""
    path = tmp_path_factory.mktemp("streams") / "pendulum.npz"
    sizes = ["--rollouts", "4", "--steps", "128", "--envs", "2"]
    cli.main(["record", "Pendulum-v1", *sizes, "--out", str(path)])
    return path


def test_a_stream_is_what_the_run_saw(recorded: Path) -> None:
    stream = store.read(recorded)
    assert (stream.meta.environment, len(stream.rollouts), stream.inputs) == ("Pendulum-v1", 4, 3)
    cut = [int(rollout.truncated.sum()) for rollout in stream.rollouts]
    assert sum(cut) == 4  # 512 steps of each of two, cut after 200
    for rollout, ratio, count in zip(stream.rollouts, stream.ratios, cut, strict=True):
        assert rollout.observations.shape == (256, 3)
        assert rollout.rewards.shape == rollout.terminated.shape == (128, 2)
        assert not rollout.terminated.any()
        assert (0 if rollout.cut is None else len(rollout.cut)) == count
        assert ratio.shape == (256,)
        assert float((ratio - 1).abs().max()) > 1e-3  # the policy has moved
    first, second = stream.rollouts[:2]
    # What follows the last step of a rollout is the first observation of the next.
    assert torch.equal(first.last, second.observations[::128])


def test_the_same_command_records_the_same(recorded: Path, tmp_path: Path) -> None:
    from kova_rl.sb3.recording import recorded as run

    stream = store.read(recorded)
    again, _ = next(iter(run("Pendulum-v1", 0, 1, steps=128, envs=2)))
    assert torch.equal(again.rewards, stream.rollouts[0].rewards)
    assert torch.equal(again.observations.half().float(), stream.rollouts[0].observations)


def test_a_run_that_kova_leads_can_be_recorded(recorded: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "kova.npz"
    sizes = ["--rollouts", "2", "--steps", "128", "--envs", "2"]
    cli.main(["record", "Pendulum-v1", *sizes, "--critic", "kova", "--out", str(path)])
    adam, kova = store.read(recorded), store.read(path)
    assert (adam.meta.critic, kova.meta.critic) == ("adam", "kova")
    assert torch.equal(adam.rollouts[0].rewards, kova.rollouts[0].rewards)
    assert not torch.equal(adam.rollouts[1].rewards, kova.rollouts[1].rewards)
    with pytest.raises(SystemExit):
        cli.main(["record", "Pendulum-v1", *sizes, "--critic", "kovva", "--out", str(path)])
    assert "did you mean kova?" in capsys.readouterr().err


def test_damaged_files_and_other_spaces_are_refused(tmp_path: Path, capsys: Any) -> None:
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"no zip")
    with pytest.raises(ValueError, match="not a recorded stream, or damaged"):
        store.read(bad)
    with pytest.raises(ValueError, match="there is no stream"):
        store.read(tmp_path / "none.npz")
    with pytest.raises(SystemExit):
        cli.main(["record", "FrozenLake-v1", "--rollouts", "1", "--out", str(tmp_path / "x.npz")])
    assert "observations that are vectors" in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists()


def rollout(rewards: list[float], terminated: list[int], truncated: list[int]) -> Rollout:
    steps = len(rewards)
    flags = (torch.zeros(steps, 1, dtype=torch.bool) for _ in range(2))
    ended, cut = flags
    ended[terminated], cut[truncated] = True, True
    seen = torch.randn(steps, 2)
    column = torch.tensor(rewards).unsqueeze(1)
    return Rollout(seen, column, ended, cut, seen[:1], torch.randn(len(truncated), 2) if truncated else None)


def test_returns_without_a_critic_are_those_of_completed_episodes() -> None:
    one = rollout([1.0, 2.0, 4.0, 8.0, 16.0], terminated=[2], truncated=[])
    returns, free = examine.free_returns(one, gamma=0.5)
    assert free.flatten().tolist() == [True, True, True, False, False]  # the last two did not end
    assert returns.flatten()[:3].tolist() == [3.0, 4.0, 4.0]
    far = rollout([1.0] * 20, terminated=[], truncated=[19])
    _, free = examine.free_returns(far, gamma=0.5)
    assert free.flatten().tolist() == [True] * 14 + [False] * 6  # 0.5^7 < 1%


def test_a_perfect_critic_has_no_error_and_the_noise_of_the_rewards() -> None:
    """The reward is a known function of the state, and every step ends its episode."""
    torch.manual_seed(0)
    seen = torch.randn(400, 2)
    rewards = seen[:, :1] + 0.5 * torch.randn(400, 1)
    flags = torch.ones(400, 1, dtype=torch.bool)
    one = Rollout(seen, rewards, flags, torch.zeros_like(flags), seen[:1], None)
    meta = store.StreamMeta("none", 0, 30, 400, 1)
    stream = store.Stream(meta, [one] * 30, [torch.ones(400)] * 30)
    found = examine.examine(stream, critic_named("kronecker:0.001:fan-in:adaptive:p2"))
    assert found.noise.shape == (29,)
    expected = float(0.5 / rewards.std())
    assert found.halves[1] == pytest.approx(expected, rel=0.1)
    assert float(found.error[-1]) == pytest.approx(expected, rel=0.1)
    assert abs(float(found.bias[-1])) < 0.05
    assert 0.9 < float(found.coverage[-1]) <= 1.0
    assert found.seconds > 0
    adam = examine.examine(stream, critic_named("adam:1e-3:p3"))
    assert adam.halves[1] == pytest.approx(expected, rel=0.15)
    assert adam.coverage.isnan().all()


def test_a_critic_is_examined_before_it_learns(recorded: Path) -> None:
    """The second rollout's examination depends on the first alone."""
    stream = store.read(recorded)
    other = store.Stream(stream.meta, [*stream.rollouts[:2], *stream.rollouts[:2]], stream.ratios)
    settings = critic_named("adam:1e-3:p2")
    one, two = (examine.examine(each, settings).noise for each in (stream, other))
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_a_solved_head_finds_what_one_pass_of_adam_does_not(recorded: Path) -> None:
    stream = store.read(recorded)
    plain, solved = (examine.examine(stream, critic_named(f"adam:1e-5:p1{h}")) for h in ("", ":h1"))
    assert float(solved.noise.mean()) < 0.9 * float(plain.noise.mean())


def test_critics_have_names() -> None:
    for name in SHORT:
        critic_named(name)
    adam = critic_named("adam:1e-3:p10:l1:each")
    assert adam == ValueLoop(value_lr=1e-3, value_passes=10, value_lambda=1.0, recompute="each")
    assert critic_named("kova:p3") == KovaSettings(value_passes=3)
    assert critic_named("adam:1e-3:h0.3") == ValueLoop(value_lr=1e-3, head=0.3)
    wide = critic_named("kronecker:0.1:v30")
    assert isinstance(wide, KovaSettings)
    assert wide.covariance == covariance.Kronecker(prior=30.0)
    filtered = critic_named("kronecker:0.01:fan-in:adaptive:p3")
    assert isinstance(filtered, KovaSettings)
    assert (filtered.value_passes, filtered.evolution.eta) == (3, 0.01)  # type: ignore[union-attr]
    for wrong in (
        "adam",
        "adam:x",
        "sgd:0.1",
        "adam:1e-3:fan-in",
        "low-rank:0.1:p0",
        "low-rank:0.1:v",
        "low-rank:0.1:odd",
        "memoryless:0.1:v3",
        "kova:adaptive",
    ):
        with pytest.raises(ValueError, match="a critic is written"):
            critic_named(wrong)
    with pytest.raises(ValueError, match="did you mean kova"):
        critic_named("kovva")


def test_a_critic_on_a_stream_is_a_run(recorded: Path, tmp_path: Path) -> None:
    arguments = ["stream", str(recorded), "--jobs", "1", "--out", str(tmp_path), "--critics"]
    cli.main([*arguments, "adam:1e-3:p1"])
    table = tmp_path / "table.csv"
    before = table.read_text()
    cli.main([*arguments, "adam:1e-3:p1", "low-rank:0.1:p1"])
    assert table.read_text().startswith(before), "what was made is not made again: its seconds are the same"
    assert len(table.read_text().splitlines()) == 3
    assert (tmp_path / "table.png").stat().st_size > 5000
    first, second = read(tmp_path)
    assert (first.critic, second.critic) == ("adam", "kova")
    assert (first.label, first.environment, first.reached) == ("adam:1e-3:p1", "Pendulum-v1-seed0", 4)
    assert first.steps.tolist() == [2, 3, 4], "the first rollout is not examined"
    found = examine.examine(store.read(recorded), critic_named("adam:1e-3:p1"))
    assert first.scores.tolist() == pytest.approx(found.noise.tolist())
    row = dict(zip(*(line.split(",") for line in before.splitlines()), strict=True))
    assert row["noise_first"] == f"{found.halves[0]:.4g}"
    assert row["noise_second"] == f"{found.halves[1]:.4g}"


def test_the_front_is_what_nothing_beats() -> None:
    points = {"fast": (1.5, 1.0), "slow": (1.0, 9.0), "beaten": (1.6, 2.0), "middle": (1.2, 3.0)}
    assert picture.front(points) == ["fast", "middle", "slow"]
    assert picture.front(points | {"no faster": (1.3, 2.9)}) == ["fast", "middle", "slow"]
    assert picture.front(points | {"faster": (1.3, 2.8)}) == ["fast", "faster", "middle", "slow"]
    assert picture.front(points | {"level": (1.2, 3.01)}) == ["fast", "middle", "level", "slow"]


def test_what_is_shipped_can_be_read() -> None:
    streams = {name: store.read(path) for name, path in shipped().items()}
    assert set(streams) == {"Hopper-v5", "HalfCheetah-v5", "Reacher-v5"}
    for name, stream in streams.items():
        assert stream.meta.environment == name
        assert len(stream.rollouts) == stream.meta.rollouts == 40
    assert sum(path.stat().st_size for path in shipped().values()) < 7e6


def test_evaluate_has_them_as_a_task(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "evaluate"
    cli.main(
        [
            "evaluate",
            "--task",
            "rollouts",
            "--critics",
            "memoryless:0.01:p1",
            "--seeds",
            "1",
            "--out",
            str(out),
        ]
    )
    table = (out / "table.csv").read_text().splitlines()
    assert [line.split("-v5")[0] for line in table[1:]] == ["HalfCheetah", "Hopper", "Reacher"]
    assert (out / "table.png").exists()
    for more in (["--condition", "switch"], ["--draw"], ["--env", "CartPole-v1"]):
        with pytest.raises(SystemExit):
            cli.main(["evaluate", "--task", "rollouts", *more, "--out", str(out)])
        assert f"--task rollouts takes no {more[0]}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "--task", "rollouts", "--critics", "adam", "--out", str(out)])
    assert "a critic is written kova, adam:RATE" in capsys.readouterr().err
