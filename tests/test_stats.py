"""Statistics over seeds, against rliable, scipy and closed forms."""

import math

import numpy as np
import pytest
from scipy import optimize as scipy_optimize
from scipy import stats as scipy_stats

from kova_rl.lab import coverage, stats

TASK = np.arange(3)[None]
X = np.sin(1.7 * np.arange(8)[:, None] + TASK) + 0.3 * TASK
"""8 runs x 3 tasks."""
Y = np.round(np.cos(2.3 * np.arange(5)[:, None] + TASK), 1)
Y[0] = X[0]
"""5 runs x 3 tasks, with a tie in each."""
THRESHOLDS = np.linspace(-1, 1.5, 6)

# rliable 1.2.0 with arch 7.2.0, numpy 2.4.6, scipy 1.17.1, pandas 2.3.3, after numpy.random.seed(0):
#   metrics.aggregate_iqm(X), .aggregate_iqm(Y), .probability_of_improvement(X, Y)
#   library.get_interval_estimates of the first two, 20,000 resamples
#   library.create_performance_profile({"x": X}, THRESHOLDS, reps=5000)
RLIABLE_IQM = (0.3221195796770036, -0.011111111111111096)
RLIABLE_IQM_INTERVALS = ((-0.0737535, 0.73100192), (-0.52222222, 0.52229004))
RLIABLE_IMPROVEMENT = 0.6291666666666668
RLIABLE_PROFILE = (1, 0.79166667, 0.625, 0.41666667, 0.25, 0.08333333)
RLIABLE_PROFILE_BAND = (
    (1, 0.625, 0.45833333, 0.25, 0.125, 0),
    (1, 0.91666667, 0.79166667, 0.625, 0.41666667, 0.20833333),
)


class TestRliable:
    def test_point_estimates(self):
        assert (stats.iqm(X.ravel()), stats.iqm(Y.ravel())) == pytest.approx(RLIABLE_IQM, rel=1e-14)
        assert stats.improvement(list(X.T), list(Y.T)) == pytest.approx(RLIABLE_IMPROVEMENT, rel=1e-14)
        assert stats.profile(list(X.T), THRESHOLDS) == pytest.approx(RLIABLE_PROFILE)

    def test_intervals_up_to_the_noise_of_resampling(self):
        for scores, ends in zip((X, Y), RLIABLE_IQM_INTERVALS, strict=True):
            assert stats.interval(list(scores.T), draws=20_000) == pytest.approx(ends, abs=0.02)
        # A step of a run is 1/24: ends of the band may differ by one.
        band = stats.profile_band(list(X.T), THRESHOLDS, draws=20_000)
        np.testing.assert_allclose(band, RLIABLE_PROFILE_BAND, atol=1 / 24 + 1e-8)


class TestIqm:
    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 16, 33])
    def test_is_scipys_trimmed_mean(self, count):
        values = np.random.default_rng(count).lognormal(size=(count, 6))
        expected = scipy_stats.trim_mean(values, 0.25, axis=0)
        np.testing.assert_allclose(stats.iqm(values, axis=0), expected, rtol=1e-13)
        np.testing.assert_allclose(stats.iqm(values.T), expected, rtol=1e-13)


class TestImprovementInterval:
    @pytest.mark.parametrize("tasks", [1, 3])
    def test_ends_where_the_equation_says(self, tasks):
        """Of the docstring, solved by scipy."""
        new, old = list(X.T[:tasks]), list(Y.T[:tasks])
        share = stats.improvement(new, old)

        def equation(theta):
            bracket = 1 + (6.5 - 1) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
            return (share - theta) ** 2 - 1.959963985**2 / tasks * theta * (1 - theta) / (8 * 5) * bracket

        ends = scipy_optimize.brentq(equation, 0, share), scipy_optimize.brentq(equation, share, 1)
        assert stats.improvement_interval(new, old) == pytest.approx(ends, abs=1e-8)

    def test_all_pairs_won_leave_doubt_that_shrinks_with_the_runs(self):
        lows = []
        for count in (1, 3, 10, 100):
            low, high = stats.improvement_interval([np.full(count, 2.0)], [np.ones(count)])
            assert high == pytest.approx(1, abs=1e-12)
            lows.append(low)
        assert lows == sorted(lows)
        assert lows[0] < 0.25
        assert lows[-1] > 0.95

    def test_is_mirrored_when_the_sides_change(self):
        there = stats.improvement_interval(list(X.T), list(Y.T))
        back = stats.improvement_interval(list(Y.T), list(X.T))
        assert there == pytest.approx((1 - back[1], 1 - back[0]))

    def test_refuses_what_is_no_level(self):
        with pytest.raises(ValueError, match="level must be in"):
            stats.improvement_interval([[1.0, 2.0]], [[1.0]], level=95)


class TestImprovement:
    def test_is_mann_whitneys_u_over_all_pairs(self):
        u = scipy_stats.mannwhitneyu(X[:, 1], Y[:, 1], alternative="greater").statistic
        assert stats.improvement([X[:, 1]], [Y[:, 1]]) == pytest.approx(u / 40)

    def test_ties_count_half_and_sides_add_up_to_one(self):
        assert stats.improvement([[1.0, 1.0]], [[1.0]]) == 0.5
        there, back = stats.improvement(list(X.T), list(Y.T)), stats.improvement(list(Y.T), list(X.T))
        assert there + back == pytest.approx(1)

    def test_tasks_count_alike_however_many_runs_they_have(self):
        assert stats.improvement([[1.0], [0.0] * 9], [[0.0], [1.0] * 9]) == 0.5

    def test_needs_the_same_tasks(self):
        with pytest.raises(ValueError, match="got 1 and 2 tasks"):
            stats.improvement([[1.0]], [[1.0], [2.0]])


