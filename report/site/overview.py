"""The first page: devices, targets, the plans that count, and what drifted."""

from __future__ import annotations

from collections import Counter, defaultdict

from .contents import Contents
from .drift import standings
from .links import HOME, Links
from .page import SitePage, page_of
from .words import plain_device

MOST_SETUPS = 24  # of which plans are read
MOST_TRACES = 60


def overview_page(contents: Contents, links: Links) -> SitePage:
    """Return the overview of a store."""
    found = standings(contents, MOST_SETUPS)
    plans, newest = Counter[str](), defaultdict[str, str](str)
    for setup, row in contents.setups.items():
        plans[plain_device(setup.device)] += row.plans
    for entry in contents.surfaces:
        newest[entry.key.device] = max(newest[entry.key.device], entry.newest)
    return page_of(
        "overview.html",
        links,
        HOME,
        "Overview",
        contents=contents,
        found=found,
        drifted=[each for each in found if each.drifted],
        among=f" among the newest {len(found)} setups" if len(found) < len(contents.setups) else "",
        targets=len({setup.target for setup in contents.setups} | {row.target for row in contents.traces}),
        surfaces=Counter(entry.key.device for entry in contents.surfaces),
        plans=plans,
        newest=newest,
        traces=contents.traces[::-1][:MOST_TRACES],
    )
