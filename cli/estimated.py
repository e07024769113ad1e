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
        "figures": [_figure_facts(figure) for figure in done.device.figures],
        "missing_figures": list(done.device.missing),
    }


def print_estimate(facts: Json) -> None:
    """Print what was estimated, for people."""
    columns = ("model", "role", "regime", "dtype", "cells", "fastest ms", "slowest ms", "too large")
    keys = ("model", "role", "regime", "dtype", "cells", "fastest_ms", "slowest_ms", "failures")
    rows = [[_shown(surface[key]) for key in keys] for surface in facts["surfaces"]]
    print_table(Table(title=f"computed for {facts['device']['label']}, not measured", columns=columns, rows=rows))
    figures = [(figure["name"], _shown(figure["value"]), _source(figure)) for figure in facts["figures"]]
    print_table(Table(title="from published figures", columns=("figure", "value", "source"), rows=figures))
    if facts["missing_figures"]:
        click.echo(f"no public source tells: {', '.join(facts['missing_figures'])}")
    for reason in facts["reasons"]:
        click.echo(reason)
    click.echo(_calibration(facts["calibration"]))


def _shown(value: object) -> object:
    """Return a number with the digits that tell something; tables would cut microseconds to nothing."""
    return f"{value:.4g}" if isinstance(value, float) else value


def _source(figure: Json) -> str:
    return figure["title"] if figure["note"] is None else f"{figure['title']} ({figure['note']})"


def _calibration(fitted: Json | None) -> str:
    if fitted is None:
        return "lower bounds: no forward is faster; profile a device to have estimates instead"
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
