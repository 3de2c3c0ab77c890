"""What the report says in numbers."""

import re

import numpy as np
import pytest

from kova_rl.lab.report import curves, read, report
from kova_rl.lab.report.groups import baseline, group
from kova_rl.lab.report.summary import EVERYWHERE, best, finals, improvements, overheads
from tests.reports import ENVIRONMENTS, caption, change, end_at, printed, write_run, write_runs


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
