"""The planning jobs of a service: what they are for, how far they are, and why one failed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...db.jobs.jobs import JobRow
from .contents import Contents
from .grid import number, table, words
from .links import JOBS, Links, plan_page
from .markup import Child, Html, joined, tag
from .page import SitePage, head, link, note
from .words import NONE, count, moment, status

SIGNS = {"done": "good", "failed": "warning", "running": "progress"}


def jobs_page(contents: Contents, links: Links, jobs: Sequence[JobRow], older: int = 0) -> SitePage:
    """Return the list of jobs as it was given, and how many older ones there are."""
    rows = [
        (
            tag("code", job.key[:8]),
            _what(contents, job),
            status(job.state, SIGNS.get(job.state, "open")),
            _progress(job),
            job.error or job.note,
            NONE if job.plan_id is None else link(links, plan_page(job.plan_id), f"plan {job.plan_id}"),
            f"{job.attempts}",
            moment(job.created),
        )
        for job in jobs
    ]
    columns = [
        words("Job"), words("What"), words("State"), words("Progress"), words("Last said"), words("Made"),
        number("Attempts"), number("Asked for"),
    ]  # fmt: skip
    said = table("Planning jobs, newest first", columns, rows) if rows else note("No job was asked for yet.")
    more = note(f"{count(older, 'older job')} not shown.") if older else None
    lede = "Plans that were asked of this service. A job survives a restart; each is done by exactly one worker."
    return SitePage(name=JOBS, title="Jobs", body=joined(head(None, "Jobs", lede), said, more))


def _progress(job: JobRow) -> Html:
    percent = f"{job.progress:.0%}"
    return tag(
        "span",
        tag("progress", percent, max=1, value=f"{job.progress:.3f}", aria_label=f"progress of job {job.key[:12]}"),
        f" {percent}",
    )


def _what(contents: Contents, job: JobRow) -> Child:
    try:
        asked = json.loads(_without_tables(job.request))
    except json.JSONDecodeError:
        return job.kind
    target = asked.get("target") if isinstance(asked, dict) else None
    key = target.get("weights_hash", "")[:16] if isinstance(target, dict) else str(target or "")
    workload = asked.get("workload") if isinstance(asked, dict) else None
    named = ", ".join(str(each) for each in (contents.model_name(key), workload) if each)
    return f"{job.kind} for {named}" if named else job.kind


def _without_tables(request: str) -> str:
    """Return a request up to its frozen tables, which come last, are long, and may have been cut off."""
    begun, tables, _ = request.partition(',"tables":')
    return f"{begun}}}" if tables else begun
