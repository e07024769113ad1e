"""Pages of counters: of a file, a server's URL, or a Prometheus server that scrapes many."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlencode

from ...engines.counters import CounterPage, page_of
from ...engines.load import Address
from ...engines.server_engine import scraped
from ...engines.table import COUNTERS
from ...errors import MeasurementError
from .counters import read_text

QUERY_S = 30.0


def read_page(place: str, key: str = "") -> CounterPage:
    """Return the page in a file or of a server's URL; RequestError or MeasurementError where it cannot be read."""
    if not place.startswith(("http://", "https://")):
        return page_of(read_text(Path(place), "a metrics page"))
    url = place.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    return scraped(Address(url=url, key=key))


def pages_of(place: str, seconds: float, key: str = "") -> tuple[CounterPage, CounterPage]:
    """Return a server's page now and that of some seconds later."""
    before = read_page(place, key)
    time.sleep(seconds)
    return before, read_page(place, key)


def queried(address: Address, match: str = "") -> CounterPage:
    """Return the newest counters of engines that a Prometheus server has, as one page.

    `match` are more matchers of labels, such as `job="vllm"`. MeasurementError where its HTTP API does not answer.
    """
    names = "|".join(f"{name}(_total)?" for own in COUNTERS.values() for name in (*own.counters, *own.gauges))
    selector = f'{{__name__=~"{names}"{f",{match}" if match else ""}}}'
    answer = address.get(f"/api/v1/query?{urlencode({'query': selector})}", QUERY_S)
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    try:
        for one in answer.json()["data"]["result"]:
            labels = dict(one["metric"])
            name = labels.pop("__name__").removesuffix("_total")
            found[name, tuple(sorted(labels.items()))] = float(one["value"][1])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise MeasurementError(
            f"{address.url} answers {answer.status_code}, not as Prometheus does: {answer.text[:200]!r}; give the URL "
            "of its HTTP API, and matchers that it reads"
        ) from error
    return found
