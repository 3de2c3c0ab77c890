"""Shared set-up: one thread, a fixed seed, and a fixed hypothesis profile."""

import pytest
import torch
from hypothesis import settings

from tests.reports import small  # noqa: F401 (a fixture of several files)

torch.set_num_threads(1)
settings.register_profile("kova", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("kova")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands make their runs here, where a process for each is not what is tested."""
    from tests.here import Here

    monkeypatch.setattr("kova_rl.lab.backends.Processes", Here)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
