"""One training run, from its directory to its summary."""

from __future__ import annotations

import hashlib
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kova_rl.lab.imports import import_module, require_sb3
from kova_rl.lab.training.config import RunConfig
from kova_rl.lab.training.critic import kova_of
from kova_rl.lab.training.log import Log, read_log
from kova_rl.lab.training.store import Checkpoint, Store
from kova_rl.lab.training.tensorboard import write_events

if TYPE_CHECKING:
    from kova_rl.sb3.session import Session

__all__ = ["Refused", "Tell", "train"]

RECORDS = 200
"""At most about so many records a run."""

Tell = Callable[[dict[str, Any]], None]


class Refused(ValueError):
    """Settings that the algorithm or the environment does not take: trying again is of no use."""


def train(config: RunConfig, root: Path, tell: Tell = lambda record: None) -> dict[str, Any]:
    """Train one run to its end, from where it stands; its summary.

    Every segment starts from the bytes of a checkpoint, new environments and a seed of its own, whether the
    run was interrupted or not. So it can't matter whether it was.

    Args:
        config: The run.
        root: Folder of the runs.
        tell: Called with each record of the log.

    Raises:
        Refused: Settings that the algorithm or the environment does not take.
        Busy: Another process works on this run.
    """
    store = Store(root, config)
    with store.locked():
        done = store.summary()
        if done is not None:
            return done
        store.begin()
        start, records = _where(store)
        with Log(store.log_path, records) as log:
            return _segments(config, store, log, start, tell)


def _where(store: Store) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
    """The newest checkpoint that is whole and whose log is, and the records up to it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = read_log(store.log_path)
    for warning in caught:
        print(warning.message, file=sys.stderr)
    for checkpoint in store.checkpoints():
        count = int.from_bytes(checkpoint.content[:8], "big")
        if count <= len(records):
            return Checkpoint(checkpoint.segment, checkpoint.content[8:]), records[:count]
        print(
            f"{store.log_path} has {len(records)} whole records of {count} up to segment "
            f"{checkpoint.segment}: going back to the checkpoint before it, or to the start",
            file=sys.stderr,
        )
    store.drop_checkpoints()
    return None, []


def _segments(
    config: RunConfig, store: Store, log: Log, start: Checkpoint | None, tell: Tell
) -> dict[str, Any]:
    def record(values: dict[str, Any]) -> None:
        last.update(values)
        log.write(values)
        tell(values)

    segment, state = (start.segment, start.content) if start else (0, None)
    last: dict[str, Any] = {}
    every = max(1, math.ceil(config.steps / RECORDS))
    while True:
        try:
            session = open_session(config, segment, state)
        except ValueError as error:
            raise Refused(str(error)) from None
        try:
            ends = boundaries(config, session.rollout)
            session.learn(ends[segment], config.steps, every, record)
            segment += 1
            if segment == len(ends):
                return _finish(session, store, log, last)
            state = session.state()
        finally:
            session.close()
        log.sync()
        write_events(store.path, read_log(store.log_path))
        store.save(Checkpoint(segment, log.count.to_bytes(8, "big") + state))


def _finish(session: Session, store: Store, log: Log, last: dict[str, Any]) -> dict[str, Any]:
    session.save(store.path / "model.zip")
    write_events(store.path, read_log(store.log_path))
    if not session.episodes:
        print(
            f"no episode of {store.config.environment} ended within a segment, so there is no return: use "
            "more steps, or fewer segments",
            file=sys.stderr,
        )
    summary = {
        "steps": session.steps,
        "seconds": round(session.seconds, 3),
        "processor": round(session.processor, 3),
        "final_return": last.get("return"),
        "episodes": session.episodes,
        "weights": session.fingerprint(),
        "records": log.count,
        "log_bytes": log.sync(),
    }
    store.finish(summary)
    return {"status": "done", **summary}


def open_session(config: RunConfig, segment: int = 0, state: bytes | None = None) -> Session:
    """The model and the environments of a run, at the start of a segment."""
    for module in config.imports:
        import_module(module, "imports must name modules")
    require_sb3("training")
    from kova_rl.sb3.session import Session, Settings

    settings = Settings(
        kova=kova_of(config),
        **{
            name: getattr(config, name)
            for name in (
                *("algorithm", "environment", "n_envs", "environment_options", "normalise_observations"),
                *("normalise_rewards", "learning_rate", "decay", "network", "activation", "host"),
            )
        },
    )
    return Session(settings, seed_of(config.seed, segment), state)


def seed_of(seed: int, segment: int) -> int:
    """Of a segment; far from those of other runs and segments."""
    digest = hashlib.sha256(f"{seed}/{segment}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % (2**31 - 1)


def boundaries(config: RunConfig, rollout: int) -> list[int]:
    """The steps at which the segments end, each a whole number of rollouts; short runs have fewer.

    Example:
        >>> boundaries(RunConfig("ppo", "CartPole-v1", steps=1000, segments=3), rollout=128)
        [384, 768, 1024]
    """
    ends = {
        math.ceil(config.steps * number / config.segments / rollout) * rollout
        for number in range(1, config.segments + 1)
    }
    return sorted(ends)
