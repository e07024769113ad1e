"""What a profile would measure, and what it measured: facts for programs, tables for people."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from .report import Table, facts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..profiler.catalogue import PublishedFigure
    from ..profiler.records.acceptance import AcceptanceTrace
    from ..profiler.records.device import Device
    from ..profiler.records.surface import LatencySurface
    from ..tuning.estimates.estimate import Estimate
    from ..tuning.latency_profile import LatencyProfile
    from ..tuning.preview import Preview
    from ..tuning.profile import Profile
    from ..tuning.request import Identities


Json = dict[str, Any]  # JSON values
HOPELESS, HOPELESS_POSITIONS = 0.02, 100  # right in fewer of so many places at least: a drafter helps by none of them
SHOWN_RANKS = 4  # columns of the table of drafters


def preview_facts(found: Preview) -> Json:
    """Return what a profile would measure; JSON values."""
    return {
        "device": found.device,
        "models": [
            {
                "model": model.name,
                "role": model.role,
                "first_cells": [list(shape) for shape in model.first],
                "batches": list(model.domain.batches),
                "contexts": list(model.domain.contexts),
                "most_tokens": model.domain.most_tokens,
            }
            for model in found.models
        ],
        "held_out": found.held_out,
        "texts": found.texts,
        "tokens_per_text": found.tokens_per_text,
        "timing_s": found.timing_s,
    }


def preview_shown(facts: Json) -> Iterator[Table | str]:
    """Yield what a profile would measure, for people."""
    rows = []
    for model in facts["models"]:
        for place in sorted({(batch, context) for batch, context, _ in model["first_cells"]}):
            tokens = ",".join(str(n) for batch, context, n in model["first_cells"] if (batch, context) == place)
            rows.append((model["model"], model["role"], *place, tokens))
    columns = ("model", "role", "batch", "context", "tokens")
    yield Table(title=f"would be timed first on {facts['device']}", columns=columns, rows=rows)
    first = sum(len(model["first_cells"]) for model in facts["models"])
    yield (
        f"{first} cells first, {facts['held_out']} random ones to judge by, then wherever the surface is least "
        f"certain, {_within(facts['timing_s'])}. Besides, {facts['texts']} texts of up to "
        f"{facts['tokens_per_text']} tokens are decoded, every drafter is recorded along them, and "
        "whole rounds are timed; how long that takes is not known before the models run"
    )


def _within(seconds: float | None) -> str:
    return "for as long as the models need, 30 to 60 s" if seconds is None else f"all within {seconds:.0f} s"


def profile_facts(done: Profile, store_url: str) -> Json:
    """Return what a profile measured; JSON values, None where nothing is known yet."""
    return {
        **_of_session(done, store_url),
        "traces": [trace_facts(trace) for trace in done.traces],
        "pairwise_acceptance": facts_of(done.pairwise[0]) if done.pairwise else None,
        "more_pairwise_acceptance": [facts_of(agreement) for agreement in done.pairwise[1:]],
    }


def latency_facts(done: LatencyProfile, store_url: str) -> Json:
    """Return what was timed where nothing was recorded; JSON values."""
    return _of_session(done, store_url)


def common_facts(device: Device, identities: Identities, surfaces: Sequence[LatencySurface], store_url: str) -> Json:
    """Return what every kind of profile shows, None and no rows for what only some of them measure; JSON values."""
    names = {model.key: name for name, model in identities.drafters.items()}
    names[identities.target.key] = identities.target.name
    return {
        "device": device_facts(device),
        "surfaces": [_surface_facts(surface, names[surface.model]) for surface in surfaces],
        "traces": [],
        "pairwise_acceptance": None,
        "more_pairwise_acceptance": [],
        "disturbances": [],
        "is_resumed": False,
        "seconds": None,
        "store": store_url,
    }


def device_facts(device: Device) -> Json:
    """Return what a device is called and all that is known of it; JSON values."""
    return {"label": device.label, "fingerprint": device.fingerprint, **facts_of(device)}


def trace_facts(trace: AcceptanceTrace) -> Json:
    """Return how good a drafter was on one workload; JSON values."""
    return {
        "drafter": trace.drafter_name,
        "workload": trace.workload,
        "temperature": trace.temperature,
        "positions": trace.positions,
        "acceptance_by_rank": trace.rank_acceptance().tolist(),
    }


def _of_session(done: Profile | LatencyProfile, store_url: str) -> Json:
    session = {"disturbances": list(done.disturbances), "is_resumed": done.is_resumed, "seconds": done.seconds}
    return common_facts(done.device, done.identities, done.surfaces, store_url) | session


def _surface_facts(surface: LatencySurface, name: str) -> Json:
    from ..profiler.records.surface import quantile

    errors = [held.error for held in surface.held_out()]
    noise = surface.repeat_noise()
    ran = [cell.median_ms for cell in surface.measurements if cell.failure is None]
    return {
        "model": name,
        "role": surface.role,
        "regime": surface.regime,
        "dtype": surface.dtype,
        "attention": surface.attention,
        "cells": sum(cell.purpose != "held-out" for cell in surface.measurements),
        "fastest_ms": min(ran, default=None),
        "slowest_ms": max(ran, default=None),
        "held_out": len(errors),
        "held_out_error_median": statistics.median(errors) if errors else None,
        "held_out_error_p95": quantile(errors, 0.95) if errors else None,
        "repeat_noise": statistics.median(noise) if noise else None,
        "failures": len(surface.measurements) - len(ran),
    }


def profile_shown(facts: Json) -> Iterator[Table | str]:
    """Yield what a profile measured, for people."""
    yield _surfaces_table(facts)
    ranks = ("drafter", "workload", "temperature", "positions", *(f"rank {rank}" for rank in range(1, SHOWN_RANKS + 1)))
    acceptance = [
        (
            *(trace[name] for name in ("drafter", "workload", "temperature", "positions")),
            *(trace["acceptance_by_rank"] + [""] * SHOWN_RANKS)[:SHOWN_RANKS],
        )
        for trace in facts["traces"]
    ]
    if acceptance:
        yield Table(title="how often the target's token is the drafter's", columns=ranks, rows=acceptance)
    for drafter in dict.fromkeys(trace["drafter"] for trace in facts["traces"] if is_hopeless(trace)):
        yield f"note: {drafter} is next to never right; was it made for this target, with its tokenizer?"
    yield from _end(facts)


def is_hopeless(trace: Json) -> bool:
    """Say whether a drafter's best token is the target's so seldom that something must be wrong with it."""
    ranks = trace["acceptance_by_rank"]
    return bool(ranks) and trace["positions"] >= HOPELESS_POSITIONS and ranks[0] < HOPELESS


def latency_shown(facts: Json) -> Iterator[Table | str]:
    """Yield what was timed where nothing was recorded, for people."""
    yield _surfaces_table(facts)
    yield from _end(facts)


def _surfaces_table(facts: Json) -> Table:
    columns = ("model", "role", "regime", "dtype", "cells")
    shares = ("held_out_error_median", "held_out_error_p95", "repeat_noise")
    rows = [
        (*(surface[name] for name in columns), surface["held_out"], *(_percent(surface[share]) for share in shares))
        for surface in facts["surfaces"]
    ]
    shown = (*columns, "held out", "error there", "95th percentile", "noise of a call")
    return Table(title=f"forwards on {facts['device']['label']}", columns=shown, rows=rows)


def _end(facts: Json) -> Iterator[str]:
    for sentence in facts["disturbances"]:
        yield f"disturbed: {sentence}"
    went_on = ", going on from an earlier run" if facts["is_resumed"] else ""
    yield f"took {facts['seconds']:.0f} s{went_on}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def estimate_facts(done: Estimate, store_url: str) -> Json:
    """Return what was estimated and what it rests on; JSON values, None where nothing was measured."""
    return common_facts(done.device.device, done.identities, done.surfaces, store_url) | {
        "calibration": None if done.efficiency is None else facts_of(done.efficiency),
        "reasons": list(done.reasons),
        "assumptions": list(done.assumptions),
        "figures": [_figure_facts(figure) for figure in done.device.figures],
        "missing_figures": list(done.device.missing),
    }


def estimate_shown(facts: Json) -> Iterator[Table | str]:
    """Yield what was estimated, for people."""
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
    yield Table(title=f"computed for {facts['device']['label']}, not measured", columns=columns, rows=rows)
    figures = [(figure["name"], _shown(figure["value"]), _source(figure)) for figure in facts["figures"]]
    yield Table(title="from published figures", columns=("figure", "value", "source"), rows=figures)
    if facts["missing_figures"]:
        yield f"no public source tells: {', '.join(facts['missing_figures'])}"
    yield from (*facts["reasons"], *facts["assumptions"])
    yield _calibration(facts["calibration"], is_assumed=bool(facts["assumptions"]))


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


def _figure_facts(figure: PublishedFigure) -> Json:
    return {
        "name": figure.name,
        "value": figure.value,
        "note": figure.note,
        "title": figure.source.title,
        "url": figure.source.url,
    }
