"""`spectune profile`: what forwards cost here, and how good each drafter is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import engine as engines
from . import options, servers
from .command import Args, command, fields_of
from .fleet import ray_address
from .model import model_places, tell_dequantised, tell_unused
from .option import choice, flag, option, path_option, real, whole
from .prompts import named_prompts, tell_cut
from .report import print_facts, progress, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..profiler.prompts import Prompt
    from ..tuning.request import Models, ProfileRequest

SERVER = {  # options that a server takes, too
    *("command", "engine", "url", "drafters", "draft_models", "prompts", "sample", "temperatures", "batches"),
    *("max_new_tokens", "seed", "store", "fresh", "as_json"),
}
OF_TEXTS = ("prompts", "sample", "workload", "temperatures", "record", "max_new_tokens", "max_prompt_tokens")
OF_TIMING = ("device", "budget_s", "held_out", "regime", "most_tokens", "seed", "fresh")


@dataclass(frozen=True, kw_only=True)
class ProfileArgs(Args):
    """What was typed; the fields of a ProfileRequest have their names there, and it checks them."""

    command: tuple[str, ...] = options.server_command
    engine: str | None = engines.option
    url: str | None = options.url
    target: str | None = options.target.but(required=False)
    drafters: dict[str, str] = options.drafters
    prompts: Path | None = options.prompts
    sample: int | None = options.sample
    workload: str = options.workload
    temperatures: tuple[float, ...] = option(
        "Temperatures of sampling, all recorded; 0 is greedy.",
        "--temperature",
        default="0",
        metavar="T,T,...",
        callback=options.temperatures,
    )
    device: str = options.device.but(
        callback=options.device_name_or_all, help="auto, cpu, gpu, cuda:N, or all of this machine's in turn."
    )
    dtype: str = options.dtype
    batches: tuple[int, ...] = options.batches.but(default="1,8")
    contexts: tuple[int, ...] = options.contexts.but(help="Context lengths, in tokens; else those of the texts.")
    max_new_tokens: int = options.max_new_tokens
    max_prompt_tokens: int | None = options.max_prompt_tokens
    budget_s: float | None = real(
        "Time for timing forwards; the recording comes on top.  [default: as the models need, 30 to 60]",
        "--budget",
        is_open="least",
        metavar="SECONDS",
    )
    held_out: int = whole(
        "Random shapes timed only to judge the surfaces; at most 6 of each where forwards are slow.",
        least=0,
        default=30,
        metavar="N",
    )
    record: str = choice(
        "How many kinds of trees are recorded; auto: as many as there is time for.",
        ["auto", "chains", "quick", "standard", "full"],
        default="auto",
    )
    regime: str = choice(
        "How forwards are run while they are timed; auto: from CUDA graphs on a GPU, where they can be.",
        ["auto", "eager", "cuda-graph", "compiled"],
        default="auto",
    )
    config_only: Path | None = path_option(
        "Time a target of random weights instead; drafters too may be config.json files.", metavar="CONFIG.json"
    )
    roles: str | None = option(
        "Time forwards and record nothing: verify, draft, resume, prefill, exit:LAYERS, loop:DEPTH.",
        "--latency-only",
        is_flag=False,
        flag_value="verify,draft",
        metavar="[ROLE,ROLE,...]",
    )
    most_tokens: int | None = whole("Most per forward, timing alone.", "--tokens", metavar="N")
    ranks: int | None = whole(
        "Time a target spread over N devices; start it with torchrun.", "--tensor-parallel", least=2, metavar="N"
    )
    starts: int = options.starts
    requests: int | None = options.requests
    longest: int = options.longest
    ignore_eos: bool = options.ignore_eos
    model_name: str = options.model_name
    start_s: float = options.start_timeout
    stall_s: float = options.stall_timeout
    seed: int = options.seed
    store: str | None = options.store
    ray_address: str | None = ray_address
    estimated: str | None = options.estimated.but(help="Compute surfaces of a catalogued device instead.")
    fresh: bool = options.fresh
    dry_run: bool = flag("Print what would be measured, and measure nothing.")
    as_json: bool = options.as_json

    @property
    def is_timing_alone(self) -> bool:
        """Whether forwards are timed and nothing is recorded."""
        return self.config_only is not None or self.roles is not None or self.ranks is not None

    def models(self) -> Models:
        """Return where the models lie; those that are missing are fetched, so call it where nothing else is wrong."""
        from ..profiler.hub import resolve_model
        from ..tuning.request import Models

        return Models(target=self.config_only or resolve_model(self.target or ""), drafters=model_places(self.drafters))


@command(ProfileArgs, basic="target draft-model drafter prompts batch temperature device dtype budget dry-run")
def profile(args: ProfileArgs) -> None:
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
    if servers.is_server(args.engine, args.command, args.url, "name the model with --target MODEL"):
        engines.require_only(SERVER | set(servers.OF_LOADS), "not of a server; its command says what it is")
        _profile_server(args, _prompts(args))
        return
    options.require_untyped(servers.OF_LOADS, servers.NO_SERVER)
    if args.engine is not None:
        if args.target is None:
            raise click.UsageError("Give --target MODEL, a file of the engine, a model folder or an id.")
        engines.profile_command(args, _prompts(args))
        return
    if (args.target is None) is (args.config_only is None):
        raise click.UsageError("Give --target MODEL, or --config-only CONFIG.json for random weights.")
    if args.estimated is not None:
        _estimate(args, args.estimated)
    elif args.is_timing_alone:
        _time_alone(args)
    else:
        _profile(args)


def _prompts(args: ProfileArgs) -> Sequence[Prompt]:
    return named_prompts(args.settings, args.prompts, "calibration", sample=args.sample, seed=args.seed)


def _profile(args: ProfileArgs) -> None:
    """Time forwards and record drafters along texts, on one device, several or none."""
    from ..tuning.request import ProfileRequest

    if args.most_tokens is not None:
        raise click.UsageError("--tokens is for timing alone; add --latency-only.")
    used, (temperature, *more) = _prompts(args), args.temperatures
    own = {"prompts": used, "models": args.models(), "temperature": temperature, "more_temperatures": tuple(more)}
    request = ProfileRequest(**(fields_of(ProfileRequest, args) | own))
    tell_dequantised(args.settings, (request.models.target, *request.models.drafters.values()), request.dtype)
    tell_unused(args.settings, request.models.target)
    _tell_findings(args, request)
    if args.prompts is not None:
        tell_cut(args.settings, request)
    if args.dry_run:
        _dry_run(args, request)
    elif request.device == "all" or args.ray_address is not None:
        _profile_fleet(args, request)
    else:
        _profile_one(args, request)


def _profile_server(args: ProfileArgs, prompts: Sequence[Prompt]) -> None:
    from ..db import open_store

    assert args.engine is not None, "a server has an engine"
    job = servers.job_of(args.engine, args.command, args.url, prompts, vars(args))
    with open_store(args.store) as opened:
        if job.url:
            servers.look_at(args.settings, job, opened, fresh=args.fresh, as_json=args.as_json)
        else:
            servers.profile_server(args.settings, job, args.starts, opened, fresh=args.fresh, as_json=args.as_json)


def _tell_findings(args: ProfileArgs, request: ProfileRequest) -> None:
    """Say what the files of target and drafters let expect of the drafts; what cannot be loaded is refused later."""
    from ..tuning.doctor.registry import file_findings

    for name, path in request.models.drafters.items():
        for found in file_findings(name, request.models.target, path):
            if found.severity == "note":
                tell(args.settings, f"{found.seen}; {found.advice}")


def _profile_one(args: ProfileArgs, request: ProfileRequest) -> None:
    from ..db import open_store
    from ..profiler.snapshot import place_or_id
    from ..tuning.profile import profile as measure
    from .measured import profile_facts, profile_shown

    with open_store(args.store) as opened:
        try:
            with progress(args.settings) as report:
                done = measure(request, opened, fresh=args.fresh, progress=report)
        except KeyboardInterrupt:
            click.echo(f"stopped; what was done is kept in {opened.url}, and the same command resumes there", err=True)
            raise
        facts = profile_facts(done, opened.url)
        print_facts(facts, profile_shown(facts), as_json=args.as_json)
        tell(args.settings, f"kept in {opened.url}; next: spectune plan --target {place_or_id(request.models.target)}")


def _time_alone(args: ProfileArgs) -> None:
    from ..db import open_store
    from ..tuning.latency_profile import LatencyRequest, follow_rank, is_leader, profile_latency
    from .measured import latency_facts, latency_shown

    if args.dry_run or args.ray_address is not None:
        raise click.UsageError("Timing alone knows neither --dry-run nor --ray; leave them out.")
    options.require_untyped(OF_TEXTS, "is of what is recorded along texts, and timing alone records nothing.")
    own: dict[str, Any] = {"models": args.models(), "roles": tuple((args.roles or "verify,draft").split(","))}
    typed = {name: value for name, value in fields_of(LatencyRequest, args).items() if value is not None}
    request = LatencyRequest(**(typed | own))
    if not is_leader():
        follow_rank(request)
        return
    with open_store(args.store) as opened, progress(args.settings) as report:
        done = profile_latency(request, opened, fresh=args.fresh, progress=report)
        facts = latency_facts(done, opened.url)
        print_facts(facts, latency_shown(facts), as_json=args.as_json)
        tell(args.settings, f"kept in {opened.url}")


def _profile_fleet(args: ProfileArgs, request: ProfileRequest) -> None:
    from ..tuning.fleet.fleet import FleetJob
    from .fleet import profile_fleet
    from .measured import profile_facts

    job = FleetJob(request=request, facts=profile_facts, store_url=args.store, fresh=args.fresh)
    profile_fleet(args.settings, job, args.ray_address, as_json=args.as_json)


def _dry_run(args: ProfileArgs, request: ProfileRequest) -> None:
    if args.ray_address is not None:
        from ..tuning.fleet.turns import turns_of_cluster
        from .fleet import print_turns

        print_turns(turns_of_cluster(args.ray_address), as_json=args.as_json)
        return
    from ..tuning.fleet.fleet import requests_of_devices
    from ..tuning.preview import preview
    from .measured import preview_facts, preview_shown

    for each in requests_of_devices(request):
        facts = preview_facts(preview(each))
        print_facts(facts, preview_shown(facts), as_json=args.as_json)


def _estimate(args: ProfileArgs, device: str) -> None:
    from ..db import open_store
    from ..tuning.estimates.estimate import EstimateRequest, estimate
    from ..tuning.positions import STRETCH, within_positions
    from .measured import estimate_facts, estimate_shown

    if args.dry_run or args.ray_address is not None or args.roles is not None or args.ranks is not None:
        raise click.UsageError("--estimate measures nothing; leave out the options of a measurement.")
    options.require_untyped(OF_TEXTS + OF_TIMING, "is for a measurement, and --estimate measures nothing.")
    models = args.models()
    asked: dict[str, Any] = {name: vars(args)[name] for name in ("batches", "contexts") if vars(args)[name]}
    for note in within_positions(models.target, models.target.name, asked.get("contexts", ()), STRETCH):
        tell(args.settings, note)
    request = EstimateRequest(models=models, device=device, dtype=args.dtype, **asked)
    with open_store(args.store) as opened:
        facts = estimate_facts(estimate(request, opened), opened.url)
        print_facts(facts, estimate_shown(facts), as_json=args.as_json)
        tell(args.settings, f"kept in {opened.url}, apart from everything measured")
