"""What is read of stored runs, and what is left out of it."""

import json
import re

import numpy as np
import pytest

from kova_rl.cli import main
from kova_rl.lab.report import DamagedRun, read
from tests.reports import write_run


class TestRead:
    def test_a_run(self, tmp_path):
        write_run(tmp_path, "sac", "Hopper-v5", "adam", 4)
        (run,) = read(tmp_path)
        assert (run.algorithm, run.environment, run.critic, run.seed) == ("sac", "Hopper-v5", "adam", 4)
        assert run.status == "done"
        assert run.seconds == 100
        assert len(run.steps) == len(run.scores) == 60
        assert np.isnan(run.scores[0])
        assert run.final == run.scores[-1]

    def test_status(self, small):
        count = dict.fromkeys(("done", "failed", "unfinished"), 0)
        for run in read(small):
            count[run.status] += 1
        assert count == {"done": 18, "failed": 1, "unfinished": 1}

    def test_a_run_that_succeeded_at_the_second_try_is_done(self, tmp_path):
        path = write_run(tmp_path, "sac", "Hopper-v5", "adam", 4)
        (path / "failure.json").write_text('{"status": "failed", "message": "out of memory"}')
        assert read(tmp_path)[0].status == "done"

    def test_drops_a_torn_last_line(self, tmp_path):
        path = write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0, status="unfinished")
        whole = read(tmp_path)[0]
        with (path / "log.jsonl").open("a") as file:
            file.write('{"step": 99999, "seco')
        with pytest.warns(DamagedRun, match="is torn"):
            torn = read(tmp_path)[0]
        np.testing.assert_array_equal(torn.steps, whole.steps)

    def test_without_a_whole_log_a_run_is_not_done(self, tmp_path):
        path = write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0) / "log.jsonl"
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:7], "{", *lines[7:]]))
        with pytest.warns(DamagedRun, match=r"log\.jsonl: line 8 is torn"):
            (run,) = read(tmp_path)
        assert (run.status, len(run.steps), run.scored) == ("unfinished", 7, False)

    def test_a_last_line_without_its_newline_is_torn(self, tmp_path):
        """As it is for the run that goes on with it."""
        path = write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0) / "log.jsonl"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.warns(DamagedRun, match="line 60 is torn"):
            (run,) = read(tmp_path)
        assert (run.status, len(run.steps)) == ("unfinished", 59)

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("log.jsonl", {"return": "high"}),
            ("log.jsonl", {"step": [1]}),
            ("log.jsonl", {"step": None}),
            ("log.jsonl", {"train/value_loss": {}}),
            ("summary.json", {"final_return": "high"}),
            ("summary.json", {"seconds": [1]}),
            ("summary.json", {"steps": None}),
        ],
    )
    def test_a_bad_value_leaves_out_its_run_alone(self, tmp_path, name, values):
        write_run(tmp_path, "ppo", "Hopper-v5", "kova", 1)
        path = write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0) / name
        lines = path.read_text().splitlines()
        lines[0] = json.dumps(json.loads(lines[0]) | values)
        path.write_text("".join(f"{line}\n" for line in lines))
        where = path if None not in values.values() else path.parent
        with pytest.warns(
            DamagedRun, match=rf"{re.escape(str(where))}: .*(step|steps|return|seconds|value_loss)'"
        ):
            assert [run.seed for run in read(tmp_path)] == [1]

    def test_commands_say_what_is_damaged_in_plain_lines(self, tmp_path, capsys):
        write_run(tmp_path, "ppo", "Hopper-v5", "kova", 1)
        path = write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0) / "summary.json"
        path.write_text("{")
        for command in ("report", "table"):
            main([command, str(tmp_path)])
            out, err = capsys.readouterr()
            (line,) = [line for line in (out + err).splitlines() if "damaged" in line]
            assert line.startswith(f"{path} is damaged (")
            assert line.endswith("): left out")

    def test_a_log_that_changed_later_is_not_trusted(self, tmp_path):
        path = write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0) / "summary.json"
        summary = json.loads(path.read_text())
        size = (path.parent / "log.jsonl").stat().st_size
        path.write_text(json.dumps(summary | {"log_bytes": size}))
        assert read(tmp_path)[0].status == "done"
        path.write_text(json.dumps(summary | {"log_bytes": size + 1}))
        with pytest.warns(DamagedRun, match="has changed since"):
            assert read(tmp_path)[0].status == "unfinished"

    def test_a_damaged_summary_is_none(self, tmp_path):
        (write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0) / "summary.json").write_text("")
        with pytest.warns(DamagedRun, match=r"summary\.json is damaged"):
            assert read(tmp_path)[0].status == "unfinished"

    def test_a_run_without_a_log(self, tmp_path):
        path = write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0, status="unfinished")
        (path / "log.jsonl").unlink()
        assert len(read(tmp_path)[0].steps) == 0

    @pytest.mark.parametrize(
        ("config", "match"),
        [("{", "is damaged"), ("[]", "must be a JSON object"), ("{}", "must have 'algorithm'")],
    )
    def test_leaves_out_a_damaged_config(self, tmp_path, config, match):
        write_run(tmp_path, "ppo", "Hopper-v5", "kova", 1)
        (write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0) / "config.json").write_text(config)
        with pytest.warns(DamagedRun, match=match):
            assert [run.seed for run in read(tmp_path)] == [1]

    def test_says_that_there_are_no_runs(self, tmp_path):
        (tmp_path / "figures").mkdir()
        with pytest.raises(ValueError, match="holds no runs"):
            read(tmp_path)
        with pytest.raises(ValueError, match="there is no directory"):
            read(tmp_path / "nowhere")
