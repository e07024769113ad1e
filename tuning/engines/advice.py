"""An engine's counters as advice needs them: acceptance by position, of all rounds."""

from __future__ import annotations

from pathlib import Path

from ...errors import RequestError
from .counters import CountedAcceptance, CounterFormat, read_counters

SELDOM = 0.95  # share of rounds that draft: where fewer do, people are told


def counted_run(file: Path, file_format: CounterFormat) -> tuple[CountedAcceptance, tuple[float, ...], tuple[str, ...]]:
    """Return what a server counted, acceptance by position over all of its rounds, and what is to be said about it.

    Rounds that draft nothing, as n-grams leave many, are in a server's times, but not among the rounds that its
    acceptance is over.

    Args:
        file: a scrape of one server's counters.
        file_format: of it.

    Raises:
        RequestError: it cannot be read, or tells nothing by position.
    """
    (run,) = read_counters(file, file_format).acceptance
    if not run.by_position:
        raise RequestError(f"{file} tells no acceptance by position; count while chains are drafted")
    share, notes = 1.0, list(run.notes)
    if run.rounds is None or not run.drafts:
        notes.append("the file does not tell rounds that drafted nothing; where n-grams draft, there are many")
    else:
        share = min(run.drafts / run.rounds, 1.0)
        if share < SELDOM:
            notes.append(f"{100 * share:.0f} % of the rounds drafted anything; acceptance is told of all of them")
    return run, tuple(share * rate for rate in run.by_position), tuple(notes)
