"""Every plan of a store, newest first."""

from __future__ import annotations

from itertools import pairwise

from .contents import Contents, PlanSetup, setup_of
from .links import PLANS, Links
from .page import SitePage, page_of

MOST = 500


def plans_page(contents: Contents, links: Links) -> SitePage:
    """Return the list of plans."""
    newest = contents.newest_plans(MOST)
    shown: dict[PlanSetup, list[int]] = {}
    for row in reversed(newest):
        shown.setdefault(setup_of(row), []).append(row.id)
    before = {id: older for ids in shown.values() for older, id in pairwise(ids)}
    left = sum(row.plans for row in contents.setups.values()) - len(newest)
    return page_of("plans.html", links, PLANS, "Plans", contents=contents, newest=newest, before=before, left=left)
