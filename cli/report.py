"""How commands speak: results on stdout as tables or JSON, everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..tuning.profiled_last import Workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much a command prints, received by `click.pass_obj`; quiet and verbose exclude each other."""

    quiet: bool = False  # no progress on stderr
    verbose: bool = False  # more of it, and tracebacks

    def __post_init__(self) -> None:
        assert not (self.quiet and self.verbose), "the group refuses --quiet with --verbose"


Progress = Callable[[str, float], None]  # (what is being done, share of it done)
PIPE_WIDTH = 160  # columns of a table that no terminal limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows for people; every row has as many values as there are columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def print_json(facts: Any) -> None:  # Any: JSON values
    """Print one JSON value on one line of stdout; what is not a number must come as None."""
    click.echo(json.dumps(facts, allow_nan=False))


def print_facts(facts: Any, shown: Iterable[Table | str], *, as_json: bool) -> None:  # Any: JSON values
    """Print facts on one line as JSON, or else what of them is for people."""
    if as_json:
        print_json(facts)
    else:
        show(shown)


def show(shown: Iterable[Table | str]) -> None:
    """Print tables and lines, one after the other."""
    for each in shown:
        if isinstance(each, Table):
            print_table(each)
        else:
            click.echo(each)


def facts_of(record: object) -> Any:
    """Return a record of spectune as JSON values."""
    from ..profiler.records.wire import to_json

    return json.loads(to_json(record))


def print_table(table: Table) -> None:
    """Print a table; columns of numbers are aligned right, and None is a dash."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, header_style="dim")
    for place, column in enumerate(table.columns):
        is_number = any(isinstance(row[place], int | float) for row in table.rows)
        grid.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(_shown(value) for value in row))
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    console.print(table.title, style="bold")
    console.print(grid, "")


def tell(settings: Settings, line: str) -> None:
    """Print a line on stderr, unless nothing but results is wanted."""
    if not settings.quiet:
        click.echo(line, err=True)


@contextmanager
def progress(settings: Settings) -> Iterator[Progress]:
    """Yield what a job reports to: a bar on a terminal, else one line per step, or nothing if quiet."""
    if settings.quiet:
        yield lambda what, share: None
    elif sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield Lines()


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()  # `TimeLeft` says the time
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


class TimeLeft:
    """A progress that also says how long the rest takes at the pace so far; `about` is "about" or "at most"."""

    def __init__(self, report: Progress, about: str = "about", clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._about, self._clock = report, about, clock
        self._first, self._began = math.inf, 0.0

    def __call__(self, what: str, share: float) -> None:
        """Report a share; the time is that of shares beyond the first one, which an earlier run may have done."""
        if share < self._first:
            self._first, self._began = share, self._clock()
        elif share > self._first:
            left_s = (self._clock() - self._began) * max(1.0 - share, 0.0) / (share - self._first)
            what += f", {self._about} {f'{left_s:.0f} s' if left_s < 120.0 else f'{left_s / 60.0:.0f} min'} left"
        self._report(what, share)


class Lines:
    """A progress of one line per step."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, what: str, share: float) -> None:
        """Print a step when it begins."""
        if what != self._last:
            click.echo(what, err=True)
            self._last = what


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def tell_workload(settings: Settings, workloads: Workloads, why: str) -> None:
    """Say which workload was taken, where another one could have been meant."""
    if workloads.others:
        tell(settings, f"workload {workloads.last!r}, {why}; --workload takes another: {', '.join(workloads.others)}")
