"""Texts that outlive the records that they are written of: names of studies, and the order of hybrids.

A stored study is found again by its name, and equally fast candidates are ordered by who came first. So these texts
never change, however records and their fields are called or ordered: with another text stored trials are lost, and
plans from the same measurements differ. They are what `repr` gave when they were settled.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...profiler.records.overhead import OverheadSample
from ..plans.objective import LatencyBound


def samples_text(samples: Sequence[OverheadSample]) -> str:
    """Return timed host times as the name of a study holds them."""
    written = ", ".join(map(_sample_text, samples))
    return f"({written},)" if len(samples) == 1 else f"({written})"


def _sample_text(sample: OverheadSample) -> str:
    return (
        f"OverheadSample(kind={sample.kind!r}, batch={sample.batch!r}, draft_forwards={sample.draft_forwards!r}, "
        f"nodes={sample.nodes!r}, host_ms={sample.host_ms!r}, is_sampled={sample.is_sampled!r}, "
        f"role={sample.role!r}, drafter={sample.drafter!r}, is_ahead={sample.is_ahead!r})"
    )


def limits_text(bound: LatencyBound | None, max_memory_bytes: int | None) -> str:
    """Return the limits of a search as the name of a study holds them."""
    written = None if bound is None else f"LatencyBound(metric={bound.metric!r}, most_ms={bound.most_ms!r})"
    return f"({written}, {max_memory_bytes!r})"
