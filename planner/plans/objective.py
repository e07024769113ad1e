"""What a plan is chosen for: the most tokens per second, if wanted within a latency bound.

At one batch size the mean time per token is batch / throughput, so the most tokens per second have the lowest mean
latency. A bound decides which cells can serve; one on the tail rules out policies whose long rounds seldom pay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ...errors import PlanError

Metric = Literal["itl", "p90_itl"]
METRICS: tuple[Metric, ...] = ("itl", "p90_itl")
OTHER_NAMES: dict[str, Metric] = {  # as serving engines say it
    **dict.fromkeys(("tpot", "mean_tpot", "mean_itl"), "itl"),
    **dict.fromkeys(("p90_tpot", "tpot_p90", "itl_p90"), "p90_itl"),
}
_SLO = re.compile(r"\s*(\w+)\s*<=?\s*([0-9]*\.?[0-9]+)\s*ms\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBound:
    """A service-level objective of one sequence.

    itl       mean inter-token latency: milliseconds of decoding per token
    p90_itl   what nine of ten rounds keep: milliseconds of a round per token it yields
    """

    metric: Metric
    most_ms: float

    def __post_init__(self) -> None:
        if self.metric not in METRICS or not self.most_ms > 0.0:
            raise PlanError(
                f"a latency bound is one of {', '.join(METRICS)} and positive milliseconds, got {self.metric!r} and "
                f"{self.most_ms}; write for example 'itl<=30ms'"
            )

    def __str__(self) -> str:
        return f"{self.metric}<={self.most_ms:g}ms"


def parse_bound(text: str) -> LatencyBound:
    """Return the bound of a text such as "tpot<=30ms" or "itl<=30ms", which are equal; PlanError for another form."""
    match = _SLO.fullmatch(text)
    metric = None if match is None else _metric(match[1].lower())
    if match is None or metric is None:
        raise PlanError(
            f"cannot read the latency bound {text!r}; write METRIC<=NUMBERms, METRIC tpot or p90_tpot "
            f"({' or '.join(METRICS)} mean the same)"
        )
    return LatencyBound(metric=metric, most_ms=float(match[2]))


def _metric(name: str) -> Metric | None:
    return next((metric for metric in METRICS if metric == name), OTHER_NAMES.get(name))
