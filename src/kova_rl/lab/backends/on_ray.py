"""Runs as tasks of a Ray cluster, in the same directories. The only module that imports Ray.

A cluster runs whatever code reaches its ports, so start it with a token, on a network of its own:

.. code-block:: bash

    ray get-auth-token --generate                      # once; copy ~/.ray/auth_token to every node
    RAY_AUTH_MODE=token ray start --head --port 6379   # on the first node
    RAY_AUTH_MODE=token ray start --address HOST:6379  # on the others
    RAY_AUTH_MODE=token kova sweep mine.toml --on HOST:6379 --out /shared/runs
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from kova_rl.lab.attempt import Outcome, attempt
from kova_rl.lab.backends.base import Event
from kova_rl.lab.log import last_record
from kova_rl.lab.run import Run
from kova_rl.lab.store import Store

__all__ = ["RayTasks"]

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class RayTasks:
    """One task a run, on one core. Ray ends them when this process ends.

    Args:
        root: Folder of the runs, which all nodes must see under this path.
        address: Of a cluster, ``ray://HOST``, ``HOST:6379`` or ``auto``; None is this machine.
        slots: How many at once; None is as many as the cluster has cores.

    Raises:
        ValueError: No cluster at this address, or Ray is not installed.
    """

    def __init__(self, root: Path, address: str | None = None, slots: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise ValueError("Ray is not installed: pip install 'kova-rl[ray]'") from None
        self._ray: Any = ray
        self._root = root.resolve()
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            try:
                ray.init(
                    address=with_port(address or "local"),
                    num_cpus=slots if address is None else None,
                    include_dashboard=False if address is None else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ValueError(
                    f"no Ray cluster at {address or 'this machine'} ({error}): start one, and use the same "
                    "token (RAY_AUTH_TOKEN_PATH) here as there"
                ) from None
        self.slots = slots or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._running: dict[Any, tuple[int, Run]] = {}
        self._task = ray.remote(num_cpus=1, max_retries=0, runtime_env={"env_vars": ONE_THREAD})(_task)

    def start(self, key: int, run: Run) -> None:
        """Submit a run."""
        self._running[self._task.remote(run, str(self._root), os.getcwd())] = (key, run)

    def events(self, timeout: float) -> list[Event]:
        """The ends of tasks, and how far the others are by their logs."""
        ended, others = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        found = []
        for reference in others:
            key, run = self._running[reference]
            record = last_record(Store(self._root, run.name).log_path)
            if record is not None:
                found.append(Event(key, record=record))
        for reference in ended:
            key, _ = self._running.pop(reference)
            try:
                outcome = Outcome(*self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                first = str(error).strip().splitlines()[0]
                outcome = Outcome("failed", f"its task died, {type(error).__name__}: {first}", again=True)
            found.append(Event(key, outcome=outcome))
        return found

    def close(self) -> None:
        """End the tasks that are under way, and leave the cluster."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._connected_here:
            self._ray.shutdown()


def with_port(address: str) -> str:
    """The address, with the port that a cluster's clients use if none is given.

    Example:
        >>> with_port("ray://head"), with_port("ray://head:10002"), with_port("auto")
        ('ray://head:10001', 'ray://head:10002', 'auto')
    """
    return f"{address}:10001" if address.startswith("ray://") and ":" not in address[6:] else address


def _task(run: Run, root: str, folder: str) -> tuple[Any, ...]:
    """On a node: one try at a run, in the folder that the command was given in, where there is one."""
    if os.path.isdir(folder):
        os.chdir(folder)
    return tuple(attempt(run, Path(root), lambda record: None))
