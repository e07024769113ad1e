"""`spectune advise`: how many tokens an engine should draft, by its counters and a few token times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from . import options
from .report import Settings, Table, facts_of, print_json, print_table

if TYPE_CHECKING:
    from ..planner.engines.advice import Advice
    from ..tuning.engines.counters import CounterFormat

FORMATS = ("vllm-metrics", "llama-metrics")  # that tell acceptance by position, and rounds


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


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format", "file_format", type=click.Choice(FORMATS), help="Of FILE; read from its counters' names unless given."
)
@click.option(
    "--answers",
    type=click.IntRange(1),
    metavar="N",
    help="Answers that FILE counts, where it does not say, as llama.cpp's: prefill yields the first token of each.",
)
@click.option(
    "--tpot",
    "tpot_ms",
    multiple=True,
    required=True,
    metavar="LENGTH=MS",
    callback=times_of,
    help="Milliseconds per output token (mean TPOT) while so many are drafted, 0 being plain decoding; not the "
    "inter-token latency, which vLLM and SGLang take per step. Repeatable; 0 and one other length are needed.",
)
@options.as_json
@click.pass_obj
def advise(
    _settings: Settings,
    /,
    file: Path,
    file_format: str | None,
    answers: int | None,
    tpot_ms: dict[int, float],
    as_json: bool,
) -> None:
    """Find a running server's best draft length.

    FILE holds the server's counters while it drafted its longest chain. Give the time per output token (TPOT) with
    and without drafts, under the same load. From both follows the speed of every shorter chain. Nothing is profiled
    or saved. For trees, other drafters and other loads use `spectune profile` and `spectune plan`.

    \b
        curl -s localhost:8000/metrics > metrics.txt
        spectune advise metrics.txt --tpot 0=7.1 --tpot 5=4.9
    """
    from ..planner.engines.advice import advise as advised
    from ..tuning.engines.advice import counted_run

    run, by_position, notes = counted_run(file, cast("CounterFormat | None", file_format), answers)
    found = advised(by_position, tpot_ms, run.rounds or run.drafts)
    notes = (*notes, *found.notes)
    if as_json:
        facts = facts_of(found)
        print_json({**facts, "speedup": found.speedup, "is_longest": found.is_longest, "notes": list(notes)})
        return
    print_table(_table(found, run.about))
    for line in (*_said(found), *(f"note: {note}" for note in notes)):
        click.echo(line)


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
