"""The critics that are compared on streams, by names that a command line can state."""

from __future__ import annotations

import math
from typing import Any

from kova_rl import covariance, evolution, observation
from kova_rl.filter.covariance import Covariance
from kova_rl.filter.covariance.base import Prior
from kova_rl.lab.names import check_name
from kova_rl.sb3.settings import KovaSettings
from kova_rl.value_loop import ValueLoop

__all__ = ["SHORT", "critic_named"]

SHORT = ("adam:3e-4:p10", "adam:1e-3:p3", "kova", "kronecker:0.1:p1")
"""What is compared if nothing is asked for."""
KINDS = ("adam", "kova", "kronecker", "low-rank", "memoryless")


def critic_named(name: str) -> ValueLoop:
    """The settings of a name such as ``adam:1e-3:p10`` or ``kronecker:0.01:fan-in:adaptive:p3``.

    ``kova`` is the default of ``KovaPPO``. Else the first part is adam, low-rank, kronecker or memoryless;
    the second Adam's rate or the filter's eta, with the paper's max-ratio noise and P_0 = I. Then, in any
    order: pN for N passes; lN for the lambda of the returns; each for returns anew before each pass; hN for
    a last layer that is solved, with this prior; and for filters fan-in for that prior, vN for one of this
    variance, and adaptive for learned noise.

    Raises:
        ValueError: It is none of these.
    """
    kind, *parts = name.split(":")
    try:
        check_name("its kind", kind, KINDS)
        number = math.nan if kind == "kova" else float(parts.pop(0) if parts else "")
        loop, words = _loop(parts)
        if words and kind in ("adam", "kova"):
            raise ValueError(f"{kind} takes no {words[0]}")
        if kind == "kova":
            return KovaSettings(**loop)
        return ValueLoop(**loop, value_lr=number) if kind == "adam" else _filter(kind, number, words, loop)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"a critic is written kova, adam:RATE or {{low-rank,kronecker,memoryless}}:ETA, and :pN, "
            f":lLAMBDA, :each, :hPRIOR after it, filters also :fan-in, :vPRIOR, :adaptive; "
            f"got {name!r} ({error})"
        ) from None


def _loop(parts: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The loop's settings, and the words that are left."""
    loop: dict[str, Any] = {}
    words = []
    for part in parts:
        if part == "each":
            loop["recompute"] = "each"
        elif part[:1] == "p" and part[1:].isdigit():
            loop["value_passes"] = int(part[1:])
        elif part[:1] == "h":
            loop["head"] = float(part[1:])
        elif part[:1] == "l":
            loop["value_lambda"] = float(part[1:])
        else:
            words.append(part)
    return loop, words


def _filter(kind: str, eta: float, words: list[str], loop: dict[str, Any]) -> KovaSettings:
    variances = [word for word in words if word[:1] == "v"]
    unknown = set(words) - {"fan-in", "adaptive", *variances}
    if unknown:
        raise ValueError(f"there is no {', '.join(sorted(unknown))}")
    if len(variances) + ("fan-in" in words) > 1:
        raise ValueError("there is one prior")
    prior: Prior = covariance.FanIn() if "fan-in" in words else 1.0
    if variances:
        prior = float(variances[0][1:])
    noise = observation.Adaptive() if "adaptive" in words else observation.MaxRatio()
    if kind == "memoryless":
        if variances or "fan-in" in words:
            raise ValueError("memoryless has P_0 = I and no other prior")
        return KovaSettings(evolution=evolution.Memoryless(eta), observation=noise, **loop)
    kinds: dict[str, Covariance] = {
        "low-rank": covariance.LowRank(prior=prior),
        "kronecker": covariance.Kronecker(prior=prior),
    }
    leak = evolution.Leakage(eta)
    return KovaSettings(covariance=kinds[kind], evolution=leak, observation=noise, **loop)
