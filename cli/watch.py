"""`spectune watch`: whether running servers decode as was planned."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options, plan_name
from .command import Command
from .existing import NOTHING, opened_there
from .report import Settings, tell
from .watch_output import families, print_seen

if TYPE_CHECKING:
    from ..engines.counters import CounterPage
    from ..planner.plans.plan import Plan
    from ..tuning.engines.expected import Expected
    from ..tuning.engines.watch import FleetObservation, FleetWatch

SAMPLE_S = 10.0  # between two looks at the running batch


@click.command(
    cls=Command,
    basic=("plan", "bundle", "prometheus", "match", "interval", "for", "once", "listen", "model-name", "json"),
)
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--plan", metavar="PLAN", callback=plan_name.plan_name, help="A number of the list or a file.")
@click.option("--bundle", metavar="FILE", type=click.Path(path_type=Path), help="What tune --bundle wrote, instead.")
@click.option("--prometheus", metavar="URL", help="Read a Prometheus server that scrapes the fleet, instead of URLs.")
@click.option("--match", default="", metavar="LABELS", help='With --prometheus: of which servers, job="vllm".')
@click.option("--before", metavar="FILE", help="Report what lies between this page and that of --after, instead.")
@click.option("--after", metavar="FILE", help="A later page of the same server.")
@click.option("--model-name", default="", metavar="NAME", help="Whose counters, where servers have several models.")
@click.option(
    "--interval",
    "interval_s",
    default="60s",
    show_default=True,
    metavar="60s",
    callback=options.span,
    help="Of reports.",
)
@click.option(
    "--for", "seconds", metavar="60s", callback=options.span, help="One report of so long; 10m is ten minutes."
)
@click.option("--once", is_flag=True, help="One report of all since the servers started.")
@click.option("--listen", "port", metavar="PORT", type=click.IntRange(0, 65535), help="Show metrics at PORT/metrics.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where --listen listens.")
@options.store
@options.as_json
@click.pass_obj
def watch(
    settings: Settings,
    /,
    urls: tuple[str, ...],
    plan: str | None,
    bundle: Path | None,
    prometheus: str | None,
    match: str,
    before: str | None,
    after: str | None,
    model_name: str,
    interval_s: float,
    seconds: float | None,
    once: bool,
    port: int | None,
    host: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Tell whether servers decode as was planned.

    Reads counters at every URL, and says when acceptance or the running batch left the plan, and what a new plan would
    gain. Nothing is sent to servers but requests for their metrics. A Prometheus server tells of a fleet at once.

    \b
        spectune watch http://one:8000 http://two:8000 --plan 7
        spectune watch http://one:8000 --bundle out.json --for 60s --json
        spectune watch --prometheus http://prometheus:9090 --match 'job="vllm"' --plan 7 --listen 9400
    """
    from ..tuning.engines.watch import FleetWatch

    pages = [page for page in (before, after) if page is not None]
    if len(pages) == 1 or sum(map(bool, (urls, prometheus, pages))) != 1:
        raise click.UsageError("give URLs of servers, or --prometheus URL, or two pages with --before and --after.")
    if match and not prometheus:
        raise click.UsageError("--match chooses among what a Prometheus server has; give --prometheus URL.")
    if pages and (once or seconds is not None or port is not None):
        raise click.UsageError("two pages make one report; --once, --for and --listen go with URLs or --prometheus.")
    if (plan is None) == (bundle is None):
        raise click.UsageError("give --plan PLAN or --bundle FILE.")
    servers = _two_pages(pages) if pages else _servers(urls, prometheus, match)
    expected, planned_for = _expected(settings, plan, bundle, store)
    fleet = FleetWatch(expected, servers, model=model_name, planned_for=planned_for)
    fleet.look()
    if pages:
        fleet.begin()
        fleet.look()
    if once or pages:
        print_seen(fleet.seen(), _now(), as_json=as_json)
        return
    fleet.begin()
    with _shown(settings, host, port) as show:
        while True:
            _wait(fleet, seconds or interval_s)
            seen = fleet.seen()
            print_seen(seen, _now(), as_json=as_json)
            show(seen)
            if seconds is not None:
                return


def _expected(
    settings: Settings, plan: str | None, bundle: Path | None, store: str | None
) -> tuple[tuple[Expected, ...], str]:
    """Return what was planned, and for which engine."""
    from ..engines.bundle import read_bundle
    from ..errors import SpectuneError
    from ..planner.plans.document import plan_from_json
    from ..tuning.engines.expected import expected_of_bundle, expected_of_plan

    if bundle is not None:
        tuned = read_bundle(bundle)
        return expected_of_bundle(tuned), tuned.setup.engine
    assert plan is not None
    if not plan_name.is_number(plan):
        found = plan_from_json(plan_name.document_of(Path(plan)))
        return expected_of_plan(found), _engine_of(found)
    with opened_there(store, NOTHING, writes=False) as opened:
        found = plan_from_json(opened.plan(int(plan)))
        try:
            return expected_of_plan(found, opened), _engine_of(found)
        except SpectuneError as error:
            tell(settings, f"other lengths are priced by the plan alone: {error}")
            return expected_of_plan(found), _engine_of(found)


def _engine_of(plan: Plan) -> str:
    from ..runtime.engines.regime import measured_in

    own = measured_in(plan)
    return "" if own is None else own.engine


def _two_pages(pages: list[str]) -> dict[str, Callable[[], CounterPage]]:
    from ..tuning.engines.pages import read_page

    ahead = iter([read_page(page) for page in pages])
    return {pages[-1]: lambda: next(ahead)}


def _servers(urls: tuple[str, ...], prometheus: str | None, match: str) -> dict[str, Callable[[], CounterPage]]:
    from ..engines.load import Address
    from ..tuning.engines.pages import queried, read_page

    if prometheus is not None:  # an engine's key in OPENAI_API_KEY is none of its business
        key = os.environ.get("SPECTUNE_API_KEY", "")
        return {prometheus: partial(queried, Address(url=prometheus.rstrip("/"), key=key), match)}
    if wrong := [url for url in urls if not url.startswith(("http://", "https://"))]:
        raise click.UsageError(f"{wrong[0]!r} is no URL; write for example http://127.0.0.1:8000.")
    return {url: partial(read_page, url, options.api_key()) for url in urls}


def _wait(fleet: FleetWatch, seconds: float) -> None:
    """Look at the fleet now and then, and at the end of a span."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0.0:
        time.sleep(min(left, SAMPLE_S, seconds / 6.0))
        fleet.look()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _shown(settings: Settings, host: str, port: int | None) -> Iterator[Callable[[FleetObservation], None]]:
    """Yield what shows a report as metrics at a port, if there is one."""
    if port is None:
        yield lambda seen: None
        return
    from ..runtime.watch.prometheus import exposition
    from ..service.metrics_page import metrics_page

    events = 0
    with metrics_page(host, port) as page:
        tell(settings, f"metrics at http://{host}:{page.server_port}/metrics")

        def show(seen: FleetObservation) -> None:
            nonlocal events
            events += len(seen.events)
            page.text = exposition(families(seen, events))

        yield show
