"""`spectune profile`: what forwards cost here, and how good each drafter is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import engine as engines
from . import options, servers
from .command import Command
from .fleet import ray_address
from .model import model_places, tell_dequantised
from .prompts import named_prompts, tell_cut
from .report import Settings, print_json, progress, tell

if TYPE_CHECKING:
    from ..tuning.engines.tuned_server import ServerJob
    from ..tuning.request import Models, ProfileRequest

SERVER = {  # options that a server takes, too
    *("command", "engine", "url", "drafters", "draft_models", "prompts", "sample", "temperatures", "batches"),
    *("max_new_tokens", "seed", "store", "fresh", "as_json"),
}
OF_TEXTS = ("prompts", "sample", "workload", "temperatures", "record", "max_new_tokens", "max_prompt_tokens")
OF_TIMING = ("device", "budget_s", "held_out", "regime", "most_tokens", "seed", "fresh")


@click.command(
    cls=Command,
    basic=(
        "target",
        "draft-model",
        "drafter",
        "prompts",
        "batch",
        "temperature",
        "device",
        "dtype",
        "budget",
        "dry-run",
    ),
)
@servers.command
@engines.option
@servers.url
@click.option("--target", "--model", "target", metavar="MODEL", help=f"The target: {options.MODEL_FORMS}.")
@options.drafters
@options.prompts
@options.sample
@options.workload
@click.option(
    "--temperature",
    "temperatures",
    default="0",
    show_default=True,
    callback=options.temperatures,
    metavar="T,T,...",
    help="Temperatures of sampling, all recorded; 0 is greedy.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    callback=options.device_name_or_all,
    help="auto, cpu, gpu, cuda:N, or all of this machine's in turn.",
)
@options.dtype
@click.option(
    "--batch",
    "batches",
    default="1,8",
    show_default=True,
    callback=options.counts,
    metavar="N,N,...",
    help="Batch sizes: sequences decoded at once (concurrency).",
)
@click.option(
    "--context",
    "contexts",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Context lengths, in tokens; else those of the texts.",
)
@options.max_new_tokens
@options.max_prompt_tokens
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(0.0, min_open=True),
    metavar="SECONDS",
    help="Time for timing forwards; the recording comes on top.  [default: as the models need, 30 to 60]",
)
@click.option(
    "--held-out",
    default=30,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Random shapes timed only to judge the surfaces; at most 6 of each where forwards are slow.",
)
@click.option(
    "--record",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "chains", "quick", "standard", "full"]),
    help="How many kinds of trees are recorded; auto: as many as there is time for.",
)
@click.option(
    "--regime",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "eager", "cuda-graph", "compiled"]),
    help="How forwards are run while they are timed; auto: from CUDA graphs on a GPU, where they can be.",
)
@click.option(
    "--config-only",
    metavar="CONFIG.json",
    type=click.Path(path_type=Path),
    help="Time a target of random weights instead; drafters too may be config.json files.",
)
@click.option(
    "--latency-only",
    "roles",
    is_flag=False,
    flag_value="verify,draft",
    metavar="[ROLE,ROLE,...]",
    help="Time forwards and record nothing: verify, draft, resume, prefill, exit:LAYERS, loop:DEPTH.",
)
@click.option("--tokens", "most_tokens", type=click.IntRange(1), metavar="N", help="Most per forward, timing alone.")
@click.option(
    "--tensor-parallel",
    "ranks",
    type=click.IntRange(2),
    metavar="N",
    help="Time a target spread over N devices; start it with torchrun.",
)
@servers.loads
@options.seed
@options.store
@ray_address
@click.option("--estimate", "estimated", metavar="DEVICE", help="Compute surfaces of a catalogued device instead.")
@click.option("--fresh", is_flag=True, help="Start over what an earlier run left unfinished.")
@click.option("--dry-run", is_flag=True, help="Print what would be measured, and measure nothing.")
@options.as_json
@click.pass_obj
def profile(
    settings: Settings,
    /,
    command: tuple[str, ...],
    engine: str | None,
    url: str | None,
    target: str | None,
    drafters: dict[str, str],
    prompts: Path | None,
    sample: int | None,
    store: str | None,
    ray_address: str | None,
    estimated: str | None,
    config_only: Path | None,
    roles: str | None,
    most_tokens: int | None,
    ranks: int | None,
    fresh: bool,
    dry_run: bool,
    as_json: bool,
    **measured: Any,  # the other fields of a ProfileRequest, which checks them
) -> None:
    """Measure this device and a set of drafters.

    Records what each drafter would propose along the target's own text: its acceptance. Times forwards (prefill,
    verification, drafting) and whole rounds. Every timing is saved at once: after Ctrl-C the same command resumes.

    \b
        spectune profile --target path/to/target --drafter small=path/to/small
        spectune profile --model path/to/target --draft-model path/to/small --dry-run
        spectune profile --config-only config.json --context 128,2048 --regime cuda-graph
        spectune profile --target path/to/target --estimate H200
        spectune profile --engine llama.cpp --target target.gguf --drafter small=small.gguf --batch 1,4
        spectune profile --engine vllm --prompts traffic.jsonl --batch 1,8,32 -- vllm serve MODEL
    """
    from ..profiler.hub import resolve_model
    from ..tuning.request import Models, ProfileRequest

    of_loads = {name: measured.pop(name) for name in servers.OF_LOADS}
    if servers.is_server(engine, command, url, "name the model with --target MODEL"):
        assert engine is not None
        engines.require_only(SERVER | set(servers.OF_LOADS), "not of a server; its command says what it is")
        used = named_prompts(settings, prompts, "calibration", sample=sample, seed=measured["seed"])
        asked = {**of_loads, **measured, "drafters": drafters}
        _profile_server(settings, servers.job_of(engine, command, url, used, asked), asked, store, fresh, as_json)
        return
    options.require_untyped(servers.OF_LOADS, servers.NO_SERVER)
    if engine is not None:
        if target is None:
            raise click.UsageError("Give --target MODEL, a file of the engine, a model folder or an id.")
        asked = {**measured, "store": store, "as_json": as_json}
        used = named_prompts(settings, prompts, "calibration", sample=sample, seed=measured["seed"])
        engines.profile_command(settings, engine, target, drafters, used, asked)
        return
    if (target is None) is (config_only is None):
        raise click.UsageError("Give --target MODEL, or --config-only CONFIG.json for random weights.")

    def models() -> Models:  # they are fetched where nothing else is wrong
        return Models(target=config_only or resolve_model(target or ""), drafters=model_places(drafters))

    if estimated is not None:
        if dry_run or ray_address is not None or roles is not None or ranks is not None:
            raise click.UsageError("--estimate measures nothing; leave out the options of a measurement.")
        options.require_untyped(OF_TEXTS + OF_TIMING, "is for a measurement, and --estimate measures nothing.")
        _estimate(settings, models(), estimated, store, measured, as_json)
        return
    if config_only is not None or roles is not None or ranks is not None:
        if dry_run or ray_address is not None:
            raise click.UsageError("Timing alone knows neither --dry-run nor --ray; leave them out.")
        options.require_untyped(OF_TEXTS, "is of what is recorded along texts, and timing alone records nothing.")
        alone = {"roles": tuple((roles or "verify,draft").split(",")), "ranks": ranks or 1}
        alone |= {"most_tokens": most_tokens} if most_tokens else {}
        _time_alone(settings, models(), alone | measured, store, fresh, as_json)
        return
    if most_tokens is not None:
        raise click.UsageError("--tokens is for timing alone; add --latency-only.")
    temperature, *more = measured.pop("temperatures")
    measured |= {"temperature": temperature, "more_temperatures": tuple(more)}
    used = named_prompts(settings, prompts, "calibration", sample=sample, seed=measured["seed"])
    request = ProfileRequest(models=models(), prompts=used, **measured)
    tell_dequantised(settings, (request.models.target, *request.models.drafters.values()), request.dtype)
    _tell_reach(settings, request)
    if prompts is not None:
        tell_cut(settings, request)
    if dry_run:
        _dry_run(request, ray_address, as_json)
    elif request.device == "all" or ray_address is not None:
        _profile_fleet(settings, request, store, ray_address, fresh, as_json)
    else:
        _profile_one(settings, request, store, fresh, as_json)


def _profile_server(
    settings: Settings, job: ServerJob, asked: dict[str, Any], store: str | None, fresh: bool, as_json: bool
) -> None:
    from ..db import open_store

    with open_store(store) as opened:
        if job.url:
            servers.look_at(settings, job, opened, fresh=fresh, as_json=as_json)
        else:
            servers.profile_server(settings, job, asked["starts"], opened, fresh=fresh, as_json=as_json)


def _tell_reach(settings: Settings, request: ProfileRequest) -> None:
    """Say from which context on a draft model's drafts no longer count."""
    from ..runtime.models.formats import draft_role
    from ..tuning.positions import notes_of_reach

    models = {name: path for name, path in request.models.drafters.items() if draft_role(path) == "draft"}
    for note in notes_of_reach(request.models.target, models):
        tell(settings, note)


