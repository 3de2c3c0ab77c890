"""One training run, segment by segment."""

from __future__ import annotations

import hashlib
import math
import sys
from typing import TYPE_CHECKING, Any

from kova_rl.lab.imports import import_module, require_sb3
from kova_rl.lab.run import Refused, Work
from kova_rl.lab.training.config import RunConfig
from kova_rl.lab.training.critic import arguments
from kova_rl.lab.training.tensorboard import write_events

if TYPE_CHECKING:
    from kova_rl.sb3.session import Session

__all__ = ["boundaries", "open_session", "perform", "seed_of"]

RECORDS = 200
"""At most about so many records a run."""


def perform(config: RunConfig, work: Work) -> dict[str, Any]:
    """Train, from where the run stands, to its end.

    Every segment starts from the bytes of a checkpoint, new environments and a seed of its own, whether the
    run was interrupted or not. So it can't matter whether it was.
    """
    segment, state = (work.start.segment, work.start.content) if work.start else (0, None)
    every = max(1, math.ceil(config.steps / RECORDS))
    while True:
        try:
            session = open_session(config, segment, state)
        except ValueError as error:
            raise Refused(str(error)) from None
        try:
            ends = boundaries(config, session.rollout)
            session.learn(ends[segment], config.steps, every, work.record)
            segment += 1
            if segment == len(ends):
                return _finish(config, session, work)
            state = session.state()
        finally:
            session.close()
        write_events(work.path, work.logged())
        work.keep(segment, state)


def _finish(config: RunConfig, session: Session, work: Work) -> dict[str, Any]:
    session.save(work.path / "model.zip")
    write_events(work.path, work.logged())
    if not session.episodes:
        print(
            f"no episode of {config.environment} ended within a segment, so there is no return: use more "
            "steps, or fewer segments",
            file=sys.stderr,
        )
    return {
        "steps": session.steps,
        "seconds": round(session.seconds, 3),
        "processor": round(session.processor, 3),
        "episodes": session.episodes,
        "weights": session.fingerprint(),
    }


def open_session(config: RunConfig, segment: int = 0, state: bytes | None = None) -> Session:
    """The model and the environments of a run, at the start of a segment."""
    for module in config.imports:
        import_module(module, "imports must name modules")
    require_sb3("training")
    from kova_rl.sb3.session import Session, Settings

    settings = Settings(
        critic=arguments(config),
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
