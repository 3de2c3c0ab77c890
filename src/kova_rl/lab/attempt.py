"""One try at a run, whose end, good or bad, is told and not raised."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kova_rl.lab.run import MEASURES, Refused, Run, Tell, make
from kova_rl.lab.store import Busy, Store, explained

__all__ = ["Outcome", "attempt", "end_of_log", "output"]

LINES = 20
"""Of a run's output, in the report of its failure."""


class Outcome(NamedTuple):
    """How a try ended."""

    status: Literal["done", "failed", "busy"]
    message: str = ""
    again: bool = False
    """Whether another try may end otherwise."""
    final: float | None = None
    """The last value of the run's measure."""


def attempt(run: Run, root: Path, tell: Tell) -> Outcome:
    """Make a run in this process; what is printed goes to ``output.txt`` in the run's directory.

    Args:
        run: The run.
        root: Folder of the runs.
        tell: Called with each record of the log.
    """
    store = Store(root, run.name)
    try:
        with output(store.path):
            summary = make(run, root, tell)
    except Busy as error:
        return Outcome("busy", str(error))
    except Refused as error:
        return Outcome("failed", str(error))
    except Exception as error:
        return Outcome("failed", explained(error, store.path), again=True)
    return Outcome("done", final=summary.get(f"final_{MEASURES[run.kind].key}"))


@contextlib.contextmanager
def output(folder: Path) -> Iterator[None]:
    """Send standard output and error, down to those of C code, to a file, with the traceback of an error."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(1), os.dup(2)]
    _flush()
    try:
        with (folder / "output.txt").open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        faulthandler.enable(file=2)
        yield
    except (Busy, Refused):
        raise
    except Exception:
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
        raise
    finally:
        _flush()
        for number, handle in enumerate(kept, start=1):
            os.dup2(handle, number)
            os.close(handle)
        with contextlib.suppress(OSError):
            if not (folder / "output.txt").stat().st_size:
                (folder / "output.txt").unlink()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def end_of_log(folder: Path) -> str:
    """The last lines that a run printed, or of its log if it printed nothing."""
    for name in ("output.txt", "log.jsonl"):
        with contextlib.suppress(OSError):
            lines: list[Any] = (folder / name).read_text(errors="replace").splitlines()
            if lines:
                return "\n".join(lines[-LINES if name == "output.txt" else -1 :])
    return ""