class TestInterval:
    def test_of_the_mean_is_the_normal_one_for_many_runs(self):
        values = np.random.default_rng(0).normal(size=2000)
        half = 1.96 * values.std() / math.sqrt(len(values))
        expected = (values.mean() - half, values.mean() + half)
        assert stats.interval([values], np.mean, draws=4000) == pytest.approx(expected, abs=0.003)

    def test_is_stratified(self):
        """Tasks far apart: mixing their runs would give a wide interval."""
        low, high = stats.interval([[0.0, 0.1, 0.2], [100.0, 100.1, 100.2]], np.mean)
        assert 50.0 <= low <= high <= 50.2

    def test_of_curves_is_that_of_each_point(self):
        values = np.random.default_rng(1).normal(size=(6, 4))
        low, high = stats.interval([values])
        for i, column in enumerate(values.T):
            assert stats.interval([column]) == (low[i], high[i])

    def test_is_deterministic_given_a_seed(self):
        assert stats.interval(list(X.T)) == stats.interval(list(X.T))
        assert stats.interval(list(X.T)) != stats.interval(list(X.T), seed=1)

    def test_tasks_may_have_different_numbers_of_runs(self):
        low, high = stats.interval([[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
        assert 1 <= low <= high <= 4

    @pytest.mark.parametrize("tasks", [[], [[]], [[1.0], []], [1.0]])
    def test_refuses_tasks_without_runs(self, tasks):
        with pytest.raises(ValueError, match="one array a task"):
            stats.interval(tasks)

    def test_refuses_what_is_no_score_or_level(self):
        with pytest.raises(ValueError, match="must be finite"):
            stats.interval([[1.0, math.nan]])
        with pytest.raises(ValueError, match="level must be in"):
            stats.interval([[1.0, 2.0]], level=95)


def simulated(kind, runs, environments=1):
    """Lowest and highest of what a caption says, in percent."""
    low, _, high = coverage.SIMULATED[kind][environments].split()[runs - 2].partition("-")
    return float(low), float(high or low)


class TestCoverage:
    @pytest.mark.parametrize("runs", [3, 5, 8, 16])
    @pytest.mark.parametrize("shape", coverage.SHAPES)
    def test_of_the_iqm_is_as_the_captions_say(self, runs, shape):
        low, high = simulated("iqm", runs) if runs < 16 else (93, 97)
        found = 100 * coverage.of_statistic(stats.iqm, shape, runs, draws=500)
        assert low - 1.5 <= found <= high + 1.5

    def test_of_three_runs_has_a_closed_form(self):
        """Of 3 even values, the interval ends close to the extremes, which miss the centre 1 time in 4."""
        assert coverage.of_statistic(np.mean, "normal", 3) == pytest.approx(0.75, abs=0.03)

    @pytest.mark.parametrize("environments", [1, 5])
    @pytest.mark.parametrize("runs", [3, 16])
    @pytest.mark.parametrize("ahead", coverage.AHEAD)
    def test_of_improvement_is_as_the_captions_say(self, runs, ahead, environments):
        low, high = simulated("improvement", runs, environments)
        assert low - 3 <= 100 * coverage.of_improvement(runs, environments, ahead, repeats=500) <= high + 3

    @pytest.mark.parametrize("environments", [1, 5])
    @pytest.mark.parametrize("share", coverage.SHARES)
    def test_of_profiles_is_as_the_captions_say(self, share, environments):
        low, high = simulated("profile", 8, environments)
        found = 100 * coverage.of_statistic(np.mean, share, 8, environments, draws=500)
        assert low - 2 <= found <= high + 2

    def test_the_notes(self):
        assert coverage.note([16]) == coverage.note([40, 16]) == coverage.note([]) == ""
        assert "With 3 seeds in one environment, 95% intervals held the truth in 73-76%" in coverage.note(
            [8, 3]
        )
        assert all(coverage.note([n], kind) for n in range(1, 16) for kind in coverage.SIMULATED)

    def test_a_note_on_one_seed_is_not_all_that_there_is_to_say(self):
        assert coverage.note([1, 3]) == f"{coverage.note([1])} {coverage.note([3])}"

    def test_sixteen_seeds_that_fall_short_say_so(self):
        assert coverage.note([40], "improvement") == ""
        assert "84-95%" in coverage.note([16], "profile")
        assert coverage.note([16], "profile", 5) == ""

    @pytest.mark.parametrize(
        ("count", "where"), [(1, "one"), (2, "one"), (4, "one"), (5, "each of 5"), (9, "each")]
    )
    def test_a_note_is_of_no_more_environments_than_there_are(self, count, where):
        for kind in ("iqm", "profile"):
            assert f"With 3 seeds in {where} " in coverage.note([3], kind, count)

    def test_the_table(self, capsys, monkeypatch):
        monkeypatch.setattr(coverage, "simulate", lambda runs, *kind: [("normal", runs / 100)])
        coverage.main()
        out = capsys.readouterr().out
        assert "3.0 │ 5.0 │ 8.0 │ 16.0" in out
        assert all(f"│ {name} " in out for name in coverage.KINDS.values())