def _profile_one(settings: Settings, request: ProfileRequest, store: str | None, fresh: bool, as_json: bool) -> None:
    from ..db import open_store
    from ..profiler.snapshot import place_or_id
    from ..tuning.profile import profile as measure
    from .measured import print_profile, profile_facts

    with open_store(store) as opened:
        try:
            with progress(settings) as report:
                done = measure(request, opened, fresh=fresh, progress=report)
        except KeyboardInterrupt:
            click.echo(f"stopped; what was done is kept in {opened.url}, and the same command resumes there", err=True)
            raise
        (print_json if as_json else print_profile)(profile_facts(done, opened.url))
        tell(settings, f"kept in {opened.url}; next: spectune plan --target {place_or_id(request.models.target)}")


def _time_alone(
    settings: Settings, models: Models, asked: dict[str, Any], store: str | None, fresh: bool, as_json: bool
) -> None:
    from ..db import open_store
    from ..tuning.latency_profile import LatencyRequest, follow_rank, is_leader, profile_latency
    from .measured import latency_facts, print_latency

    known = LatencyRequest.__dataclass_fields__
    wanted = {field: value for field, value in asked.items() if field in known and value is not None}
    request = LatencyRequest(models=models, **wanted)
    if not is_leader():
        follow_rank(request)
        return
    with open_store(store) as opened, progress(settings) as report:
        done = profile_latency(request, opened, fresh=fresh, progress=report)
        (print_json if as_json else print_latency)(latency_facts(done, opened.url))
        tell(settings, f"kept in {opened.url}")


