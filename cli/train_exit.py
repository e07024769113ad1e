"""`spectune train exit`: the target's own first layers as a drafter."""

from __future__ import annotations

import click

from .command import Command
from .report import progress
from .settings import Settings
from .train_run import BASIC, TrainingRun, show_card, training_run


@click.command(name="exit", cls=Command, basic=BASIC, stray="name the model with --target MODEL")
@training_run(piece=256, least_piece=4, said="Tokens of a piece.")
@click.option("--exit-layer", required=True, type=click.IntRange(1), help="Layers of the target that draft.")
@click.option(
    "--width",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="Width of the imitation network; else the hidden size.",
)
def exit_(settings: Settings, run: TrainingRun, exit_layer: int, width: int) -> None:
    """Train an early exit: the target drafts for itself.

    The target's first layers draft, behind a small network that imitates what the deep layers make of their result.
    The target continues pieces of the files, half of them greedily, and the network learns from these texts. The
    folder is a drafter for this target alone, with a card that says how good it is. A stopped run resumes
    where it stopped.

    \b
        spectune train exit --target path/to/target --data corpus.jsonl -o my-exit --exit-layer 2
    """
    from ..training.exit import ExitRequest, train_exit
    from ..tuning.family import torch_device

    request = ExitRequest(
        target=run.target,
        data=run.files,
        exit_layer=exit_layer,
        width=width,
        settings=run.settings,
        own=run.own,
        device=torch_device(run.here),
        dtype=run.here.dtype_for(run.dtype),
    )
    with progress(settings) as report:
        card = train_exit(request, run.output, fresh=run.fresh, progress=report)
    show_card(settings, run, card, "exit")
