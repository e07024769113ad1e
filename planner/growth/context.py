"""Which sampled context stands for a context: the quantiser of CAST's cost tables."""

from __future__ import annotations

from ...errors import PlanError


def quantised_context(context: int, step: int, longest: int) -> int:
    """Return the context on the grid step, 2 step, ..., longest whose costs stand for `context`.

    It is the next one on the grid, and the longest for all that lie beyond:

    select(c) = min(ceil(c / L), M) * L, at least L        with L = step, M = longest / step

    The paper prints (max(floor(c / L), M - 1) + 1) * L. Its `max` would send every context within the grid to M L,
    so `min` is meant. Its floor + 1 would send a context on the grid to the one after it, although it was sampled
    itself; between the grid's contexts it is the ceiling, which is taken here.

    Args:
        context: tokens, at least 0.
        step: distance of the grid's contexts, and the shortest of them.
        longest: the last one, a multiple of `step`.

    Raises:
        PlanError: a context below 0, or no such grid.

    Source: Hong et al. 2025, arXiv:2510.26577, Sec. 4, "select".
    """
    if context < 0 or step < 1 or longest < step or longest % step:
        raise PlanError(
            f"a context of 0 or more is quantised to multiples of a step up to the longest, got {context}, step {step} "
            f"and longest {longest}; take a multiple of the step"
        )
    return min(max(-(-context // step), 1) * step, longest)
