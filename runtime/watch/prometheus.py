"""Prometheus' text format.

Source: "Exposition formats", version 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...planner.plans.observation import CellObservation

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """All samples of one metric."""

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    samples: Sequence[Sample]


def exposition(families: Iterable[MetricFamily]) -> str:
    """Return metrics as text, without families that have no samples."""
    return "".join(f"{line}\n" for family in families if family.samples for line in _lines(family))


def cell_families(cells: Sequence[CellObservation]) -> list[MetricFamily]:
    """Return the counters per cell and way."""
    labelled = [(_labels(cell), cell) for cell in cells]

    def counted(name: str, about: str, value: str) -> MetricFamily:
        samples = [(labels, getattr(cell, value)) for labels, cell in labelled]
        return MetricFamily(name=f"spectune_{name}_total", kind="counter", about=about, samples=samples)

    return [
        counted("tokens", "Tokens decoded.", "tokens"),
        counted("rounds", "Rounds, each with one forward of the target.", "rounds"),
        counted("faults", "Faults of drafters or memory; the output is right all the same.", "faults"),
        MetricFamily(
            name="spectune_sequence_rounds_total",
            kind="counter",
            about="Rounds counted once for each of their sequences.",
            samples=[(labels, sum(cell.kept)) for labels, cell in labelled],
        ),
        MetricFamily(
            name="spectune_accepted_total",
            kind="counter",
            about="Rounds of one sequence whose draft was accepted down to this depth or further.",
            samples=[
                ({**labels, "depth": str(depth)}, count)
                for labels, cell in labelled
                for depth, count in enumerate(cell.accepted_at_least, 1)
            ],
        ),
        MetricFamily(
            name="spectune_round_seconds_total",
            kind="counter",
            about="Time of rounds, by what it was spent on.",
            samples=[
                ({**labels, "part": part}, ms / 1e3)
                for labels, cell in labelled
                for part, ms in (("draft", cell.draft_ms), ("verify", cell.verify_ms), ("host", cell.host_ms))
            ],
        ),
    ]


def _labels(cell: CellObservation) -> Labels:
    """Return the labels of a cell and its way; batch and context are 0 without a plan."""
    return {
        "batch": str(cell.batch),
        "context": str(cell.context),
        "way": "planned" if cell.is_planned else "plain" if cell.drafter is None else "rival",
        "policy": cell.policy,
        "drafter": cell.drafter or "",
    }


def _lines(family: MetricFamily) -> Iterable[str]:
    about = family.about.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family.name} {about}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in family.samples:
        told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield f"{family.name}{{{told}}} {_number(value)}" if told else f"{family.name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
