"""`spectune lossy`: what lossy decoding costs and saves, measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .report import Table, facts_of, print_json, print_table, progress, tell
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.fly_policy import FlyPolicy
    from ..planner.lossy_run import LossyRun

SETTING = re.compile(r"(?P<length>\d+)(\+(?P<copied>\d+))?,(?P<window>\d+),(?P<threshold>[0-9.]+)(?P<whole>n)?")
DEFAULTS = ("10,6,0.3", "10,4,0.3", "10,2,0")  # the published rule, a shorter window, and next to no rule


def settings_of(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of settings, each of which reads as one."""
    for text in texts:
        if not SETTING.fullmatch(text):
            raise click.BadParameter(f"{text!r} is no setting; write LENGTH,WINDOW,GATE, for example 10,6,0.3")
    return tuple(texts)


@click.command()
@options.target
@options.drafters
@click.option("--prompts", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Text or .jsonl.")
@click.option(
    "--setting",
    "settings_",
    multiple=True,
    default=DEFAULTS,
    show_default=True,
    metavar="LENGTH[+COPIED],WINDOW,GATE[n]",
    callback=settings_of,
    help="A way to measure; repeatable. +COPIED: the drafter copies so many tokens from the text at once. n: the gate "
    "is of the whole entropy over ln(vocabulary).",
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
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="For `spectune plan --lossy`.")
@options.as_json
@click.pass_obj
def lossy(
    settings: Settings,
    /,
    target: Path,
    drafters: dict[str, Path],
    prompts: Path,
    settings_: tuple[str, ...],
    window_counts_itself: bool,
    output: Path | None,
    as_json: bool,
    **wanted: Any,  # the other fields of a LossyRequest, which checks them
) -> None:
    """Measure what lossy decoding costs and saves.

    Decodes the prompts by FLy's rule at several settings with the one drafter given, and beside them the target's own
    texts. A line of a .jsonl file that has "answer" is right where its text ends with that; where all lines have one,
    quality is the share of right answers, else how likely the target finds the text. The output is NOT the target's
    own, and nothing decodes so unless a plan made with --allow-lossy says so.

    \b
        spectune lossy --target path/to/target --drafter small=path/to/drafter --prompts prompts.jsonl -o lossy.json
        spectune plan --target path/to/target --allow-lossy --lossy lossy.json --max-quality-loss 0.02
    """
    from ..errors import RequestError
    from ..planner.lossy_run import write_runs
    from ..profiler.prompts import read_answers, read_prompts
    from ..tuning.lossy import LossyRequest, measure_lossy
    from ..tuning.request import Models
    from .output import require_writable

    require_writable(output)
    if len(drafters) != 1:
        raise RequestError(
            f"lossy decoding is measured with one drafter, got {len(drafters)}; pass --drafter NAME=PATH"
        )
    (name,) = drafters
    request = LossyRequest(
        models=Models(target=target, drafters=drafters),
        prompts=read_prompts(prompts),
        answers=read_answers(prompts),
        drafter=name,
        policies=[policy_of(text, name, window_counts_itself) for text in settings_],
        **wanted,
    )
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


def policy_of(text: str, drafter: str, counts_itself: bool = False) -> FlyPolicy:
    """Return the way that a setting's text names."""
    from ..planner.fly import FlyRule
    from ..planner.fly_policy import FlyPolicy
    from ..planner.policy import ChainPolicy, StackPolicy

    read = SETTING.fullmatch(text)
    assert read is not None, "settings were read before"
    rule = FlyRule(threshold=float(read["threshold"]), window=int(read["window"]), counts_itself=counts_itself)
    if read["whole"]:
        rule = replace(rule, entropy="normalised")
    length = int(read["length"])
    if read["copied"] is None:
        return FlyPolicy(draft=ChainPolicy(length=length), rule=rule)
    copied = StackPolicy(drafters=(drafter, "lookup"), lengths=(length, int(read["copied"])), max_ngram=4)
    return FlyPolicy(draft=copied, rule=rule)


def _facts(run: LossyRun) -> dict[str, Any]:
    return {
        "policy": run.policy.label,
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
            run.policy.label,
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
