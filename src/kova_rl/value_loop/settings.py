"""How a critic goes through a rollout: settings that a filter and the host's own optimizer share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, Self

from kova_rl.filter.checks import check_choice, check_positive, check_real, check_whole
from kova_rl.shorthand import where_it_belongs

__all__ = ["PASSES", "ValueLoop"]

PASSES = 1
"""How often a filter that is tracked goes through a rollout, if nothing else is said."""
KINDS = {
    **dict.fromkeys(("value_passes", "value_batch"), int),
    **dict.fromkeys(("value_lambda", "value_lr", "head"), float),
    "value_first": bool,
}
"""What the settings are, where they are given."""


@dataclass(frozen=True, kw_only=True)
class ValueLoop:
    """The loop of a critic that learns apart from the policy. None is the default of each.

    Args:
        value_passes: How often a rollout is gone through. None is once for a filter that is tracked, and as
            often as the host does (``n_epochs`` of PPO, ``n_critic_updates`` of TRPO) where the host's
            optimizer has a part of the critic, and with ``Memoryless``.
        value_lambda: lambda of the returns that the critic learns, in [0, 1]; the advantages keep the host's.
        value_batch: Samples in a minibatch; None is the host's, which is the whole rollout for A2C.
        value_lr: Rate of the host's optimizer for what it has of the critic; None is the host's schedule.
        value_first: Whether the critic learns before the policy does, and not after it.
        recompute: Advantages and returns anew from the critic as it is: ``"once"``, after its passes and
            before the policy's epochs, or ``"each"`` time that the critic has moved, in which case its passes
            and the policy's epochs take turns; where there is one pass, after the policy's only epoch, it is
            refused. None keeps those that the rollout was collected with.
        head: After the passes the last layer is solved for the fixed point of the rollout (LSTD with the
            lambda of the returns, see :func:`kova_rl.head.solve`), and written into the critic. The number is
            how far the solution may move a typical value from what the passes have left, as a standard
            deviation in root mean square returns: the past is in this prior alone. A filter's P is not told.

    Raises:
        ValueError: A setting out of range, or ``recompute="once"`` without ``value_first``.

    Example:
        >>> ValueLoop.of({"value_passes": 3}).value_passes
        3
    """

    value_passes: int | None = None
    value_lambda: float | None = None
    value_batch: int | None = None
    value_lr: float | None = None
    value_first: bool = False
    recompute: Literal["each", "once"] | None = None
    head: float | None = None

    argument: ClassVar[str] = "value"
    """What the settings are passed as."""
    otherwise: ClassVar[str] = "loop"
    """Of the host, if they are None."""

    def __post_init__(self) -> None:
        if self.value_passes is not None:
            check_whole("value_passes", self.value_passes, 1)
        if self.value_lambda is not None:
            check_real("value_lambda", self.value_lambda, "a number in [0, 1]", True)  # a number at all
            check_real("value_lambda", self.value_lambda, "a number in [0, 1]", 0 <= self.value_lambda <= 1)
        if self.value_batch is not None:
            check_whole("value_batch", self.value_batch, 1)
        if self.value_lr is not None:
            check_positive("value_lr", self.value_lr)
        if self.head is not None:
            check_positive("head", self.head)
        check_choice("value_first", self.value_first, (False, True))
        check_choice("recompute", self.recompute, (None, "each", "once"))
        if self.recompute == "once" and not self.value_first:
            raise ValueError(
                "recompute='once' needs value_first=True: before the critic has learned, its advantages are "
                "those that the policy has already. Or pass recompute='each'"
            )
        for name, kind in KINDS.items():  # NumPy's numbers are no part of a file without code
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else kind(value))

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Settings from what a user passed: settings, a dict of their fields, or None."""
        if value is None or (isinstance(value, cls) and value.argument == cls.argument):
            return value
        names = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping):
            raise ValueError(
                f"{cls.argument} must be {cls.__name__}, a dict of {', '.join(names)}, or None for the "
                f"host's own {cls.otherwise}, got {value!r}"
            )
        unknown = [str(name) for name in value if name not in names]
        if unknown:
            raise ValueError(f"{cls.argument}: {where_it_belongs(unknown, names)}")
        return cls(**value)

    @property
    def rewrites(self) -> bool:
        """Whether returns, advantages or a head are computed that the host does not."""
        return any(each is not None for each in (self.recompute, self.value_lambda, self.head))

    @property
    def given(self) -> list[str]:
        """The names of the loop's settings that are not the defaults."""
        return [f.name for f in fields(ValueLoop) if getattr(self, f.name) != f.default]
