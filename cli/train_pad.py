"""`spectune train pad`: a classifier that says which drafted tokens decide the answer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .command import Command
from .report import Settings, Table, print_json, print_table, progress, tell
from .train_run import data_files

if TYPE_CHECKING:
    from ..training.pad_request import Exercise, PadCard

POSITIVE = click.IntRange(1)
CHANCE = click.FloatRange(0.0, 1.0)


@click.command(
    cls=Command,
    basic=("target", "drafter", "data", "output", "rollouts", "steps", "max-new-tokens", "device", "dtype", "fresh"),
    stray="name the model with --target MODEL",
)
@options.target
@click.option("--drafter", "--draft-model", "drafter", required=True, metavar="MODEL", help="Whose tokens.")
@data_files('Problems: .jsonl, every line with "prompt" and "answer". Repeatable.')
@click.option("-o", "--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Its folder.")
@click.option("--rollouts", default=8, show_default=True, type=POSITIVE, help="Texts with each token, and without.")
@click.option(
    "--rollout-temperature",
    default=0.6,
    show_default=True,
    type=click.FloatRange(0.0),
    help="Temperature of these texts; at 0 take one rollout.",
)
@click.option(
    "--least-share",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0.0, 1.0, min_open=True),
    help="Share of the right answers that a token must keep not to be a pivot.",
)
@click.option("--floor", default=1e-4, show_default=True, type=CHANCE, help="Least probability by the target.")
@click.option(
    "--reads", default=0, metavar="LAYERS", type=click.IntRange(0), help="Layers behind the state it reads; 0 is usual."
)
@click.option("--width", default=256, show_default=True, type=POSITIVE, help="Width of its two layers.")
@click.option("--steps", default=300, show_default=True, type=POSITIVE, help="Updates of the weights.")
@click.option("--batch", default=32, show_default=True, type=POSITIVE, help="Pairs of tokens per step.")
@click.option(
    "--held-out",
    default=0.25,
    show_default=True,
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    help="Share of the problems it is judged on.",
)
@click.option(
    "--recall",
    default=0.95,
    show_default=True,
    type=click.FloatRange(0.0, 1.0, min_open=True),
    help="Share of pivots that the recommended threshold rejects.",
)
@options.max_new_tokens
@options.device
@options.dtype
@options.seed
@click.option("--fresh", is_flag=True, help="Start an unfinished training over; its labels stay.")
@options.as_json
@click.pass_obj
def pad(
    settings: Settings,
    /,
    target: str,
    drafter: str,
    files: tuple[Path, ...],
    output: Path,
    rollouts: int,
    rollout_temperature: float,
    steps: int,
    batch: int,
    device: str,
    dtype: str,
    seed: int,
    fresh: bool,
    as_json: bool,
    **learned: Any,  # the other fields of a PadRequest, which checks them
) -> None:
    """Train a pivot classifier for lossy decoding by PAD.

    The target decodes problems whose answers are known. Where it rejects a drafted token, it continues with and
    without that token several times. A token that makes answers wrong is a pivot. A small network learns to see
    pivots in the target's hidden state. The folder is for this target alone, with a card that says how good it is.
    A run that was stopped resumes where it stopped.

    \b
        spectune train pad --target path/to/target --drafter path/to/small --data problems.jsonl -o my-pivots
        spectune lossy --target path/to/target --drafter small=path/to/small --drafter pivots=my-pivots \\
            --prompts prompts.jsonl -o lossy.json
    """
    from ..profiler.device import detect
    from ..profiler.hub import resolve_model
    from ..training.language_model import TrainingSettings
    from ..training.pad import train_pad
    from ..training.pad_labels import RolloutSettings
    from ..training.pad_request import PadRequest
    from ..tuning.family import torch_device

    here, place = detect(device), resolve_model(target)
    request = PadRequest(
        target=place,
        drafter=resolve_model(drafter),
        exercises=tuple(each for path in files for each in exercises_of(path, place)),
        files=tuple(path.name for path in files),
        rollouts=RolloutSettings(rollouts=rollouts, temperature=rollout_temperature, seed=seed),
        settings=TrainingSettings(steps=steps, batch=batch, sequence_tokens=1, seed=seed),
        device=torch_device(here),
        dtype=here.dtype_for(dtype),
        **learned,
    )
    with progress(settings) as report:
        card = train_pad(request, output, fresh=fresh, progress=report)
    if as_json:
        print_json(asdict(card) | {"folder": str(output)})
        return
    print_table(_table(card))
    tell(
        settings,
        f"kept in {output}; next: spectune lossy --target {target} --drafter small={drafter} "
        f"--drafter pivots={output} --prompts FILE --setting 10,pad,{card.threshold:.4g} -o lossy.json",
    )


def exercises_of(path: Path, target: Path) -> list[Exercise]:
    """Return the problems of a file in the target's tokens.

    RequestError: the file cannot be read as prompts, or a line has no answer or an image.
    """
    from ..errors import RequestError
    from ..profiler.prompts import answers_of, read_prompts
    from ..runtime.engine.prompts import encode_prompt
    from ..runtime.models.loading import load_tokenizer
    from ..training.pad_request import Exercise

    prompts = read_prompts(path)
    answers = answers_of(prompts)
    if not answers:
        raise RequestError(
            f"{path} does not tell every answer, and a token is judged by the answer it leads to; write a .jsonl file "
            'whose every line has "prompt" and "answer"'
        )
    if any(prompt.images for prompt in prompts):
        raise RequestError(
            f"a problem of {path} has an image, and pivots are labelled on problems of text alone; leave such lines out"
        )
    tokenizer = load_tokenizer(str(target))
    pairs = zip(prompts, answers, strict=True)
    return [Exercise(prompt=encode_prompt(prompt, tokenizer), answer=answer) for prompt, answer in pairs]


def _table(card: PadCard) -> Table:
    rows = [
        (f"{each.threshold:.4g}", _shown(each.recall, each.recall_95), _shown(each.passed, each.passed_95))
        for each in card.thresholds
    ]
    title = f"{card.parameters:,} parameters, {card.pivots:,} pivots of {card.candidates:,} tokens. {card.judgement}"
    return Table(title=title, columns=("threshold", "pivots rejected, 95 %", "others let be, 95 %"), rows=rows)


def _shown(share: float | None, interval: tuple[float, float] | None) -> str | None:
    if share is None or interval is None:
        return None
    return f"{share:.1%} ({interval[0]:.1%} to {interval[1]:.1%})"
