"""`spectune profile`: what forwards cost here, and how good each drafter is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .report import Progress, facts_of, print_json, print_table, progress, tell
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..db.store import Store
    from ..profiler.prompts import Prompt
    from ..profiler.records.surface import LatencySurface
    from ..tuning.preview import Preview
    from ..tuning.profile import Profile
    from ..tuning.request import ProfileRequest

SHOWN_RANKS = 4  # columns of the table of drafters


@click.command()
@options.target
@options.drafters
@click.option("--prompts", metavar="FILE", type=click.Path(path_type=Path), help="Text or .jsonl; else the demo's.")
@options.workload
@options.temperature
@click.option(
    "--device",
    default="auto",
    show_default=True,
    callback=options.device_name_or_all,
    help="auto, cpu, cuda:N, or all of this machine's in turn.",
)
@options.dtype
@click.option(
    "--batch", "batches", default="1,8", show_default=True, callback=options.counts, help="Sequences decoded at once."
)
@click.option(
    "--context", "contexts", default="", callback=options.counts, help="Tokens before a round; else of the texts."
)
@options.max_new_tokens
@options.max_prompt_tokens
@click.option(
    "--budget",
    "budget_s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0.0, min_open=True),
    metavar="SECONDS",
    help="For timing forwards; the recording comes on top.",
)
@options.seed
@options.store
@click.option("--dry-run", is_flag=True, help="Print what would be measured, and measure nothing.")
@options.as_json
@click.pass_obj
def profile(
    settings: Settings,
    target: Path,
    drafters: dict[str, Path],
    prompts: Path | None,
    store: str | None,
    dry_run: bool,
    as_json: bool,
    **measured: Any,  # the other fields of a ProfileRequest, which checks them
) -> None:
    """Measure this device and a set of drafters.

    Times forwards and whole rounds, and records what each drafter would have proposed along the
    target's own text. Ctrl-C keeps the forwards timed so far.

    \b
        spectune profile --target path/to/target --drafter small=path/to/small
        spectune profile --target path/to/target --drafter small=path/to/small --dry-run
    """
    from ..tuning.request import Models, ProfileRequest

    models = Models(target=target, drafters=drafters)
    wanted = list(_per_device(ProfileRequest(models=models, prompts=_prompts(prompts), **measured)))
    if dry_run:
        from ..tuning.preview import preview

        for request in wanted:
            (print_json if as_json else _print_preview)(_preview_facts(preview(request)))
        return
    from ..db.store import open_store

    with open_store(store) as opened:
        for request in wanted:
            with progress(settings) as report:
                done = _measured(request, opened, report)
            (print_json if as_json else _print_profile)(_profile_facts(done, opened.url))
        tell(settings, f"kept in {opened.url}; next: spectune plan --target {target}")


def _prompts(path: Path | None) -> Sequence[Prompt]:
    if path is None:
        from ..demo.prompts import calibration_prompts

        return calibration_prompts()
    from ..profiler.prompts import read_prompts

    return read_prompts(path)


def _per_device(request: ProfileRequest) -> Iterator[ProfileRequest]:
    """Yield the request for each device it is for."""
    if request.device != "all":
        yield request
        return
    from ..profiler.device import detect_all
    from ..tuning.profile import torch_device

    for device in detect_all():
        yield replace(request, device=torch_device(device))


def _measured(request: ProfileRequest, store: Store, report: Progress) -> Profile:
    from ..profiler.latency import Interrupted
    from ..tuning.profile import profile as measure

    try:
        return measure(request, store, progress=report)
    except Interrupted as stopped:
        click.echo(f"{stopped}; they are kept in {store.url}", err=True)
        raise


def _preview_facts(found: Preview) -> dict[str, Any]:
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


def _print_preview(facts: dict[str, Any]) -> None:
    rows = []
    for model in facts["models"]:
        places = sorted({(batch, context) for batch, context, _ in model["cells"]})
        for place in places:
            tokens = [str(n) for batch, context, n in model["cells"] if (batch, context) == place]
            rows.append([model["model"], model["role"], *place, ",".join(tokens)])
    print_table(f"would be timed on {facts['device']}", ["model", "role", "batch", "context", "tokens"], rows)
    click.echo(
        f"{sum(len(model['cells']) for model in facts['models'])} cells, at least {facts['seconds_at_least']:.0f} s; "
        f"then {facts['texts']} texts of up to {facts['tokens_per_text']} tokens are decoded, and every drafter is "
        "recorded along them"
    )


def _profile_facts(done: Profile, store_url: str) -> dict[str, Any]:
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


def _surface_facts(surface: LatencySurface, name: str) -> dict[str, Any]:
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


def _print_profile(facts: dict[str, Any]) -> None:
    columns = ["model", "role", "regime", "dtype", "cells", "repeat_noise"]
    rows = [[_percent(surface[name]) if name == "repeat_noise" else surface[name] for name in columns] for surface in facts["surfaces"]]
    print_table(facts["device"]["label"], columns, rows)
    ranks = [f"rank {rank}" for rank in range(SHOWN_RANKS)]
    rows = [
        [trace["drafter"], trace["positions"], *trace["acceptance_by_rank"][:SHOWN_RANKS]] for trace in facts["traces"]
    ]
    print_table("the target's token is the drafter's", ["drafter", "positions", *ranks], rows)
    click.echo(f"{facts['seconds']:.0f} s, kept in {facts['store']}")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
