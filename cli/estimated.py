"""What a profile estimated for a device that is not here: facts for programs, tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .measured import common_facts
from .report import Table, facts_of, print_table

if TYPE_CHECKING:
    from ..profiler.catalogue import Published
    from ..tuning.estimates.estimate import Estimate

Json = dict[str, Any]  # JSON values


def estimate_facts(done: Estimate, store_url: str) -> Json:
    """Return what was estimated and what it rests on; JSON values, None where nothing was measured."""
    return common_facts(done.device.device, done.identities, done.surfaces, store_url) | {
        "calibration": None if done.efficiency is None else facts_of(done.efficiency),
        "reasons": list(done.reasons),
        "assumptions": list(done.assumptions),
        "figures": [_figure_facts(figure) for figure in done.device.figures],
        "missing_figures": list(done.device.missing),
    }


def print_estimate(facts: Json) -> None:
    """Print what was estimated, for people."""
    columns = ("model", "role", "regime", "dtype", "cells", "fastest", "slowest", "too large")
    keys = ("model", "role", "regime", "dtype", "cells")
    rows = [
        (
            *(surface[key] for key in keys),
            *(_time(surface[key]) for key in ("fastest_ms", "slowest_ms")),
            surface["failures"],
        )
        for surface in facts["surfaces"]
    ]
    print_table(Table(title=f"computed for {facts['device']['label']}, not measured", columns=columns, rows=rows))
    figures = [(figure["name"], _shown(figure["value"]), _source(figure)) for figure in facts["figures"]]
    print_table(Table(title="from published figures", columns=("figure", "value", "source"), rows=figures))
    if facts["missing_figures"]:
        click.echo(f"no public source tells: {', '.join(facts['missing_figures'])}")
    for line in (*facts["reasons"], *facts["assumptions"]):
        click.echo(line)
    click.echo(_calibration(facts["calibration"], is_assumed=bool(facts["assumptions"])))


def _time(ms: float | None) -> str | None:
    from ..planner.reasons.duration import duration

    return None if ms is None else duration(ms)


def _shown(value: float) -> str:
    return f"{value:,.6g}"


def _source(figure: Json) -> str:
    return figure["title"] if figure["note"] is None else f"{figure['title']} ({figure['note']})"


def _calibration(fitted: Json | None, *, is_assumed: bool) -> str:
    if fitted is None:
        under = " under these assumptions" if is_assumed else ""
        return f"lower bounds: no forward is faster{under}; profile a device to have estimates instead"
    median, p95 = (f"{fitted[name]:.1%}" for name in ("error_median", "error_p95"))
    return (
        f"estimated from {fitted['cells']} cells of {fitted['device']}, {fitted['regime']}; each, predicted from "
        f"the others, is off by {median} (median), {p95} (95th percentile); another device may be further off"
    )


def _figure_facts(figure: Published) -> Json:
    return {
        "name": figure.name,
        "value": figure.value,
        "note": figure.note,
        "title": figure.source.title,
        "url": figure.source.url,
    }
