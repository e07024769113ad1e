"""The planning jobs of a service: what they are for, how far they are, and why one failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from ...db.jobs.jobs import JobRow
from .contents import Contents
from .links import JOBS, Links
from .page import SitePage, page_of


def jobs_page(contents: Contents, links: Links, jobs: Sequence[JobRow], older: int = 0) -> SitePage:
    """Return the list of jobs as it was given, and how many older ones there are."""
    return page_of("jobs.html", links, JOBS, "Jobs", jobs=jobs, older=older, what=partial(_what, contents))


def _what(contents: Contents, job: JobRow) -> str:
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
