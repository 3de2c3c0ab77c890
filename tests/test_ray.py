"""Sweeps on Ray: the same directories, also after a worker or a node was lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kova_rl.lab.run import make as train
from kova_rl.lab.store import Store
from kova_rl.lab.sweep.supervise import Sweep
from tests.runs import outcome, ppo, stored
from tests.test_sweep import faulty

ray = pytest.importorskip("ray")
pytest.importorskip("stable_baselines3")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

from kova_rl.lab.backends.on_ray import RayTasks  # noqa: E402


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, with a core each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_worker_of_ray_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    runs = [ppo(), faulty("Killed-v0", 100, marker), faulty("Raises-v0", 50, tmp_path / "no")]
    marker.touch()
    for run in runs[:2]:
        train(run, tmp_path / "whole")
    marker.unlink()
    sweep = Sweep(runs, tmp_path / "runs", retries=1)
    sweep.supervise(RayTasks(sweep.root, slots=2))
    assert [(entry.status, entry.attempts) for entry in sweep.entries] == [
        ("done", 1),
        ("done", 2),
        ("failed", 2),
    ]
    assert "the pole broke" in sweep.entries[2].message
    for run in runs[:2]:
        assert outcome(sweep.root, run) == outcome(tmp_path / "whole", run)
    assert not ray.is_initialized()


def test_a_node_of_ray_is_lost(cluster: Any, tmp_path: Path) -> None:
    runs = [ppo(steps=6_400, seed=seed) for seed in range(2)]
    for run in runs:
        train(run, tmp_path / "whole")
    sweep = Sweep(runs, tmp_path / "runs", retries=3)
    (other,) = cluster.worker_nodes
    lost = threading.Thread(target=lose, args=(cluster, other, sweep))
    lost.start()
    sweep.supervise(RayTasks(sweep.root))
    lost.join()
    assert len(cluster.worker_nodes) == 0
    assert [entry.status for entry in sweep.entries] == ["done"] * 2
    assert max(entry.attempts for entry in sweep.entries) == 2, "the lost node's run was tried again"
    assert len(stored(sweep.root)) == 2
    for run in runs:
        assert outcome(sweep.root, run) == outcome(tmp_path / "whole", run)


HEAD = """
import sys
from ray.cluster_utils import Cluster
options = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": int(sys.argv[1])}
cluster = Cluster(initialize_head=True, head_node_args=options)
print("ready", flush=True)
sys.stdin.read()
cluster.shutdown()
"""
"""A cluster in a process of its own, as a user's is."""


def test_a_client_of_a_cluster(tmp_path: Path) -> None:
    """``--on ray://HOST:PORT``, from a process that is no node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean
    )
    assert head.stdin is not None
    assert head.stdout is not None
    assert head.stdout.readline() == b"ready\n"
    run = ppo()
    train(run, tmp_path / "whole")
    (tmp_path / "one.toml").write_text(
        'algorithm = "ppo"\nenvironment = "CartPole-v1"\nsteps = 512\nsegments = 4\nnetwork = [8]\n'
        "host = { n_steps = 64, batch_size = 32, n_epochs = 2 }\n"
    )
    words = ["sweep", str(tmp_path / "one.toml"), "--out", str(tmp_path / "runs")]
    try:
        subprocess.run(
            [str(Path(sys.executable).parent / "kova"), *words, "--on", f"ray://127.0.0.1:{port}"],
            check=True,
            timeout=120,
            env=clean,
        )
    finally:
        head.stdin.close()
        head.wait(timeout=60)
        head.stdout.close()
    assert stored(tmp_path / "runs") == [run.complete()]
    assert outcome(tmp_path / "runs", run) == outcome(tmp_path / "whole", run)


def lose(cluster: Any, node: Any, sweep: Sweep) -> None:
    """Kill a node once two runs are under way."""
    logs = [Store(sweep.root, run.name).log_path for run in sweep.runs]
    while sum(path.exists() and path.stat().st_size > 0 for path in logs) < 2:
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)
