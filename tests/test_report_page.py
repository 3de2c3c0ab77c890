"""The page and the table in the terminal, from runs that the tests write."""

import html
import io
import json
import re
import shlex
import time

import numpy as np
import pytest
from rich.console import Console

from kova_rl.lab.report import aggregates, overall, read, report, table
from kova_rl.lab.report.curves import mean_std
from kova_rl.lab.report.groups import group
from tests.reports import ENVIRONMENTS, caption, end_at, printed, write_run, write_runs


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
            *("curves_ppo_mean", "curves_ppo_iqm", "policy_ppo", "improvement", "overall", "aggregate"),
            *("profiles", "times"),
        ]
        for name in names:
            assert (small / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
            assert (small / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        captions = re.findall(r"<figcaption>(.*?)</figcaption>", text, re.DOTALL)
        assert all(f"kova report {small}" in c and "3 seeds" in c for c in captions)
        assert "3 seeds, 100,000 steps. Runs left out: 1 failed, 1 unfinished." in captions[0]
        told = "With 3 seeds in one environment, 95% intervals held the truth in"
        assert "Over environments: those that a critic shares with Adam." in captions[3]
        assert all(f"{told} {span}%" in captions[i] for i, span in ((1, "73-76"), (3, "90-97"), (6, "47-75")))
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

    def test_draws_curves_over_the_environments_that_critics_share(self, tmp_path):
        """They end at the interquartile mean of the final scores; a single environment has its own curves."""
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:1], ("kova", "adam"), 4)
        assert overall.overall(group(read(tmp_path))) == []
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[1:2], ("kova", "adam"), 4)
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[2:3], ("adam",), 4)
        write_runs(tmp_path, ("trpo",), ENVIRONMENTS[:1], ("adam",), 4)
        groups = group(read(tmp_path))
        (figure,) = overall.overall(groups)
        assert [panel.title for panel in figure.panels] == ["PPO"]
        assert [key.label for key in figure.keys] == ["kova", "adam"]
        assert "in each of" in figure.caption or "in one environment" in figure.caption
        (dots,) = (panel.draw.args[1] for panel in aggregates.aggregate(groups)[0].panels[:1])
        for (_, key, final, *_), (same, steps, middle, low, high) in zip(
            dots, figure.panels[0].draw.args[0], strict=True
        ):
            assert same == key
            assert steps[-1] == 100_000
            assert middle[-1] == pytest.approx(final, abs=0.05)
            assert (low <= middle + 1e-9).all()
            assert (middle <= high + 1e-9).all()

    def test_draws_no_curves_over_environments_that_have_no_step_in_common(self, tmp_path):
        write_runs(tmp_path, ("ppo",), ENVIRONMENTS[:2], ("kova",), 2)
        short, long = (next(g for g in group(read(tmp_path)) if g.environment == e) for e in ENVIRONMENTS[:2])
        steps, values = short.curves
        short.__dict__["curves"] = steps + 0.25, values
        assert overall.overall([short, long]) == []

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
