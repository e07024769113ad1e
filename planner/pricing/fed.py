"""What forwards are fed in one cell: shapes that can be looked up, at the measured context nearest to it."""

from __future__ import annotations

from ...errors import MeasurementError
from ...profiler.records.role import CAPTURED
from ...profiler.records.surface import LatencySurface


def nearest_context(surface: LatencySurface, batch: int, context: int) -> int:
    """Return the context clipped to those measured at a batch; MeasurementError where nothing of the batch ran."""
    known = surface.contexts(batch)
    return min(max(context, known[0]), known[-1])


def reached_context(surface: LatencySurface, batch: int, context: int) -> int:
    """Return the context clipped to those measured at a batch.

    MeasurementError: nothing of the batch ran, or it failed at the context or at a shorter one beyond all that ran.
    """
    barred = surface.barred(batch, context)
    if barred is not None:
        raise MeasurementError(barred)
    return nearest_context(surface, batch, context)


def drafted_tokens(surface: LatencySurface, batch: int, context: int) -> list[int]:
    """Return (most + 1,), by tokens wanted: the fewest from there on that are known; MeasurementError: none is."""
    fed = [_most_tokens(surface, batch, context)]
    for tokens in range(fed[0] - 1, 0, -1):
        fed.append(tokens if _is_known(surface, batch, context, tokens) else fed[-1])
    return [0, *reversed(fed)]


def padded_tokens(surface: LatencySurface, batch: int, context: int) -> list[int]:
    """Return (most + 1,), by tokens in the tree: those of the cheapest shape that holds them; else MeasurementError."""
    most = _most_tokens(surface, batch, context)
    padded: list[int] = surface.padded(batch, context, most).run_tokens.tolist()
    return padded


def verified_tokens(surface: LatencySurface, batch: int, context: int) -> list[int]:
    """Return (most + 1,), by tokens in the tree: those of the padded shape; where it is captured, of the next size.

    MeasurementError: no shape can be looked up.
    """
    padded = padded_tokens(surface, batch, context)
    if surface.regime != CAPTURED:
        return padded
    most = padded[-1]
    sizes = sorted({size for tokens in range(1, most) if (size := captured_size(tokens)) < most})
    known = [0, *(size for size in sizes if _is_known(surface, batch, context, size)), most]
    return [next(size for size in known if size >= tokens) for tokens in padded]


def captured_size(tokens: int) -> int:
    """Return the tokens that a captured verify of so many runs with; few sizes, as each needs a capture.

    Up to 8 every even number, then four sizes for every doubling.
    """
    if tokens <= 2:
        return tokens
    step = max(2, 1 << (tokens - 1).bit_length() >> 3)
    return -(-tokens // step) * step


def _most_tokens(surface: LatencySurface, batch: int, context: int) -> int:
    shapes = sorted({cell.tokens for cell in surface.measurements if cell.batch == batch}, reverse=True)
    for tokens in shapes:
        if _is_known(surface, batch, context, tokens):
            return tokens
    raise MeasurementError(f"no shape of batch {batch} ran at context {context}; profile one there first")


def _is_known(surface: LatencySurface, batch: int, context: int, tokens: int) -> bool:
    try:
        surface.latency(batch, context, tokens)
    except MeasurementError:
        return False
    return True
