"""What competes in every cell: the grids of strategies that depend on the committed text alone, with their results."""

from __future__ import annotations

from collections.abc import Iterator

from ..records.recording import Recorded
from ..strategies import REGISTRY
from ..strategies.offers import Graded, Limits

GRIDS = sorted((one for one in REGISTRY.values() if one.grid_place is not None), key=lambda one: one.grid_place or 0)


def textual(recorded: Recorded, limits: Limits) -> Iterator[Graded]:
    """Yield plain decoding, then all that drafts from the text and needs no model."""
    for strategy in GRIDS:
        if not strategy.is_recorded:
            yield from strategy.grid(recorded, limits)


def drafted(recorded: Recorded, limits: Limits) -> Iterator[Graded]:
    """Yield what one drafter, which `recorded` holds, drafts within the limits of the grids; cheap ones first."""
    for strategy in GRIDS:
        if strategy.is_recorded:
            yield from strategy.grid(recorded, limits)
