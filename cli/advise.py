"""`spectune advise`: how many tokens an engine should draft, by its counters and a few token times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from . import options
from .command import Args, command
from .option import argument, choice, option, whole
from .report import Table, facts_of, print_facts

if TYPE_CHECKING:
    from ..planner.engines.advice import Advice

FORMATS = {"vllm-metrics": "vllm", "llama-metrics": "llama.cpp"}  # that tell acceptance by position, and rounds


def times_of(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> dict[int, float]:
    """Return milliseconds by drafted tokens."""
    found: dict[int, float] = {}
    for text in texts:
        length, separator, time = text.partition("=")
        try:
            if not separator or int(length) in found:
                raise ValueError
            found[int(length)] = float(time)
        except ValueError as error:
            raise click.BadParameter(
                f"{text!r} is no LENGTH=MS, or repeats a length; write for example --tpot 0=7.1 --tpot 5=4.9"
            ) from error
    return found


@dataclass(frozen=True, kw_only=True)
class AdviseArgs(Args):
    """What was typed."""

    page: str | None = argument(metavar="[FILE|URL]", required=False)
    before: str | None = option("Count from this page on, up to that of --after.", metavar="FILE")
    after: str | None = option("Count up to this page, from that of --before on.", metavar="FILE")
    seconds: float | None = options.seconds.but(help="Count at the URL for so long; 10m is ten minutes.")
    model_name: str = options.model_name.but(help="Whose counters, where a page has several models.")
    file_format: str | None = choice("Of the page; by default its counters' names decide.", [*FORMATS], "--format")
    answers: int | None = whole(
        "Answers that the page counts, where it does not say, as llama.cpp's: prefill yields the first token of each.",
        metavar="N",
    )
    tpot_ms: dict[int, float] = option(
        "Milliseconds per output token (mean TPOT) while so many are drafted, 0 being plain decoding; not the "
        "inter-token latency, which vLLM and SGLang take per step. Repeatable; 0 and one other length are needed.",
        "--tpot",
        multiple=True,
        required=True,
        metavar="LENGTH=MS",
        callback=times_of,
    )
    as_json: bool = options.as_json


@command(AdviseArgs)
def advise(args: AdviseArgs) -> None:
    """Find a running server's best draft length.

    FILE or URL holds the server's counters while it drafted its longest chain: since its start, or with --for, or
    between the pages --before and --after. Give the time per output token (TPOT) with and without drafts, under the
    same load. From both follows the speed of every shorter chain. Nothing is profiled or saved. For trees, other
    drafters and other loads use `spectune profile` and `spectune plan`.

    \b
        spectune advise http://localhost:8000 --for 60s --tpot 0=7.1 --tpot 5=4.9
        spectune advise --before one.txt --after two.txt --tpot 0=7.1 --tpot 5=4.9
    """
    from ..planner.engines.advice import advise as advised
    from ..tuning.engines.advice import counted_pages, of_all_rounds
    from ..tuning.engines.pages import pages_of, read_page

    if (args.before is None) != (args.after is None) or (args.page is None) == (args.after is None):
        raise click.UsageError("give FILE or URL, or two pages with --before and --after.")
    place, earlier = args.page or args.after or "", None
    if args.seconds is not None:
        if not place.startswith(("http://", "https://")):
            raise click.UsageError("--for counts at a URL; of pages in files give --before and --after.")
        earlier, latest = pages_of(place, args.seconds, options.api_key())
    else:
        earlier = None if args.before is None else read_page(args.before)
        latest = read_page(place, options.api_key())
    engine = FORMATS[args.file_format] if args.file_format else ""
    counted = counted_pages(place, latest, earlier, engine=engine, model=args.model_name)
    run, by_position, notes = of_all_rounds(counted, place, args.answers)
    found = advised(by_position, args.tpot_ms, run.rounds or run.drafts)
    notes = (*notes, *found.notes)
    facts = {**facts_of(found), "speedup": found.speedup, "is_longest": found.is_longest, "notes": list(notes)}
    print_facts(facts, _shown(found, run.about, notes), as_json=args.as_json)


def _shown(found: Advice, about: str, notes: Sequence[str]) -> Iterator[Table | str]:
    yield _table(found, about)
    yield from _said(found)
    yield from (f"note: {note}" for note in notes)


def _table(found: Advice, about: str) -> Table:
    rows = [
        (
            one.length,
            one.tokens_per_round,
            one.tokens_error,
            one.tpot_ms,
            "measured" if one.is_measured else f"{one.least_ms:.2f} to {one.most_ms:.2f}",
            found.lengths[0].tpot_ms / one.tpot_ms,
        )
        for one in found.lengths
    ]
    columns = ("drafted tokens", "tokens a round", "+-", "ms a token", "surely", "times plain")
    return Table(title=f"{about}: chains by length", columns=columns, rows=rows)


def _said(found: Advice) -> list[str]:
    best = found.best
    if best.length == 0:
        lines = ["do not speculate: no length is faster than plain decoding, as far as was measured"]
    else:
        lines = [f"draft {best.length}: {best.tpot_ms:.2f} ms a token, {found.speedup:.2f} times plain decoding"]
    if not best.is_measured:
        lines.append(
            f"that is guessed between lengths that were measured; to be sure run it and add --tpot {best.length}=MS"
        )
    if found.as_good:
        lines.append(f"as good, within 2 %: {', '.join(map(str, found.as_good))}")
    others = [length for length in found.open if length != best.length]
    if others:
        lines.append(f"not measured, and may be faster still: {', '.join(map(str, others))}")
    if found.is_longest and best.length:
        lines.append(
            "this is the longest that ran; longer ones may be faster: let the engine draft more and count anew"
        )
    return lines
