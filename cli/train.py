"""`spectune train`: drafters that learn from a target."""

from __future__ import annotations

import click

from . import options
from .command import Command
from .report import Settings
from .train_block import ctc, exit_, medusa, specformer
from .train_cacheback import cacheback, recycling
from .train_pad import pad
from .train_run import BASIC, TrainingRun, intermediate, train_and_show, training_run

FORMS = {"1": "eagle", "2": "eagle", "3": "eagle3"}  # what --form says; 1 and 2 differ in their trees alone


@click.group(name="train")
def train() -> None:
    """Train a drafter on a target of yours.

    Each kind of drafter has its own command.

    \b
        spectune train eagle --target path/to/target --data corpus.jsonl -o my-head
        spectune train medusa --target path/to/target --data corpus.jsonl -o my-heads
    """


@train.command(cls=Command, basic=BASIC, stray="name the model with --target MODEL")
@training_run(piece=256, least_piece=4, said="Tokens of a piece.")
@click.option("--form", default="3", show_default=True, type=click.Choice([*FORMS]), help="Which EAGLE the head is.")
@click.option(
    "--test-steps", default=7, show_default=True, type=click.IntRange(1), help="Steps of the training-time test."
)
@click.option(
    "--draft-vocabulary",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="Tokens form 3 can draft; a quarter of all unless given.",
)
@intermediate
@click.option(
    "--reads",
    default="",
    metavar="LAYERS",
    callback=options.counts,
    help="Layers behind each hidden state form 3 reads, as 2,4,7; as published unless given.",
)
def eagle(
    settings: Settings,
    run: TrainingRun,
    form: str,
    test_steps: int,
    draft_vocabulary: int,
    intermediate: int,
    reads: tuple[int, ...],
) -> None:
    """Train a head that drafts from the target's hidden states.

    The target continues pieces of the files, half of them greedily, and the head learns from these texts. The
    folder is a drafter like any other afterwards, for this target alone, with a card that says how good it is. A
    run that was stopped resumes where it stopped.

    \b
        spectune train eagle --target path/to/target --data corpus.jsonl -o my-head
        spectune train eagle --target path/to/target --data book.txt -o my-head --form 1 --steps 500
    """
    from ..training.eagle import EagleRequest, train_eagle

    request = EagleRequest(
        **run.asked,
        form="eagle3" if FORMS[form] == "eagle3" else "eagle",
        test_steps=test_steps,
        draft_vocabulary=draft_vocabulary,
        intermediate=intermediate,
        reads=reads,
    )
    train_and_show(settings, run, train_eagle, request, "head")


train.add_command(cacheback)
train.add_command(medusa)
train.add_command(ctc)
train.add_command(specformer)
train.add_command(exit_)
train.add_command(recycling)
train.add_command(pad)
