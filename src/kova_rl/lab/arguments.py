"""Numbers on the command line: what is none is refused in words, not in those of the parser's types."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.constructors import PrimitiveConstructorSpec

__all__ = ["Count", "NoName", "NoPath", "Number", "Real", "Sizes", "Switch", "Whole"]


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"expected a number, such as 0.1 or 1e6, got {text!r}")
    return found


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = float(text)  # 1e6 is a million
    except ValueError:
        found = math.nan
    if not found.is_integer():
        raise ValueError(f"expected a whole number, such as 3 or 1e6, got {text!r}")
    return int(found)


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"expected True or False, got {text!r}")
    return text.lower() == "true"


def _spec(parse: Callable[[str], Any], metavar: str, kinds: Any = bool | int | float) -> Any:
    """One word, or nothing where that is allowed."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kinds),
        str_from_instance=lambda value: [str(value)],
    )


_SIZES: Any = PrimitiveConstructorSpec(
    nargs="*",
    metavar="INT ...",
    instance_from_str=lambda words: tuple(map(_whole, words)),
    is_instance=lambda value: value is None or isinstance(value, tuple),
    str_from_instance=lambda value: list(map(str, value or ())),
)


_OPEN = tyro.conf.arg(help_behavior_hint="")
"""No default in the help, which says in words what None means."""

Whole = Annotated[int, _spec(_whole, "INT")]
Real = Annotated[float, _spec(_number, "NUMBER")]
Count = Annotated[int | None, _spec(_whole, "INT"), _OPEN]
Number = Annotated[float | None, _spec(_number, "NUMBER"), _OPEN]
NoPath = Annotated[Path | None, _spec(Path, "PATH", Path), _OPEN]
NoName = Annotated[str | None, _spec(str, "NAME", str), _OPEN]
Switch = Annotated[bool | None, _spec(_switch, "{True,False}"), _OPEN]
Sizes = Annotated[tuple[int, ...] | None, _SIZES, _OPEN]
