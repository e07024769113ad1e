"""The one run of an engine that advice is given about."""

from __future__ import annotations

from pathlib import Path

from ...errors import RequestError
from .counters import CountedAcceptance, CounterFormat, read_counters


def counted_run(
    file: Path, file_format: CounterFormat, batch: int | None = None
) -> tuple[CountedAcceptance, dict[int, float]]:
    """Return the run of a file that drafted the longest chain, and milliseconds a token by lengths that have a time.

    Args:
        file: counters of one server, which tell no times, or a benchmark's.
        file_format: of it.
        batch: which batch size of a benchmark; None where there is one alone.

    Raises:
        RequestError: it cannot be read, tells nothing by position, or is of several batch sizes and none is named.
    """
    known = [one for one in read_counters(file, file_format).acceptance if one.by_position]
    batches = sorted({_load(one) for one in known})
    if batch is not None:
        known = [one for one in known if _load(one) == f"batch {batch}"]
    if not known:
        which = "" if batch is None else f" of batch {batch}; it is of {', '.join(batches)}"
        raise RequestError(f"{file} tells no acceptance by position{which}; count while chains are drafted")
    if batch is None and len(batches) > 1:
        raise RequestError(f"{file} is of several loads ({', '.join(batches)}); name one with --batch")
    times = {len(one.by_position): one.step_ms / one.by_length[-1] for one in known if one.step_ms is not None}
    return max(known, key=lambda one: len(one.by_position)), times


def _load(one: CountedAcceptance) -> str:
    return one.about.partition(",")[0]