def _profile_fleet(
    settings: Settings, request: ProfileRequest, store: str | None, address: str | None, fresh: bool, as_json: bool
) -> None:
    from ..tuning.fleet.fleet import FleetJob
    from .fleet import profile_fleet
    from .measured import profile_facts

    job = FleetJob(request=request, facts=profile_facts, store_url=store, fresh=fresh)
    profile_fleet(settings, job, address, as_json=as_json)


def _dry_run(request: ProfileRequest, address: str | None, as_json: bool) -> None:
    if address is not None:
        from ..tuning.fleet.turns import turns_of_cluster
        from .fleet import print_turns

        print_turns(turns_of_cluster(address), as_json=as_json)
        return
    from ..tuning.fleet.fleet import requests_of_devices
    from ..tuning.preview import preview
    from .measured import preview_facts, print_preview

    for each in requests_of_devices(request):
        (print_json if as_json else print_preview)(preview_facts(preview(each)))


def _estimate(
    settings: Settings, models: Models, device: str, store: str | None, measured: dict[str, Any], as_json: bool
) -> None:
    from ..db import open_store
    from ..tuning.estimates.estimate import EstimateRequest, estimate
    from ..tuning.positions import STRETCH, within_positions
    from .measured import estimate_facts, print_estimate

    asked = {name: measured[name] for name in ("batches", "contexts") if measured[name]}
    for note in within_positions(models.target, models.target.name, asked.get("contexts", ()), STRETCH):
        tell(settings, note)
    request = EstimateRequest(models=models, device=device, dtype=measured["dtype"], **asked)
    with open_store(store) as opened:
        facts = estimate_facts(estimate(request, opened), opened.url)
        (print_json if as_json else print_estimate)(facts)
        tell(settings, f"kept in {opened.url}, apart from everything measured")
