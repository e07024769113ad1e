"""Every plan of a store, newest first."""

from __future__ import annotations

from itertools import pairwise

from .contents import Contents, PlanSetup, setup_of
from .grid import number, table, under, words
from .links import PLANS, Links, difference_page, plan_page
from .markup import joined
from .page import SitePage, head, link, note
from .words import NONE, apart, count, moment, plan_state, sampling

MOST = 500


def plans_page(contents: Contents, links: Links) -> SitePage:
    """Return the list of plans."""
    newest = contents.newest_plans(MOST)
    shown: dict[PlanSetup, list[int]] = {}
    for row in reversed(newest):
        shown.setdefault(setup_of(row), []).append(row.id)
    before = {id: older for ids in shown.values() for older, id in pairwise(ids)}
    rows = [
        (
            link(links, plan_page(row.id), f"{row.id}"),
            contents.model_name(row.target),
            under(contents.device_name(row.device), apart(row.device, row.workload)),
            row.workload,
            sampling(row.temperature),
            f"{row.version}",
            plan_state(row.state),
            moment(row.created),
            link(links, difference_page(before[row.id], row.id), f"since {before[row.id]}")
            if row.id in before
            else NONE,
        )
        for row in newest
    ]
    columns = [
        words("Plan"), words("Target"), words("Device"), words("Workload"), words("Sampling"), number("Version"),
        words("State"), number("Made"), words("Differences"),
    ]  # fmt: skip
    left = sum(row.plans for row in contents.setups.values()) - len(newest)
    more = note(f"{count(left, 'older plan')} not shown.") if left else None
    said = table("Plans, newest first", columns, rows) if rows else note("There is no plan yet.")
    return SitePage(name=PLANS, title="Plans", body=joined(head(None, "Plans"), said, more))
