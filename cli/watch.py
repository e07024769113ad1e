"""`spectune watch`: whether running servers decode as was planned."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options, plan_name
from .command import Args, command
from .existing import NOTHING, opened_there
from .option import argument, flag, option, path_option, whole
from .report import tell
from .watch_output import families, print_seen

if TYPE_CHECKING:
    from ..engines.counters import CounterPage
    from ..planner.plans.plan import Plan
    from ..tuning.engines.expected import Expected
    from ..tuning.engines.watch import FleetObservation, FleetWatch

SAMPLE_S = 10.0  # between two looks at the running batch


@dataclass(frozen=True, kw_only=True)
class WatchArgs(Args):
    """What was typed."""

    urls: tuple[str, ...] = argument(nargs=-1, metavar="[URL]...")
    plan: str | None = option("A number of the list or a file.", metavar="PLAN", callback=plan_name.plan_name)
    bundle: Path | None = path_option("What tune --bundle wrote, instead.")
    prometheus: str | None = option("Read a Prometheus server that scrapes the fleet, instead of URLs.", metavar="URL")
    match: str = option('With --prometheus: of which servers, job="vllm".', absent="", metavar="LABELS")
    before: str | None = option("Report what lies between this page and that of --after, instead.", metavar="FILE")
    after: str | None = option("A later page of the same server.", metavar="FILE")
    model_name: str = options.model_name.but(help="Whose counters, where servers have several models.")
    interval_s: float = option("Of reports.", "--interval", default="60s", metavar="60s", callback=options.span)
    seconds: float | None = options.seconds.but(help="One report of so long; 10m is ten minutes.")
    once: bool = flag("One report of all since the servers started.")
    port: int | None = whole("Show metrics at PORT/metrics.", "--listen", least=0, most=65535, metavar="PORT")
    host: str = options.host.but(help="Where --listen listens.")
    store: str | None = options.store
    as_json: bool = options.as_json

    def require_consistent(self) -> None:
        """Refuse options that contradict each other."""
        pages = (self.before, self.after) != (None, None)
        if (self.before is None) != (self.after is None) or sum(map(bool, (self.urls, self.prometheus, pages))) != 1:
            raise click.UsageError("give URLs of servers, or --prometheus URL, or two pages with --before and --after.")
        if self.match and not self.prometheus:
            raise click.UsageError("--match chooses among what a Prometheus server has; give --prometheus URL.")
        if pages and (self.once or self.seconds is not None or self.port is not None):
            raise click.UsageError(
                "two pages make one report; --once, --for and --listen go with URLs or --prometheus."
            )
        if (self.plan is None) == (self.bundle is None):
            raise click.UsageError("give --plan PLAN or --bundle FILE.")


@command(WatchArgs, basic="plan bundle prometheus match interval for once listen model-name json")
def watch(args: WatchArgs) -> None:
    """Tell whether servers decode as was planned.

    Reads counters at every URL, and says when acceptance or the running batch left the plan, and what a new plan would
    gain. Nothing is sent to servers but requests for their metrics. A Prometheus server covers a fleet at once.

    \b
        spectune watch http://one:8000 http://two:8000 --plan 7
        spectune watch http://one:8000 --bundle out.json --for 60s --json
        spectune watch --prometheus http://prometheus:9090 --match 'job="vllm"' --plan 7 --listen 9400
    """
    from ..tuning.engines.watch import FleetWatch

    args.require_consistent()
    pages = [page for page in (args.before, args.after) if page is not None]
    servers = _two_pages(pages) if pages else _servers(args)
    expected, planned_for = _expected(args)
    fleet = FleetWatch(expected, servers, model=args.model_name, planned_for=planned_for)
    fleet.look()
    if pages:
        fleet.begin()
        fleet.look()
    if args.once or pages:
        print_seen(fleet.seen(), _now(), as_json=args.as_json)
        return
    fleet.begin()
    with _shown(args) as show:
        while True:
            _wait(fleet, args.seconds or args.interval_s)
            seen = fleet.seen()
            print_seen(seen, _now(), as_json=args.as_json)
            show(seen)
            if args.seconds is not None:
                return


def _expected(args: WatchArgs) -> tuple[tuple[Expected, ...], str]:
    """Return what was planned, and for which engine."""
    from ..engines.bundle import read_bundle
    from ..errors import SpectuneError
    from ..planner.plans.document import plan_from_json
    from ..tuning.engines.expected import expected_of_bundle, expected_of_plan

    if args.bundle is not None:
        tuned = read_bundle(args.bundle)
        return expected_of_bundle(tuned), tuned.setup.engine
    assert args.plan is not None
    if not plan_name.is_number(args.plan):
        found = plan_from_json(plan_name.document_of(Path(args.plan)))
        return expected_of_plan(found), _engine_of(found)
    with opened_there(args.store, NOTHING, writes=False) as opened:
        found = plan_from_json(opened.plan(int(args.plan)))
        try:
            return expected_of_plan(found, opened), _engine_of(found)
        except SpectuneError as error:
            tell(args.settings, f"other lengths are priced by the plan alone: {error}")
            return expected_of_plan(found), _engine_of(found)


def _engine_of(plan: Plan) -> str:
    from ..engines.regime import measured_in

    own = measured_in(plan)
    return "" if own is None else own.engine


def _two_pages(pages: list[str]) -> dict[str, Callable[[], CounterPage]]:
    from ..tuning.engines.pages import read_page

    ahead = iter([read_page(page) for page in pages])
    return {pages[-1]: lambda: next(ahead)}


def _servers(args: WatchArgs) -> dict[str, Callable[[], CounterPage]]:
    from ..engines.load import Address
    from ..tuning.engines.pages import queried, read_page

    if args.prometheus is not None:  # an engine's key in OPENAI_API_KEY is none of its business
        key = os.environ.get("SPECTUNE_API_KEY", "")
        return {args.prometheus: partial(queried, Address(url=args.prometheus.rstrip("/"), key=key), args.match)}
    if wrong := [url for url in args.urls if not url.startswith(("http://", "https://"))]:
        raise click.UsageError(f"{wrong[0]!r} is no URL; write for example http://127.0.0.1:8000.")
    return {url: partial(read_page, url, options.api_key()) for url in args.urls}


def _wait(fleet: FleetWatch, seconds: float) -> None:
    """Look at the fleet now and then, and at the end of a span."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0.0:
        time.sleep(min(left, SAMPLE_S, seconds / 6.0))
        fleet.look()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _shown(args: WatchArgs) -> Iterator[Callable[[FleetObservation], None]]:
    """Yield what shows a report as metrics at a port, if there is one."""
    if args.port is None:
        yield lambda seen: None
        return
    from ..runtime.watch.prometheus import exposition
    from ..service.metrics_page import metrics_page

    events = 0
    with metrics_page(args.host, args.port) as page:
        tell(args.settings, f"metrics at http://{args.host}:{page.server_port}/metrics")

        def show(seen: FleetObservation) -> None:
            nonlocal events
            events += len(seen.events)
            page.text = exposition(families(seen, events))

        yield show
