"""`spectune lossy`: what lossy decoding costs and saves, measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .command import Args, command, fields_of
from .model import model_places
from .option import flag, option
from .prompts import named_prompts, tell_cut
from .report import Table, facts_of, print_facts, progress, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..planner.lossy.run import LossyRun, LossyWay
    from ..planner.strategies.lossy import LossyDraft
    from ..profiler.records.model import ModelIdentity
    from ..tuning.lossy import LossyRequest

NUMBER = r"(\d+\.?\d*|\.\d+)(e-?\d+)?"
CHAIN = r"(?P<length>\d+)(\+(?P<copied>\d+))?"
FLY = re.compile(rf"{CHAIN},(?P<window>\d+),(?P<threshold>{NUMBER})(?P<whole>n)?")
PAD = re.compile(rf"{CHAIN},pad,(?P<threshold>{NUMBER})(,(?P<floor>{NUMBER}))?")
DEFAULTS = ("10,6,0.3", "10,4,0.3", "10,2,0")  # the published rule, a shorter window, and next to no rule
PAD_DEFAULTS = ("10,pad,0.3", "10,pad,0.5", "10,pad,0.7")  # as published


def settings_of(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of settings, each of which reads as one."""
    for text in texts:
        if not FLY.fullmatch(text) and not PAD.fullmatch(text):
            raise click.BadParameter(
                f"{text!r} is no setting; write LENGTH,WINDOW,GATE, for example 10,6,0.3, or LENGTH,pad,THRESHOLD, for "
                "example 10,pad,0.5"
            )
    return tuple(texts)


@dataclass(frozen=True, kw_only=True)
class LossyArgs(Args):
    """What was typed; the fields of a LossyRequest have their names there, and it checks them."""

    target: str = options.target
    drafters: dict[str, str] = options.drafters
    prompts: Path = options.prompts.but(required=True, help="Text, .jsonl, .json, .csv, .parquet, or a folder of them.")
    sample: int | None = options.sample
    ways: tuple[str, ...] = option(
        "A way to measure, by FLy or by PAD; repeatable. +COPIED: the drafter copies so many tokens from the text at "
        f"once. n: the gate is of the whole entropy over ln(vocabulary). Else {' '.join(DEFAULTS)}, and with a "
        f"classifier {' '.join(PAD_DEFAULTS)}.",
        "--setting",
        multiple=True,
        metavar="LENGTH[+COPIED],WINDOW,GATE[n]|LENGTH[+COPIED],pad,THRESHOLD[,FLOOR]",
        callback=settings_of,
    )
    window_counts_itself: bool = flag("Count windows as FLy's published code does.")
    batches: tuple[int, ...] = options.batches.but(default="1", help="Batch sizes; a run counts at its own.")
    device: str = options.device
    dtype: str = options.dtype
    workload: str = options.workload
    temperature: float = options.temperature
    max_new_tokens: int = options.max_new_tokens
    max_prompt_tokens: int | None = options.max_prompt_tokens
    seed: int = options.seed
    output: Path | None = options.output.but(help="Write what `spectune plan --lossy` reads to this file.")
    as_json: bool = options.as_json


@command(
    LossyArgs,
    basic="target draft-model drafter prompts setting batch temperature device dtype output",
    stray="name the model with --target MODEL",
)
def lossy(args: LossyArgs) -> None:
    """Measure what lossy decoding costs and gains.

    Decodes the prompts by FLy's rule at several settings, and the target's own texts beside them. Where a second
    --drafter is the folder of a pivot classifier, it decodes by PAD's rule. A line of a .jsonl file with "answer"
    is right where its text ends with that. Quality is the share of right answers where all lines have one, else how
    likely the target finds the text. The output is NOT the target's own. Only a plan made with --allow-lossy
    decodes so.

    \b
        spectune lossy --target path/to/target --drafter small=path/to/drafter --prompts prompts.jsonl -o lossy.json
        spectune lossy --target path/to/target --drafter small=path/to/drafter --drafter pivots=path/to/pivots \
            --prompts prompts.jsonl --setting 10,pad,0.5 -o lossy.json
        spectune plan --target path/to/target --allow-lossy --lossy lossy.json --max-quality-loss 0.02
    """
    from ..planner.lossy.run import write_runs
    from ..report.file import require_writable
    from ..tuning.lossy import measure_lossy

    require_writable(args.output)
    request = _request(args)
    tell_cut(args.settings, request.as_profile)
    with progress(args.settings) as report:
        runs = measure_lossy(request, progress=report)
    if args.output is not None:
        write_runs(args.output, runs)
    print_facts({"lossy": True, "runs": [_facts(run) for run in runs]}, [_table(runs)], as_json=args.as_json)
    nowhere = "kept nowhere; write a file for `spectune plan --lossy` with -o"
    tell(args.settings, f"written to {args.output}" if args.output else nowhere)


