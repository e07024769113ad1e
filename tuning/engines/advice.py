"""An engine's counters as advice needs them: acceptance by position, of all rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...errors import RequestError
from .counters import CountedAcceptance, CounterFormat, page_of, read_counters

SELDOM = 0.95  # share of rounds that draft: where fewer do, people are told
FIRST_TOKENS = (
    "prefill yields the first token of each answer, and the file does not tell how many answers there were: a greater "
    "share drafted, most of all where answers are short; give --answers N"
)


def counted_run(
    file: Path, file_format: CounterFormat | None = None, answers: int | None = None
) -> tuple[CountedAcceptance, tuple[float, ...], tuple[str, ...]]:
    """Return a server's counts, its acceptance by position over all rounds, and notes.

    Rounds without a draft, frequent with n-grams, are in a server's times but not in its acceptance. `answers` tells
    how many were counted, where the file does not: prefill yields the first token of each.

    Raises:
        RequestError: the file cannot be read, tells nothing by position, or itself says how many answers there were.
    """
    (run,) = read_counters(file, file_format or page_of(file)).acceptance
    if not run.by_position:
        raise RequestError(f"{file} has no acceptance by position; count while chains are drafted")
    if answers is not None:
        run = _without_first_tokens(run, answers, file)
    share, notes = 1.0, list(run.notes)
    if run.rounds is None or not run.drafts:
        notes.append("the file does not tell rounds that drafted nothing; where n-grams draft, there are many")
    else:
        share = min(run.drafts / run.rounds, 1.0)
        if share < SELDOM:
            notes.append(f"{100 * share:.0f} % of the rounds drafted anything; acceptance is told of all of them")
            if run.has_first_tokens:
                notes.append(FIRST_TOKENS)
    return run, tuple(share * rate for rate in run.by_position), tuple(notes)


def _without_first_tokens(run: CountedAcceptance, answers: int, file: Path) -> CountedAcceptance:
    if run.rounds is None or not run.has_first_tokens:
        raise RequestError(f"{file} does not need the number of answers; leave --answers out")
    left = run.rounds - answers
    if run.drafts is None or left < run.drafts:
        raise RequestError(
            f"{file} leaves {left} rounds behind the first tokens of {answers} answers, and {run.drafts} drafted; give "
            "the answers that these counters are of"
        )
    return replace(run, rounds=left, has_first_tokens=False)
