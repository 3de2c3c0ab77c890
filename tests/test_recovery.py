"""What a change cost, and how long it took to make up for it: played by hand on records."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kova_rl import cli
from kova_rl.lab import pack
from kova_rl.lab.figures.changing import compared, table
from kova_rl.lab.figures.recovery import Recovery, recovery
from kova_rl.lab.pack import Folder

RETURNS = [None, 50, 100, 90, 40, 60, 85, 91, 120]
"""At steps 100, 200, ..., 900, of which each has two more episodes; the world changes at 350."""


def folder(returns: list[float | None] = RETURNS, **changes: Any) -> Folder:
    config = {"environment": "kova/ChangingHopper-v0", "critic": "kova", "seed": 3, "n_envs": 7}
    config |= {"environment_options.at": 50, "host.stats_window_size": 4, **changes}
    records = [
        {"step": 100 * i, "return": value, "episodes": 2 * i} for i, value in enumerate(returns, start=1)
    ]
    log = "".join(json.dumps(record) + "\n" for record in records)
    return Folder(Path("run"), {"config.json": json.dumps(config).encode(), "log.jsonl": log.encode()})


def test_a_recovery_played_by_hand() -> None:
    # 350: 8 episodes have ended at the next record, 400; 12 at 600, where the window is new
    assert recovery(folder()) == Recovery(
        *("kova/ChangingHopper-v0", "kova", 3, 350), before=100, after=89, lowest=60, final=120, recovered=450
    )


def test_the_window_that_still_has_the_old_world_does_not_count() -> None:
    # at 400 the mean is 90 of 100 already, but of old episodes
    assert recovery(folder([10, 50, 100, 90, 40, 40, 40])).recovered is None
    assert recovery(folder([10, 50, 100, 90, 95, 96, 97])).recovered == 250


def test_of_a_negative_return_a_tenth_of_its_size_may_be_missing() -> None:
    assert recovery(folder([-300, -200, -100, -200, -200, -111, -110])).recovered == 350


def test_too_few_episodes_have_no_recovery() -> None:
    assert recovery(folder([None, None, None, 90, 40, 60, 85])) is None
    assert recovery(folder(**{"host.stats_window_size": 100})) is None
    assert recovery(folder(**{"environment_options.at": 1_000})) is None


def test_the_step_of_the_change_is_the_tasks_if_the_run_does_not_say() -> None:
    run = folder(n_envs=8)
    config = run.json("config.json")
    del config["environment_options.at"]
    assert recovery(Folder(run.path, {"config.json": json.dumps(config).encode()})) is None  # no records
    config["environment"] = "Hopper-v5"
    with pytest.raises(ValueError, match="Hopper-v5 does not say at which step it changes"):
        recovery(Folder(run.path, {"config.json": json.dumps(config).encode()}))


def rows(critic: str, after: list[float], recovered: list[int | None]) -> list[Recovery]:
    return [
        Recovery("kova/ChangingHopper-v0", critic, seed, 350, 100.0, mean, 0.0, mean, steps)
        for seed, (mean, steps) in enumerate(zip(after, recovered, strict=True))
    ]


def test_the_table_and_the_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    both = rows("adam", [1.0, 2.0, 3.0], [None, None, 50]) + rows("kova", [4.0, 5.0, 2.0], [10, 90, None])
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table(both))
    text = console.export_text()
    assert "adam        3     100  2 [1, 3]      2     1 of 3  never" in text
    assert "kova        3     100  4 [2, 5]      4     2 of 3     90" in text
    more, sooner = compared(both)
    assert more.startswith("P(kova has more return after the change than adam): 0.83 [")  # 3 + 3 + 1.5 of 9
    assert sooner.startswith("P(kova recovers in fewer steps than adam): 0.67 [")  # 3 + 2 + 1 of 9
    assert compared(rows("kova", [1.0], [None])) == []


def test_a_run_that_ends_before_the_change_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "changing", "--scale", "smoke", "--steps", "3000"])
    assert "--steps must be above 3,000, where the world changes" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_and_writes_it_and_again_from_a_packed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco")
    cli.main(["reproduce", "changing", "--scale", "smoke", "--out", str(tmp_path)])
    assert "When the world changes" in capsys.readouterr().out
    found = list(csv.DictReader((tmp_path / "changing.csv").read_text().splitlines()))
    assert [(row["environment"], row["critic"], row["change"]) for row in found] == [
        (f"kova/Changing{task}-v0", critic, "3000")
        for task in ("HalfCheetah", "Hopper")
        for critic in ("adam", "kova")
    ]
    assert found[0]["before"] == found[1]["before"]  # before the first update critics have no say
    assert found[0]["after"] != found[1]["after"]
    written = (tmp_path / "changing.csv").read_bytes()
    (tmp_path / "changing.csv").unlink()
    pack.pack(tmp_path)
    cli.main(["reproduce", "changing", "--draw", "--out", str(tmp_path)])
    assert (tmp_path / "changing.csv").read_bytes() == written
