"""Texts that outlive the records they describe: names of studies, and the order of hybrids.

They never change, whatever records and fields are called: else stored trials are lost, found by name, and equally fast
candidates, ordered by these texts, give other plans. They are what `repr` gave when they were fixed.
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
