"""`spectune advise`: how many tokens an engine should draft, by its counters and a few token times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from . import options
from .report import Table, facts_of, print_json, print_table
from .settings import Settings

if TYPE_CHECKING:
    from ..planner.engines.advice import Advice
    from ..tuning.engines.counters import CounterFormat

FORMATS = ("vllm-metrics", "llama-metrics", "sglang-bench")  # that tell acceptance by position


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
                f"{text!r} is no LENGTH=MS of a length of its own; write for example --itl 0=7.1 --itl 5=4.9"
            ) from error
    return found


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format", "file_format", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="Of FILE."
)
@click.option(
    "--itl",
    "itl_ms",
    multiple=True,
    required=True,
    metavar="LENGTH=MS",
    callback=times_of,
    help="Milliseconds between two tokens of one sequence while so many are drafted, 0 being plain decoding. "
    "Repeatable; 0 is needed, and one other length unless the file tells times.",
)
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Which batch size of a sglang-bench file.")
@options.as_json
@click.pass_obj
def advise(
    _settings: Settings, /, file: Path, file_format: str, itl_ms: dict[int, float], batch: int | None, as_json: bool
) -> None:
    """Tell how long an engine's drafts should be.

    FILE holds the engine's counters while it drafted its longest chain. With the time between two tokens
    with and without drafts, measured under the same load, they tell what every shorter chain would
    bring. Nothing is profiled and nothing is kept; trees, other drafters and other loads need
    spectune profile and plan.

    \b
        curl -s localhost:8000/metrics > metrics.txt
        spectune advise metrics.txt --itl 0=7.1 --itl 5=4.9
    """
    from ..planner.engines.advice import advise as advised
    from ..tuning.engines.advice import counted_run

    run, timed = counted_run(file, cast("CounterFormat", file_format), batch)
    found = advised(run.by_position, timed | itl_ms, run.drafts)
    if as_json:
        facts = facts_of(found)
        print_json({**facts, "speedup": found.speedup, "is_longest": found.is_longest, "notes": list(run.notes)})
        return
    print_table(_table(found, run.about))
    for line in (*_said(found), *(f"note: {note}" for note in run.notes)):
        click.echo(line)


def _table(found: Advice, about: str) -> Table:
    rows = [
        (
            one.length,
            one.tokens_per_round,
            one.tokens_error,
            one.itl_ms,
            None if one.is_measured else one.most_itl_ms,
            found.lengths[0].itl_ms / one.itl_ms,
        )
        for one in found.lengths
    ]
    columns = ("drafted tokens", "tokens a round", "+-", "ms a token", "at most", "times plain")
    return Table(title=f"{about}: chains by length", columns=columns, rows=rows)


def _said(found: Advice) -> list[str]:
    best, surest = found.best, found.surest
    if best.length == 0:
        lines = ["do not speculate: no length is faster than plain decoding"]
    else:
        lines = [f"draft {best.length}: {best.itl_ms:.2f} ms a token, {found.speedup:.2f} times plain decoding"]
    if found.as_good:
        lines.append(f"as good, within 2 %: {', '.join(map(str, found.as_good))}")
    if surest.length != best.length:
        lines.append(
            f"not sure: if the first drafted token costs as much as all, {surest.length} is the fastest; measure "
            f"--itl {best.length}=MS, too"
        )
    if found.is_longest and best.length:
        lines.append(
            "this is the longest that ran; longer ones may be faster: let the engine draft more and count anew"
        )
    return lines
