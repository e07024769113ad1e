"""`spectune lossy`: what lossy decoding costs and saves, measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .command import Command
from .model import model_places
from .prompts import named_prompts, tell_cut
from .report import Settings, Table, facts_of, print_json, print_table, progress, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..planner.lossy.run import LossyRun, LossyWay
    from ..planner.strategies.lossy import LossyDraft
    from ..profiler.records.model import ModelIdentity

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


@click.command(
    cls=Command,
    basic=(
        "target",
        "draft-model",
        "drafter",
        "prompts",
        "setting",
        "batch",
        "temperature",
        "device",
        "dtype",
        "output",
    ),
    stray="name the model with --target MODEL",
)
@options.target
@options.drafters
@click.option(
    "--prompts",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Text, .jsonl, .json, .csv, .parquet, or a folder of them.",
)
@options.sample
@click.option(
    "--setting",
    "settings_",
    multiple=True,
    metavar="LENGTH[+COPIED],WINDOW,GATE[n]|LENGTH[+COPIED],pad,THRESHOLD[,FLOOR]",
    callback=settings_of,
    help="A way to measure, by FLy or by PAD; repeatable. +COPIED: the drafter copies so many tokens from the text at "
    f"once. n: the gate is of the whole entropy over ln(vocabulary). Else {' '.join(DEFAULTS)}, and with a classifier "
    f"{' '.join(PAD_DEFAULTS)}.",
)
@click.option("--window-counts-itself", is_flag=True, help="Count windows as FLy's published code does.")
@click.option(
    "--batch",
    "batches",
    default="1",
    show_default=True,
    callback=options.counts,
    metavar="N,N,...",
    help="Batch sizes; a run counts at its own.",
)
@options.device
@options.dtype
@options.workload
@options.temperature
@options.max_new_tokens
@options.max_prompt_tokens
@options.seed
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write what `spectune plan --lossy` reads to this file.",
)
@options.as_json
@click.pass_obj
def lossy(
    settings: Settings,
    /,
    target: str,
    drafters: dict[str, str],
    prompts: Path,
    sample: int | None,
    settings_: tuple[str, ...],
    window_counts_itself: bool,
    output: Path | None,
    as_json: bool,
    **wanted: Any,  # the other fields of a LossyRequest, which checks them
) -> None:
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
    from ..errors import RequestError
    from ..planner.lossy.run import write_runs
    from ..planner.records.pad_rule import FLOOR
    from ..profiler.hub import resolve_model
    from ..profiler.identity import identify
    from ..profiler.prompts import answers_of
    from ..report.file import require_writable
    from ..runtime.models.pivots import is_pivots, pivot_shape
    from ..tuning.lossy import LossyRequest, measure_lossy
    from ..tuning.request import Models

    require_writable(output)
    places = model_places(drafters)
    classifiers = {name: path for name, path in places.items() if is_pivots(path)}
    drafting = {name: path for name, path in places.items() if name not in classifiers}
    if len(drafting) != 1 or len(classifiers) > 1:
        raise RequestError(
            f"lossy decoding is measured with one drafter and at most one classifier, got {len(drafting)} and "
            f"{len(classifiers)}; pass --drafter NAME=PATH"
        )
    wanted_ways = settings_ or (*DEFAULTS, *(PAD_DEFAULTS if classifiers else ()))
    _require_asked(wanted_ways, classifiers, window_counts_itself)
    (name,) = drafting
    asked = next((identify(path, called) for called, path in classifiers.items()), None)
    floor = next((pivot_shape(path).floor for path in classifiers.values()), FLOOR)
    used = named_prompts(settings, prompts, "evaluation", sample=sample, seed=wanted["seed"])
    request = LossyRequest(
        models=Models(target=resolve_model(target), drafters=drafting),
        prompts=used,
        answers=answers_of(used),
        drafter=name,
        classifiers=classifiers,
        policies=[
            pad_policy_of(text, name, asked, floor)
            if PAD.fullmatch(text)
            else policy_of(text, name, window_counts_itself)
            for text in wanted_ways
        ],
        **wanted,
    )
    tell_cut(settings, request.as_profile)
    with progress(settings) as report:
        runs = measure_lossy(request, progress=report)
    if output is not None:
        write_runs(output, runs)
    if as_json:
        print_json({"lossy": True, "runs": [_facts(run) for run in runs]})
    else:
        print_table(_table(runs))
    tell(
        settings, f"written to {output}" if output else "kept nowhere; write a file for `spectune plan --lossy` with -o"
    )


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
