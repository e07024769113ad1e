"""`spectune profile`: what forwards cost here, and how good each drafter is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .report import Progress, print_json, progress, tell
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..db.store import Store
    from ..profiler.prompts import Prompt
    from ..tuning.profile import Profile
    from ..tuning.request import ProfileRequest


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
    metavar="DEVICE",
    callback=options.device_name_or_all,
    help="auto, cpu, cuda:N, or all of this machine's in turn.",
)
@options.dtype
@click.option(
    "--batch",
    "batches",
    default="1,8",
    show_default=True,
    callback=options.counts,
    metavar="N,N,...",
    help="Sequences decoded at once.",
)
@click.option(
    "--context",
    "contexts",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Tokens before a round; else of the texts.",
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
    /,
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
    from .measured import preview_facts, print_preview, print_profile, profile_facts

    models = Models(target=target, drafters=drafters)
    wanted = list(_per_device(ProfileRequest(models=models, prompts=_prompts(prompts), **measured)))
    if dry_run:
        from ..tuning.preview import preview

        for request in wanted:
            (print_json if as_json else print_preview)(preview_facts(preview(request)))
        return
    from ..db.store import open_store

    with open_store(store) as opened:
        for request in wanted:
            with progress(settings) as report:
                done = _measured(request, opened, report)
            (print_json if as_json else print_profile)(profile_facts(done, opened.url))
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
