"""What a profile would measure, and what it measured: facts for programs, tables for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from .report import Table, facts_of, print_table

if TYPE_CHECKING:
    from ..profiler.records.surface import LatencySurface
    from ..tuning.preview import Preview
    from ..tuning.profile import Profile

Json = dict[str, Any]  # JSON values
SHOWN_RANKS = 4  # columns of the table of drafters


def preview_facts(found: Preview) -> Json:
    """Return what a profile would measure; JSON values."""
    return {
        "device": found.device,
        "models": [
            {"model": model.name, "role": model.role, "cells": [list(shape) for shape in model.shapes]}
            for model in found.models
        ],
        "texts": found.texts,
        "tokens_per_text": found.tokens_per_text,
        "seconds_at_least": found.seconds_at_least,
    }


def print_preview(facts: Json) -> None:
    """Print what a profile would measure, for people."""
    rows = []
    for model in facts["models"]:
        for place in sorted({(batch, context) for batch, context, _ in model["cells"]}):
            tokens = ",".join(str(n) for batch, context, n in model["cells"] if (batch, context) == place)
            rows.append((model["model"], model["role"], *place, tokens))
    columns = ("model", "role", "batch", "context", "tokens")
    print_table(Table(title=f"would be timed on {facts['device']}", columns=columns, rows=rows))
    click.echo(
        f"{sum(len(model['cells']) for model in facts['models'])} cells, at least {facts['seconds_at_least']:.0f} s; "
        f"then {facts['texts']} texts of up to {facts['tokens_per_text']} tokens are decoded, and every drafter is "
        "recorded along them"
    )


def profile_facts(done: Profile, store_url: str) -> Json:
    """Return what a profile measured; JSON values, None where nothing is known yet."""
    names = {model.key: name for name, model in done.identities.drafters.items()}
    names[done.identities.target.key] = done.identities.target.name
    surfaces = [done.verify, *done.drafts.values()]
    return {
        "device": {"label": done.device.label, "fingerprint": done.device.fingerprint} | facts_of(done.device),
        "surfaces": [_surface_facts(surface, names[surface.model]) for surface in surfaces],
        "traces": [
            {
                "drafter": trace.drafter_name,
                "positions": trace.positions,
                "acceptance_by_rank": trace.rank_acceptance().tolist(),
            }
            for trace in done.traces
        ],
        "pairwise_acceptance": facts_of(done.pairwise),
        "seconds": done.seconds,
        "store": store_url,
    }


def _surface_facts(surface: LatencySurface, name: str) -> Json:
    noise = surface.relative_error()
    return {
        "model": name,
        "role": surface.role,
        "regime": surface.regime,
        "dtype": surface.dtype,
        "cells": len(surface.measurements),
        "held_out_error_median": None,  # nothing is held out yet
        "held_out_error_p95": None,
        "repeat_noise": noise if math.isfinite(noise) else None,
    }


def print_profile(facts: Json) -> None:
    """Print what a profile measured, for people."""
    columns = ("model", "role", "regime", "dtype", "cells", "repeat noise")
    rows = [
        (*(surface[name] for name in columns[:5]), _percent(surface["repeat_noise"])) for surface in facts["surfaces"]
    ]
    print_table(Table(title=f"forwards on {facts['device']['label']}", columns=columns, rows=rows))
    ranks = ("drafter", "positions", *(f"rank {rank}" for rank in range(SHOWN_RANKS)))
    shares = [
        (trace["drafter"], trace["positions"], *trace["acceptance_by_rank"][:SHOWN_RANKS]) for trace in facts["traces"]
    ]
    print_table(Table(title="how often the target's token is the drafter's", columns=ranks, rows=shares))
    click.echo(f"took {facts['seconds']:.0f} s")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
