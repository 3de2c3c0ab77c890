"""The report, from runs that the tests write."""

import html
import io
import json
import re
import shlex
import shutil
import time
import zlib

import numpy as np
import pytest
from rich.console import Console

from kova_rl.cli import main
from kova_rl.lab.report import DamagedRun, aggregates, curves, read, report, table
from kova_rl.lab.report.curves import mean_std
from kova_rl.lab.report.groups import baseline, group, normalised, shared
from kova_rl.lab.report.summary import EVERYWHERE, best, finals, improvements, overheads

ENVIRONMENTS = ("Swimmer-v5", "Hopper-v5", "HalfCheetah-v5", "Ant-v5", "Walker2d-v5")
LEVEL = {"kova": 1.2, "memoryless": 1.0, "adam": 0.8, "kfac": 0.6}
COST = {"kova": 1.5, "memoryless": 1.4, "adam": 1.0, "kfac": 1.2}


def write_run(directory, algorithm, environment, critic, seed, *, status="done", records=60, **settings):
    """One run of the store, which rises towards a level and scatters by its seed."""
    config = {"algorithm": algorithm, "environment": environment, "critic": critic, "seed": seed}
    config |= {"steps": 100_000, "preset": "paper"} | settings
    path = directory / "_".join(map(str, (algorithm, environment, critic, seed, *settings.values())))
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(zlib.crc32(path.name.encode()))
    scale = {"Swimmer-v5": 60, "Hopper-v5": 2000, "HalfCheetah-v5": 3000}.get(environment, 2500)
    level, lines = scale * (LEVEL[critic] + 0.2 * rng.normal()), []
    for i, step in enumerate(np.linspace(0, config["steps"], records + 1)[1:].astype(int)):
        value = level * (1 - np.exp(-4 * step / config["steps"])) + 0.03 * scale * rng.normal()
        record = {"step": int(step), "seconds": step / 1000, "episodes": i}
        record |= {"return": None if i == 0 else value, "train/value_loss": 1.0, "train/entropy": 2.0}
        lines.append(json.dumps(record))
        if status != "done" and i > records // 2:
            break
    (path / "log.jsonl").write_text("\n".join(lines) + "\n")
    if status == "done":
        summary = {
            "status": "done",
            "steps": config["steps"],
            "seconds": 100.0,
            "processor": COST[critic] * 100,
            "final_return": value,
        }
        (path / "summary.json").write_text(json.dumps(summary))
    if status == "failed":
        failure = {
            "status": "failed",
            "attempts": 2,
            "message": "NaN in <obs>",
            "log": "Traceback\nValueError",
        }
        (path / "failure.json").write_text(json.dumps(failure))
    return path


def write_runs(directory, algorithms, environments, critics, seeds, **options):
    for algorithm in algorithms:
        for environment in environments:
            for critic in critics:
                for seed in range(seeds):
                    write_run(directory, algorithm, environment, critic, seed, **options)


