"""A wrapper that changes the physics of a MuJoCo task on the way, and tasks that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from kova_rl.envs.physics import ARRAYS, Change, Factor, Schedule
from kova_rl.filter.checks import check_whole

__all__ = ["ChangingPhysics", "changing_task"]

Step = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class ChangingPhysics(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A MuJoCo task whose friction, gravity or motors change while the agent learns.

    Steps are counted over the life of the environment, across its episodes; a reset does not begin anew.
    Of several copies that are stepped side by side each counts its own, so a change ``at=1_000`` comes after
    8,000 steps of 8 copies.

    ``info["physics"]`` of each step has the factors that it was made with, by name; that of a reset has those
    of the step to come. Observations do not tell.

    Args:
        env: Any environment of Gymnasium's MuJoCo tasks, or another whose ``unwrapped.model`` is MuJoCo's.
        changes: One :class:`Change` or more (or mappings of their arguments), in the order of their steps.
        start: Steps that are made already, by another copy that this one goes on from; see :meth:`start_at`.
        seed: Of the factors that are drawn from a range, once, when the wrapper is built. It has nothing to
            do with the seed of ``reset``: copies with the same seed are the same world.

    Raises:
        ValueError: Not a MuJoCo task, a bad change, or one of something that the task does not have.

    Example:
        >>> import gymnasium
        >>> from kova_rl.envs import Change, ChangingPhysics
        >>> env = ChangingPhysics(gymnasium.make("Hopper-v5"), [Change(at=2, gravity=1.5)])
        >>> _ = env.reset(seed=0)
        >>> [env.step(env.action_space.sample())[-1]["physics"]["gravity"] for _ in range(4)]
        [1.0, 1.0, 1.5, 1.5]
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        changes: Sequence[Change | Mapping[str, Any]],
        start: int = 0,
        seed: int = 0,
    ) -> None:
        if not isinstance(changes, Sequence) or isinstance(changes, str):
            raise ValueError(f"changes must be a list of Change, got {changes!r}")
        checked = [Change.of(change) for change in changes]
        RecordConstructorArgs.__init__(
            self, changes=[asdict(change) for change in checked], start=start, seed=seed
        )
        super().__init__(env)
        self._schedule = Schedule(checked, seed)
        self._own = _own_physics(env, self._schedule.names)
        self._now: dict[str, float] | None = None
        self.start_at(start)

    def start_at(self, steps: int) -> None:
        """Go on as if so many steps were made: the next has the physics of the step with this number.

        ``kova train`` calls it, since each segment of a run has new environments; so does whoever resumes.
        """
        check_whole("start", steps, least=0)
        self._steps = int(steps)

    @property
    def steps(self) -> int:
        """How many were made so far."""
        return self._steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, in the world as it is by now."""
        physics = self._change()
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "physics": physics}

    def step(self, action: Any) -> Step:
        """A step, after what changes with it has changed."""
        physics = self._change()
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return observation, reward, terminated, truncated, {**info, "physics": physics}

    def close(self) -> None:
        """Put the task's own physics back, and close it."""
        self._put(dict.fromkeys(ARRAYS, 1.0))
        super().close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy: MuJoCo tasks copy their arguments alone, so the copy's physics are the task's own."""
        self.__dict__.update(state)
        self._now = None

    def _change(self) -> dict[str, float]:
        """Make the world what it is at the coming step; what ``info`` says of it."""
        now = self._schedule.at(self._steps)
        if now != self._now:
            self._put(now)
        return dict(now)

    def _put(self, factors: dict[str, float]) -> None:
        model = self.unwrapped.model  # type: ignore[attr-defined]
        for (name, array), own in self._own.items():
            attrgetter(array)(model)[:] = factors[name] * own
        self._now = factors


def changing_task(
    task: str,
    at: int,
    over: int = 1,
    friction: Factor | None = None,
    gravity: Factor | None = None,
    motors: Factor | None = None,
    start: int = 0,
    seed: int = 0,
    **options: Any,
) -> gymnasium.Env[Any, Any]:
    """A task of Gymnasium with one change, whose settings are plain numbers.

    Args:
        task: Its name, such as ``"Hopper-v5"``.
        at: As all up to motors, of the :class:`Change`.
        over: See there.
        friction: See there.
        gravity: See there.
        motors: See there.
        start: Of :class:`ChangingPhysics`.
        seed: Of :class:`ChangingPhysics`.
        options: Of the task, such as ``render_mode``.
    """
    change = Change(at, over, friction, gravity, motors)
    env = gymnasium.make(task, **options).unwrapped  # who makes this one has a time limit of its own
    try:
        return ChangingPhysics(env, [change], start, seed)
    except ValueError:
        env.close()
        raise


def _own_physics(env: gymnasium.Env[Any, Any], names: Sequence[str]) -> dict[tuple[str, str], Any]:
    """Copies of what will change, by its name and its array's."""
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, ChangingPhysics):
            raise ValueError("the environment changes its physics already: give one wrapper all the changes")
        inner = inner.env
    model = getattr(inner, "model", None)
    try:
        own = {(name, array): attrgetter(array)(model).copy() for name in ARRAYS for array in ARRAYS[name]}
    except AttributeError:
        raise ValueError(
            f"the physics of {inner} can't be changed: it must be a MuJoCo task, with MuJoCo's model as its "
            "unwrapped.model, such as gymnasium.make('Hopper-v5')"
        ) from None
    for name in names:
        if not any(own[name, array].any() for array in ARRAYS[name]):
            raise ValueError(f"{inner} has no {name} to change: choose another of {', '.join(ARRAYS)}")
    return {key: value for key, value in own.items() if key[0] in names}
