"""An engine's counters as advice needs them: acceptance by position, of all rounds."""

from __future__ import annotations

from dataclasses import replace

from ...engines.counters import CounterPage, counts_between, counts_of
from ...engines.table import COUNTERS
from ...errors import MeasurementError, RequestError
from .counters import CountedAcceptance, accepted_of, require_engine

SELDOM = 0.95  # share of rounds that draft: where fewer do, people are told
FIRST_TOKENS = (
    "prefill yields the first token of each answer, and the page does not tell how many answers there were: a greater "
    "share drafted, most of all where answers are short; give --answers N"
)


def counted_pages(
    place: str, after: CounterPage, before: CounterPage | None, *, engine: str = "", model: str = ""
) -> CountedAcceptance:
    """Return what a server counted, between two pages or since its start; `place` names the page in errors.

    `engine` and `model` are those of the page unless given.

    RequestError: the page is of no engine with acceptance by position, or its server was restarted in between.
    """
    names = COUNTERS[engine or require_engine(after, place)]
    try:
        counts = counts_of(after, names, model) if before is None else counts_between(after, before, names, model)
        return accepted_of(counts, names)
    except (MeasurementError, RequestError) as error:
        raise RequestError(f"{place}: {error}") from error


def of_all_rounds(
    run: CountedAcceptance, place: str, answers: int | None = None
) -> tuple[CountedAcceptance, tuple[float, ...], tuple[str, ...]]:
    """Return a server's counts, its acceptance by position over all rounds, and notes.

    Rounds without a draft, frequent with n-grams, are in a server's times but not in its acceptance. `answers` tells
    how many were counted, where the page does not: prefill yields the first token of each.

    Raises:
        RequestError: the page tells nothing by position, or itself says how many answers there were.
    """
    if not run.by_position:
        raise RequestError(f"{place} has no acceptance by position; count while chains are drafted")
    if answers is not None:
        run = _without_first_tokens(run, answers, place)
    share, notes = 1.0, list(run.notes)
    if run.rounds is None or not run.drafts:
        notes.append("the page does not tell rounds that drafted nothing; where n-grams draft, there are many")
    else:
        share = min(run.drafts / run.rounds, 1.0)
        if share < SELDOM:
            notes.append(f"{100 * share:.0f} % of the rounds drafted anything; acceptance is told of all of them")
            if run.has_first_tokens:
                notes.append(FIRST_TOKENS)
    return run, tuple(share * rate for rate in run.by_position), tuple(notes)


def _without_first_tokens(run: CountedAcceptance, answers: int, place: str) -> CountedAcceptance:
    if run.rounds is None or not run.has_first_tokens:
        raise RequestError(f"{place} does not need the number of answers; leave --answers out")
    left = run.rounds - answers
    if run.drafts is None or left < run.drafts:
        raise RequestError(
            f"{place} leaves {left} rounds behind the first tokens of {answers} answers, and {run.drafts} drafted; "
            "give the answers that these counters are of"
        )
    return replace(run, rounds=left, has_first_tokens=False)