def change(path, **values):
    """Other values in a JSON object."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def end_at(path, value):
    """A final return of our choice."""
    change(path / "summary.json", final_return=value)


def printed(directory):
    console = Console(width=100, record=True, file=io.StringIO())
    table(directory, console)
    return console.export_text()


def caption(directory, figure):
    """Of a figure on the page."""
    page = report(directory).read_text().split(f'<figure id="{figure}"')[1]
    return page.split("<figcaption>")[1].split("</figcaption>")[0]


@pytest.fixture
def small(tmp_path):
    """Two environments, three critics, three seeds, and runs that failed or are not finished."""
    write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("kova", "memoryless", "adam"), 3)
    write_run(tmp_path, "ppo", "Swimmer-v5", "kova", 9, status="failed")
    write_run(tmp_path, "ppo", "Swimmer-v5", "adam", 9, status="unfinished")
    (tmp_path / "figures").mkdir()
    return tmp_path


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


class TestGroups:
    def test_labels_tell_the_settings_that_vary(self, tmp_path):
        for eta in (0.1, 0.01):
            write_runs(tmp_path, ("ppo",), ("Swimmer-v5",), ("kova",), 2, eta=eta, device="cpu")
        write_runs(tmp_path, ("ppo",), ("Swimmer-v5",), ("adam",), 2, eta=None)
        groups = group(read(tmp_path))
        assert [g.label for g in groups] == ["kova eta=0.01", "kova eta=0.1", "adam"]
        assert [len(g.runs) for g in groups] == [2, 2, 2]

    def test_settings_of_each_environment_are_no_label(self, tmp_path):
        """The paper has another eta in each environment."""
        write_runs(tmp_path, ("ppo",), ("Swimmer-v5",), ("kova",), 2, eta=0.01)
        write_runs(tmp_path, ("ppo",), ("Hopper-v5",), ("kova",), 2, eta=0.1)
        assert {g.label for g in group(read(tmp_path))} == {"kova"}

    def test_the_path_of_a_preset_tells_no_groups_apart(self, tmp_path):
        for seed, preset in enumerate(("mine.toml", "./mine.toml")):
            change(write_run(tmp_path, "ppo", "Hopper-v5", "kova", seed) / "config.json", preset=preset)
        (found,) = group(read(tmp_path))
        assert (found.label, len(found.runs)) == ("kova", 2)

    def test_a_seed_counts_once(self, tmp_path):
        for preset, status in (("a", "failed"), ("b", "done"), ("c", "unfinished")):
            write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0, preset=preset, status=status)
        (found,) = group(read(tmp_path))
        assert [run.status for run in found.runs] == ["done"]

    def test_environments_that_critics_share(self):
        assert shared({"kova": "A", "adam": "AB"}) == (["kova", "adam"], ["A"])
        assert shared({"kova": "A", "adam": "BC", "kfac": "CB"}) == (["adam", "kfac"], ["B", "C"])
        assert shared({"kova": "A", "adam": "B"}) == (["kova"], ["A"])
        assert shared({"kova": "", "adam": "B"}) == (["adam"], ["B"])
        assert shared({"kova": ""}) == ([], [])

    def test_curves_begin_where_every_run_has_a_return(self, small):
        for g in group(read(small)):
            steps, values = g.curves
            assert values.shape == (3, len(steps))
            assert np.isfinite(values).all()
            assert steps[-1] == 100_000
            np.testing.assert_allclose(values[:, -1], g.final)

    def test_scores_are_from_0_to_1_in_each_environment(self, small):
        scores = normalised(group(read(small)))
        for environment in ENVIRONMENTS[:2]:
            values = np.concatenate([tasks[environment] for tasks in scores.values()])
            assert (values.min(), values.max()) == (0, 1)


class TestSummary:
    def test_finals_leave_out_what_is_not_done(self, small):
        rows = {(row.group.environment, row.group.label): row for row in finals(group(read(small)))}
        row = rows["Swimmer-v5", "kova"]
        assert (len(row.group.final), row.group.count("failed")) == (3, 1)
        assert row.mean == pytest.approx(row.group.final.mean())
        assert row.std == pytest.approx(np.std(row.group.final, ddof=1))
        assert row.low <= row.iqm <= row.high

    def test_improvement_is_against_the_best_adam(self, tmp_path):
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("kova",), 4)
        for lr in (1e-3, 1e-4):
            write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("adam",), 4, lr=lr)
        groups = group(read(tmp_path))
        kova = next(g for g in groups if (g.environment, g.critic) == ("Hopper-v5", "kova"))
        adam = baseline(groups, kova)
        assert adam is not None
        rows = improvements(groups)
        assert [row.environment for row in rows] == ["Hopper-v5", "Swimmer-v5", EVERYWHERE]
        wins = (kova.final[:, None] > adam.final).mean()
        assert rows[0].probability == pytest.approx(wins)
        assert rows[2].probability == pytest.approx((rows[0].probability + rows[1].probability) / 2)

    def test_improvement_counts_the_failed_runs_of_both_sides(self, tmp_path):
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("kova", "adam"), 3)
        for seed in range(10, 12):
            write_run(tmp_path, "ppo", "Hopper-v5", "kova", seed, status="failed")
        write_run(tmp_path, "ppo", "Hopper-v5", "adam", 12, status="failed")
        write_run(tmp_path, "ppo", "Ant-v5", "kova", 13, status="failed")
        rows = {row.environment: row for row in improvements(group(read(tmp_path)))}
        assert {name: row.failed for name, row in rows.items()} == {
            "Hopper-v5": 3,
            "Swimmer-v5": 0,
            EVERYWHERE: 4,
        }
        assert "(2 environments, 3 seeds, 4 failed runs left out)" in report(tmp_path).read_text()
        better = printed(tmp_path).split("improvement on Adam")[1]
        assert "failed" in better.split("─")[0]
        for figure in ("improvement", "aggregate", "profiles"):
            assert "3 seeds" in caption(tmp_path, figure)
            assert "Runs left out: 4 failed." in caption(tmp_path, figure)

    @pytest.mark.parametrize(
        ("kova", "shown"),
        [(2.0, "1.00 [0.50, 1.00]"), (0.0, "0.00 [0.00, 0.50]"), (1.0, "0.50 [0.15, 0.85]")],
    )
    def test_all_pairs_won_or_lost_leave_doubt(self, tmp_path, kova, shown):
        for seed in range(3):
            end_at(write_run(tmp_path, "ppo", "Hopper-v5", "kova", seed), kova)
            end_at(write_run(tmp_path, "ppo", "Hopper-v5", "adam", seed), 1.0)
        assert shown in printed(tmp_path)
        value, span = shown.split(" ", 1)
        text = report(tmp_path).read_text()
        assert f"<b>{value}</b> {span} (Hopper-v5, 3 seeds)" in text
        assert f">{shown}</td>" in text

    def test_improvement_is_against_runs_of_as_many_steps(self, tmp_path):
        for steps in (100_000, 50_000):
            write_runs(tmp_path, ("ppo",), ("Hopper-v5",), ("kova",), 2, steps=steps)
        write_runs(tmp_path, ("ppo",), ("Hopper-v5",), ("adam",), 2, steps=50_000)
        (row,) = improvements(group(read(tmp_path)))
        assert row.label == "kova steps=50000"

    def test_the_best_of_several_settings(self, tmp_path):
        for eta in (0.1, 0.01, 0.001):
            write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("kova",), 2, eta=eta)
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("adam",), 2)
        ends = finals(group(read(tmp_path)))
        rows = best(ends)
        assert [(row.first.group.environment, row.first.group.critic, row.tried) for row in rows] == [
            ("Hopper-v5", "kova", 3),
            ("Swimmer-v5", "kova", 3),
        ]
        hopper = [e.iqm for e in ends if (e.group.environment, e.group.critic) == ("Hopper-v5", "kova")]
        assert [rows[0].first.iqm, rows[0].second.iqm] == sorted(hopper)[:0:-1]
        assert f"{rows[0].first.group.label} " in printed(tmp_path).split("best settings")[1]
        assert "Best settings" in report(tmp_path).read_text()

    def test_overhead_is_of_a_step_beside_the_papers(self, tmp_path):
        write_run(tmp_path, "sac", "Ant-v5", "kova", 0)
        write_run(tmp_path, "sac", "Ant-v5", "adam", 0)
        (row,) = overheads(group(read(tmp_path)))
        assert row.percent == pytest.approx(50)
        assert row.milliseconds == pytest.approx(1.5)
        assert row.paper == 482

    def test_without_processor_times_there_is_no_overhead(self, tmp_path):
        """Those of the clock would tell what else the machine did."""
        for critic in ("kova", "adam"):
            change(write_run(tmp_path, "ppo", "Ant-v5", critic, 0) / "summary.json", processor=None)
        assert overheads(group(read(tmp_path))) == []

    def test_overhead_is_of_the_steps_that_were_made(self, tmp_path):
        change(write_run(tmp_path, "ppo", "Ant-v5", "kova", 0) / "summary.json", steps=150_000)
        write_run(tmp_path, "ppo", "Ant-v5", "adam", 0)
        (row,) = overheads(group(read(tmp_path)))
        assert (row.milliseconds, row.adam) == pytest.approx((1.0, 1.0))

    def test_another_option_is_another_environment(self, tmp_path):
        for critic, length in (("kova", 20), ("adam", 10)):
            write_run(tmp_path, "ppo", "Own-v0", critic, 0, **{"environment_options.length": length})
        groups = group(read(tmp_path))
        assert {g.environment for g in groups} == {"Own-v0 length=20", "Own-v0 length=10"}
        assert improvements(groups) == []

    def test_a_single_seed_has_no_interval(self, tmp_path):
        write_run(tmp_path, "sac", "Ant-v5", "kova", 0)
        write_run(tmp_path, "sac", "Ant-v5", "adam", 0)
        groups = group(read(tmp_path))
        assert np.isnan(finals(groups)[0].low)
        assert np.isnan(finals(groups)[0].std)
        assert printed(tmp_path).count("±") == 1, "in the heading alone"
        assert np.isnan(improvements(groups)[0].low)
        text = report(tmp_path).read_text()
        assert "One seed has no interval." in text
        assert "nan" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)

    def test_one_seed_is_not_headlined_as_a_probability(self, tmp_path):
        for critic, final in (("kova", 20.0), ("adam", 10.0)):
            end_at(write_run(tmp_path, "ppo", "Hopper-v5", critic, 0), final)
        head = report(tmp_path).read_text().split("<nav")[0]
        assert "ended above Adam (Hopper-v5, 1 seed). One seed cannot tell a difference from chance" in head
        assert "with probability" not in head

    def test_one_seed_is_drawn_once(self, tmp_path):
        """Mean and interquartile mean of a run are the run, and its score is 0 or 1 by definition."""
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:1], ("kova", "adam"), 1)
        names = re.findall(r'<figure id="([^"]+)"', report(tmp_path).read_text())
        assert names == ["curves_ppo_mean", "policy_ppo", "improvement", "times"]
        assert "One seed has no band." in caption(tmp_path, "curves_ppo_mean")

    def test_settings_of_a_critic_have_colours_of_their_own(self, tmp_path):
        for eta in (0.1, 0.01, 0.001):
            write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0, eta=eta)
        (figure,) = curves.curves(group(read(tmp_path)))
        assert len({key.colour for key in figure.keys}) == 3
        page = report(tmp_path).read_text()
        drawn = page.split('<figure id="curves_ppo_mean"')[1].split("</figure>")[0]
        dots = page.split('id="finals"')[1].split("</table>")[0]
        for part in (drawn.split('class="panels"')[0], drawn.split('class="panels"')[1], dots):
            assert set(re.findall(r"var\((--kova[^)]*)\)", part)) == {"--kova", "--kova-dark", "--kova-light"}
        named = {name for part in (drawn, dots) for name in re.findall(r"var\((--[^)]*)\)", part)}
        assert all(f"{name}:" in page for name in named)


class TestTable:
    def test_prints_the_tables(self, small):
        text = printed(small)
        for words in (
            "PPO: final returns",
            "With 3 seeds",
            "improvement on Adam",
            "+50%",
            "+48%",
            "NaN in <obs>",
        ):
            assert words in text
        assert "unfinished ppo_Swimmer-v5_adam_9: step 53,333 of 100,000" in text


class TestReport:
    def test_is_one_page_and_its_figures(self, small):
        path = report(small)
        text = path.read_text()
        assert path == small / "report.html"
        assert not re.search(r'(src|href)="(https?:)?//', text)
        names = re.findall(r'<figure id="([^"]+)"', text)
        assert names == [
            *("curves_ppo_mean", "curves_ppo_iqm", "policy_ppo", "improvement", "aggregate", "profiles"),
            "times",
        ]
        for name in names:
            assert (small / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
            assert (small / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        captions = re.findall(r"<figcaption>(.*?)</figcaption>", text, re.DOTALL)
        assert all(f"kova report {small}" in c and "3 seeds" in c for c in captions)
        assert "3 seeds, 100,000 steps. Runs left out: 1 failed, 1 unfinished." in captions[0]
        told = "With 3 seeds in one environment, 95% intervals held the truth in"
        assert "Over environments: those that a critic shares with Adam." in captions[3]
        assert all(f"{told} {span}%" in captions[i] for i, span in ((1, "73-76"), (3, "90-97"), (5, "47-75")))
        assert "NaN in &lt;obs&gt;" in text

    def test_draws_what_the_critic_does_to_the_policy(self, tmp_path):
        """Hosts log the entropy under two names, and some quantities not at all."""
        for critic in ("kova", "adam"):
            path = write_run(tmp_path, "ppo", "Swimmer-v5", critic, 0) / "log.jsonl"
            records = [json.loads(line) for line in path.read_text().splitlines()]
            for i, record in enumerate(records):
                record["train/policy_gradient_loss"] = -0.01 * i
                if critic == "adam":
                    record["train/entropy_loss"] = -record.pop("train/entropy")
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        for g in group(read(tmp_path)):
            assert list(g.runs[0].logged) == ["policy entropy", "policy loss", "value loss"]
            _, values = g.curves_of("policy entropy")
            assert (values == 2).all()
            assert g.curves_of("explained variance")[1].size == 0
        drawn = report(tmp_path).read_text().split('<figure id="policy_ppo"')[1].split("</figure>")[0]
        panels = re.findall(r'<svg role="img" aria-label="([^"]+)"', drawn)
        assert panels == [f"Swimmer-v5: {name}" for name in ("policy entropy", "policy loss", "value loss")]

    def test_pools_only_the_environments_that_all_critics_have(self, tmp_path):
        """Adam is good where kova did not run: it must not count for it."""
        for seed in range(3):
            end_at(write_run(tmp_path, "ppo", "Hopper-v5", "kova", seed), 10.0 + seed)
            end_at(write_run(tmp_path, "ppo", "Hopper-v5", "adam", seed), 10.0 + seed)
            end_at(write_run(tmp_path, "ppo", "Swimmer-v5", "adam", seed), 10.0 + seed)
            end_at(write_run(tmp_path, "ppo", "Swimmer-v5", "kfac", seed), seed)
        groups = [g for g in group(read(tmp_path)) if g.critic != "kfac"]
        (figure,) = aggregates.aggregate(groups)
        dots = figure.panels[0].draw.args[1]
        assert dots[0][2:] == dots[1][2:]
        assert "PPO: Hopper-v5; left out: Swimmer-v5 (no final return of kova)." in figure.caption
        (figure,) = aggregates.profiles(groups)
        ((_, kova, *_), (_, adam, *_)) = figure.panels[0].draw.args[0]
        np.testing.assert_array_equal(kova, adam)
        assert "PPO: Hopper-v5; left out: Swimmer-v5 (no final return of kova)." in figure.caption

    def test_leaves_out_a_critic_that_shares_no_environment(self, tmp_path):
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("kova", "adam"), 2)
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[3:4], ("memoryless",), 2)
        (figure,) = aggregates.aggregate(group(read(tmp_path)))
        assert [key.label for key in figure.keys] == ["kova", "adam"]
        left = "left out: Ant-v5 (no final return of kova, adam), memoryless (no final return there)."
        assert f"PPO: Hopper-v5, Swimmer-v5; {left}" in figure.caption

    def test_critics_stand_in_one_order(self, tmp_path):
        """Whatever the first environment has."""
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:1], ("memoryless", "kova", "adam"), 2)
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[3:4], ("adam",), 2)
        (figure,) = aggregates.aggregate(group(read(tmp_path)))
        assert figure.panels[0].draw.args[0] == ["kova", "memoryless", "adam"]
        assert [key.label for key in figure.keys] == ["kova", "memoryless", "adam"]

    @pytest.mark.parametrize(
        ("count", "where"), [(1, "one environment"), (4, "one environment"), (5, "each of 5")]
    )
    def test_quotes_no_more_environments_than_there_are(self, tmp_path, count, where):
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:count], ("kova", "adam"), 3)
        groups = group(read(tmp_path))
        for (figure,) in (aggregates.aggregate(groups), aggregates.profiles(groups)):
            assert f"With 3 seeds in {where}" in figure.caption

    def test_says_why_runs_are_left_out(self, tmp_path):
        write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0)
        end_at(write_run(tmp_path, "ppo", "Hopper-v5", "kova", 1), None)
        write_run(tmp_path, "ppo", "Swimmer-v5", "kova", 2, status="failed")
        assert "Runs left out: 1 failed, 1 without a return." in caption(tmp_path, "curves_ppo_mean")

    def test_bands_are_of_the_sample_standard_deviation(self):
        values = np.array([[1.0, 2.0], [3.0, 2.0]])
        np.testing.assert_allclose(mean_std(values), [[2, 2], [2 - 2**0.5, 2], [2 + 2**0.5, 2]])
        np.testing.assert_array_equal(mean_std(values[:1]), [values[0]] * 3)

    def test_its_command_can_be_pasted(self, tmp_path):
        directory = tmp_path / "r 15"
        write_run(directory, "ppo", "Hopper-v5", "kova", 0)
        (command,) = re.findall(r"Made by <code>(.*?)</code></p>", report(directory).read_text())
        assert shlex.split(html.unescape(command)) == ["kova", "report", str(directory)]

    def test_names_the_commands_that_made_the_runs(self, small):
        (small / "commands.txt").write_text("kova sweep <a>.toml\n")
        assert "<pre>kova sweep &lt;a&gt;.toml</pre>" in report(small).read_text()

    def test_ids_are_unique_and_references_resolve(self, small):
        text = report(small).read_text()
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(ids)

    def test_is_the_same_again(self, small):
        first = report(small).read_bytes()
        pictures = {path.name: path.read_bytes() for path in (small / "figures").iterdir()}
        assert report(small).read_bytes() == first
        assert {path.name: path.read_bytes() for path in (small / "figures").iterdir()} == pictures

    def test_without_a_finished_run(self, tmp_path):
        write_run(tmp_path, "ppo", "Hopper-v5", "kova", 0, status="unfinished")
        write_run(tmp_path, "ppo", "Hopper-v5", "kova", 1, status="failed")
        assert "Nothing to draw yet" in report(tmp_path).read_text()
        table(tmp_path, Console(file=io.StringIO()))

    def test_500_runs_take_seconds(self, tmp_path):
        write_runs(
            tmp_path, ("ppo", "trpo", "sac"), ENVIRONMENTS, ("kova", "memoryless", "adam"), 11, records=200
        )
        write_runs(tmp_path, ("acktr",), ENVIRONMENTS, ("kfac",), 1, records=200)
        assert len(list(tmp_path.iterdir())) == 500
        began = time.process_time()  # of this process alone: the machine may be busy
        report(tmp_path)
        assert time.process_time() - began < 60


@pytest.fixture(scope="module")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        # A container's root has no sandbox, and its /dev/shm is small.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


def brightness(colour):
    return np.mean([int(x) for x in re.findall(r"\d+", colour)])


class TestInABrowser:
    @pytest.fixture
    def opened(self, chromium, small):
        path = report(small)
        contexts = []

        def open_(**options):
            contexts.append(chromium.new_context(**options))
            page = contexts[-1].new_page()
            page.problems = []
            page.on("console", lambda message: page.problems.append(message.text))
            page.on("pageerror", lambda error: page.problems.append(str(error)))
            page.on("requestfailed", lambda request: page.problems.append(request.url))
            page.goto(path.as_uri())
            return page

        yield open_
        for context in contexts:
            context.close()

    def test_loads_without_errors_and_has_every_figure(self, opened):
        page = opened()
        assert page.problems == []
        figures = page.locator("figure").all()
        assert len(figures) == 7
        for figure in figures:
            panels = figure.locator(".panels svg").all()
            assert panels
            for panel in panels:
                box = panel.bounding_box()
                assert box["width"] > 250
                assert box["height"] > 150
                assert panel.locator("path").count() > 5

    def test_the_table_sorts_by_mouse_and_by_keyboard(self, opened):
        page = opened()

        def means():
            return [
                float(cell.get_attribute("data-value"))
                for cell in page.locator("#finals td:nth-child(4)").all()
            ]

        head = page.locator("#finals th:nth-child(4)")
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        assert means() == sorted(means(), reverse=True)
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        assert means() == sorted(means())
        page.locator("#finals th:nth-child(3) button").click()
        labels = page.locator("#finals td:nth-child(3)").all_inner_texts()
        assert labels == sorted(labels)
        assert head.get_attribute("aria-sort") is None
        assert page.problems == []

    def test_the_table_filters(self, opened):
        page = opened()
        page.get_by_label("Filter").first.fill("hopper ADAM")
        assert page.locator("#finals tbody tr:visible").count() == 1
        assert page.locator("[data-for=finals] output").inner_text() == "1 of 6"
        page.get_by_label("Filter").first.fill("")
        assert page.locator("#finals tbody tr:visible").count() == 6

    def test_is_light_and_dark(self, opened):
        colours = {}
        for scheme in ("light", "dark"):
            page = opened(color_scheme=scheme)
            style = "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
            colours[scheme] = page.locator("body").evaluate(style)
            ticks = page.locator(".panels svg text").first
            assert ticks.evaluate("e => getComputedStyle(e).fill") == colours[scheme][1]
        (paper, ink), (dark_paper, dark_ink) = (
            map(brightness, colours[scheme]) for scheme in ("light", "dark")
        )
        assert paper > 200 > 60 > ink
        assert dark_ink > 200 > 60 > dark_paper

    @pytest.mark.parametrize("environments", [1, 2, 4])
    def test_few_panels_fill_the_page(self, chromium, tmp_path, environments):
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:environments], ("kova", "adam"), 2)
        write_runs(tmp_path, ("sac",), ENVIRONMENTS[:1], ("kova", "adam"), 1)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(report(tmp_path).as_uri())
        for section in ("curves", "policy", "improvement", "environments"):
            for row in page.locator(f"#section-{section} .figures").all():
                boxes = [part.bounding_box() for part in row.locator(".panels svg, figcaption").all()]
                right = max(box["x"] + box["width"] for box in boxes)
                assert right > 1000, f"{section} ends at {right} of 1280"
        page.close()

    def test_a_phone_shows_the_probability_and_says_that_tables_scroll(self, opened):
        page = opened(viewport={"width": 400, "height": 800})
        box = page.locator("#improvements tbody td:nth-child(4)").first.bounding_box()
        assert page.locator("#improvements thead th:nth-child(4)").inner_text().startswith("P(better")
        assert box["x"] + box["width"] <= 400
        assert page.locator("[data-for=improvements] .hint").is_visible()
        assert not opened(viewport={"width": 1280, "height": 800}).locator(".hint:visible").count()

    def test_fits_a_phone(self, opened):
        page = opened(viewport={"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.problems == []
