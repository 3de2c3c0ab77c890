"""Runs of one setting over its seeds."""

import numpy as np

from kova_rl.lab.report import read
from kova_rl.lab.report.groups import group, normalised, shared
from tests.reports import ENVIRONMENTS, change, write_run, write_runs


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

    def test_fields_that_only_one_part_has_are_no_label(self, tmp_path):
        """Nor are those of a part that is the same in all; the part's name says them."""
        for eps in (1e-5, 1e-3):
            write_run(
                tmp_path, "ppo", "Hopper-v5", "kova", 0, observation="max-ratio", **{"observation.eps": eps}
            )
        write_run(
            tmp_path, "ppo", "Hopper-v5", "memoryless", 0, observation="max-ratio", **{"observation.eps": 1.0}
        )
        for critic in ("kova", "memoryless"):
            write_run(tmp_path, "ppo", "Hopper-v5", critic, 0, observation="batch-size")
        labels = [g.label for g in group(read(tmp_path))]
        assert labels == [
            "kova observation=batch-size",
            "kova observation=max-ratio observation.eps=0.001",
            "kova observation=max-ratio observation.eps=1e-05",
            "memoryless observation=batch-size",
            "memoryless observation=max-ratio",
        ]

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