def _request(args: LossyArgs) -> LossyRequest:
    """Return what is measured; RequestError unless it has one drafter, and one classifier at most."""
    from ..errors import RequestError
    from ..profiler.hub import resolve_model
    from ..profiler.prompts import answers_of
    from ..runtime.models.pivots import is_pivots
    from ..tuning.lossy import LossyRequest
    from ..tuning.request import Models

    places = model_places(args.drafters)
    classifiers = {name: path for name, path in places.items() if is_pivots(path)}
    drafting = {name: path for name, path in places.items() if name not in classifiers}
    if len(drafting) != 1 or len(classifiers) > 1:
        raise RequestError(
            f"lossy decoding is measured with one drafter and at most one classifier, got {len(drafting)} and "
            f"{len(classifiers)}; pass --drafter NAME=PATH"
        )
    (name,) = drafting
    policies = _policies(args, name, classifiers)
    used = named_prompts(args.settings, args.prompts, "evaluation", sample=args.sample, seed=args.seed)
    own: dict[str, Any] = {"drafter": name, "classifiers": classifiers, "policies": policies, "prompts": used}
    own |= {"models": Models(target=resolve_model(args.target), drafters=drafting), "answers": answers_of(used)}
    return LossyRequest(**(fields_of(LossyRequest, args) | own))


def _policies(args: LossyArgs, drafter: str, classifiers: Mapping[str, Path]) -> list[LossyWay]:
    from ..planner.records.pad_rule import FLOOR
    from ..profiler.identity import identify
    from ..runtime.models.pivots import pivot_shape

    ways = args.ways or (*DEFAULTS, *(PAD_DEFAULTS if classifiers else ()))
    _require_asked(ways, classifiers, args.window_counts_itself)
    classifier = next((identify(path, name) for name, path in classifiers.items()), None)
    floor = next((pivot_shape(path).floor for path in classifiers.values()), FLOOR)
    return [
        pad_policy_of(text, drafter, classifier, floor)
        if PAD.fullmatch(text)
        else policy_of(text, drafter, args.window_counts_itself)
        for text in ways
    ]


def _require_asked(ways: Sequence[str], classifiers: Iterable[str], counts_itself: bool) -> None:
    """Raise a usage error for options that no measured way reads."""
    is_pad = [PAD.fullmatch(text) is not None for text in ways]
    if counts_itself and all(is_pad):
        raise click.UsageError("--window-counts-itself is of FLy's windows, and every --setting is PAD's.")
    if not any(is_pad):
        for name in classifiers:
            raise click.UsageError(f"--drafter {name} is a pivot classifier, and no --setting uses it; leave it out.")


def policy_of(text: str, drafter: str, counts_itself: bool = False) -> LossyWay:
    """Return the way by FLy that a setting's text names."""
    from ..planner.records.fly_rule import FlyRule
    from ..planner.strategies.fly import FlyPolicy

    read = FLY.fullmatch(text)
    assert read is not None, "settings were read before"
    rule = FlyRule(threshold=float(read["threshold"]), window=int(read["window"]), counts_itself=counts_itself)
    if read["whole"]:
        rule = replace(rule, entropy="normalised")
    return FlyPolicy(draft=_draft(read, drafter), rule=rule)


def pad_policy_of(text: str, drafter: str, classifier: ModelIdentity | None, floor: float) -> LossyWay:
    """Return the way by PAD that a setting's text names; RequestError where there is no classifier.

    `drafter` is a model's name; `floor` counts unless the setting has one.
    """
    from ..errors import RequestError
    from ..planner.records.pad_rule import PadRule
    from ..planner.strategies.pad import PadPolicy

    if classifier is None:
        raise RequestError(
            f"{text} needs a pivot classifier, and none was given; pass its folder as another --drafter NAME=PATH, or "
            "train one: spectune train pad"
        )
    read = PAD.fullmatch(text)
    assert read is not None, "settings were read before"
    rule = PadRule(threshold=float(read["threshold"]), floor=float(read["floor"] or floor))
    return PadPolicy(draft=_draft(read, drafter), rule=rule, classifier=classifier)


def _draft(read: re.Match[str], drafter: str) -> LossyDraft:
    from ..planner.strategies.chain import ChainPolicy
    from ..planner.strategies.stack import StackPolicy

    length = int(read["length"])
    if read["copied"] is None:
        return ChainPolicy(length=length)
    return StackPolicy(drafters=(drafter, "lookup"), lengths=(length, int(read["copied"])), max_ngram=4)


def _facts(run: LossyRun) -> dict[str, Any]:
    return {
        "policy": run.policy.code,
        "drafter": run.drafter,
        "batch": run.batch,
        "tokens_per_round": run.tokens_per_round,
        "quality": facts_of(run.quality),
    }


def _table(runs: Sequence[LossyRun]) -> Table:
    columns = ("batch", "policy", "tokens a round", "quality", "target's", "loss, 95 %", "same texts", "lossy tokens")
    rows = [
        (
            run.batch,
            run.policy.code,
            f"{run.tokens_per_round:.2f}",
            f"{run.quality.lossy:.4g}",
            f"{run.quality.target:.4g}",
            f"{run.quality.low:.3g} to {run.quality.high:.3g}",
            f"{run.quality.same_texts:.1%}",
            f"{run.quality.lossy_tokens:.2%}",
        )
        for run in runs
    ]
    return Table(title=f"LOSSY decoding; quality is {runs[0].quality.measure}", columns=columns, rows=rows)
