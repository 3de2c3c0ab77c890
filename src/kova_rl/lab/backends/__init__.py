"""Where runs are made: in processes of this machine, or on Ray. Any run on any of them."""

from pathlib import Path

from kova_rl.lab.backends.base import Backend, Event
from kova_rl.lab.backends.processes import Processes, cores

__all__ = ["Backend", "Event", "Processes", "connect", "cores"]


def connect(on: str, root: Path, jobs: int | None, runs: int) -> Backend:
    """The backend of this name.

    Args:
        on: ``processes``, ``ray``, or the address of a Ray cluster.
        root: Folder of the runs.
        jobs: Runs at once; None is one a core.
        runs: How many there are to make.
    """
    if on == "processes":
        return Processes(root, min(jobs or cores(), runs))
    from kova_rl.lab.backends.on_ray import RayTasks

    return RayTasks(root, None if on == "ray" else on, jobs)
