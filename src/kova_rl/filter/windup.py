"""The guard of the evolutions that nothing bounds: it stops them before the numbers mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from kova_rl.errors import CovarianceWindup, NotPositiveDefinite
from kova_rl.filter.change import Change

WINDUP_LIMIT = {torch.float32: 1e6, torch.float64: 1e12}
"""The largest variance, in units of the prior's, that the unbounded evolutions may reach."""

OnWindup = Literal["raise", "reset", "ignore"]
ON_WINDUP = ("raise", "reset", "ignore")

T = TypeVar("T")


class Windable(Protocol):
    """What the guard needs to know of an evolution."""

    @property
    def windup(self) -> OnWindup: ...


def guarded(
    evolution: Windable,
    change: Change,
    variances: Callable[[], Tensor],
    step: int,
    update: Callable[[], T],
    afresh: Callable[[], T],
) -> T:
    """``update()``; or, where P has wound up, an error or ``afresh()``, which starts from P_0.

    Args:
        evolution: Says by its ``windup`` what to do; ``"ignore"`` never looks.
        change: What the update does to P first.
        variances: The diagonal of P before it.
        step: For the message.
        update: Makes the update.
        afresh: Makes the update from P_0.
    """
    if evolution.windup == "ignore":
        return update()
    found = variances()
    limit = WINDUP_LIMIT[found.dtype]
    lowest, highest = (float(x) for x in torch.aminmax(found))
    if lowest > 0.0 and change.grown(highest) <= limit:
        try:
            return update()
        except NotPositiveDefinite:
            if highest < limit**0.5:
                raise  # whatever it is, it is not wind-up
    if evolution.windup == "reset":
        return afresh()
    raise CovarianceWindup(
        f"step {step}: {evolution} has wound up. The largest variance is {change.grown(highest):.3g} times "
        f"the prior's (limit {limit:.0e}), because nothing bounds it in directions that the batches "
        "do not excite. Nothing was changed. Use evolution.Leakage (with LowRank), "
        "PriorAnchored or DirectionalForgetting, which stay below the prior, or "
        "on_windup='reset' to start again from it."
    )
