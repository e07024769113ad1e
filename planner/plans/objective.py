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
_SLO = re.compile(r"\s*(\w+)\s*<=?\s*([0-9]*\.?[0-9]+)\s*(ms|s)\s*", re.IGNORECASE)
EXAMPLE = "write METRIC<=NUMBERms, several with commas, METRIC tpot, p90_tpot or ttft: tpot<=20ms,ttft<=0.5s"


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


def parse_slo(text: str) -> dict[str, float]:
    """Return milliseconds by "itl", "p90_itl" and "ttft" of a text such as "tpot<=20ms,ttft<=0.5s".

    PlanError for another form, or a metric given twice. `tpot` means `itl`.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _SLO.fullmatch(part)
        name = "" if match is None else match[1].lower()
        metric = OTHER_NAMES.get(name, name)
        if match is None or metric not in (*METRICS, "ttft") or metric in found:
            raise PlanError(f"cannot read the latency bound {part.strip()!r}; {EXAMPLE}")
        found[metric] = float(match[2]) * (1000.0 if match[3].lower() == "s" else 1.0)
    return found


def parse_bound(text: str) -> LatencyBound:
    """Return the one bound that a plan keeps; PlanError for another form, several bounds, or one of TTFT."""
    found = parse_slo(text)
    kept = [LatencyBound(metric=metric, most_ms=found[metric]) for metric in METRICS if metric in found]
    if len(kept) != 1 or "ttft" in found:
        raise PlanError(f"a plan keeps one bound, METRIC tpot or p90_tpot, got {text!r}; write for example tpot<=30ms")
    return kept[0]
