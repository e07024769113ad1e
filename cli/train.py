"""`spectune train`: drafters that learn from a target."""

from __future__ import annotations

from dataclasses import dataclass

import click

from . import options
from .command import command, fields_of
from .option import choice, option, whole
from .train_block import ctc, exit_, medusa, specformer
from .train_cacheback import cacheback, recycling
from .train_pad import pad
from .train_run import BASIC, STRAY, TrainArgs, intermediate, train_and_show

FORMS = {"1": "eagle", "2": "eagle", "3": "eagle3"}  # what --form says; 1 and 2 differ in their trees alone


@click.group(name="train")
def train() -> None:
    """Train a drafter on a target of yours.

    Each kind of drafter has its own command.

    \b
        spectune train eagle --target path/to/target --data corpus.jsonl -o my-head
        spectune train medusa --target path/to/target --data corpus.jsonl -o my-heads
    """


@dataclass(frozen=True, kw_only=True)
class EagleArgs(TrainArgs):
    """What was typed; the fields of an EagleRequest have their names there."""

    form: str = choice("Which EAGLE the head is.", [*FORMS], default="3")
    test_steps: int = whole("Steps of the training-time test.", default=7)
    draft_vocabulary: int = whole(
        "Tokens form 3 can draft; a quarter of all unless given.", least=0, absent=0, metavar="N"
    )
    intermediate: int = intermediate
    reads: tuple[int, ...] = option(
        "Layers behind each hidden state form 3 reads, as 2,4,7; as published unless given.",
        absent="",
        metavar="LAYERS",
        callback=options.counts,
    )


@command(EagleArgs, group=train, basic=BASIC, stray=STRAY)
def eagle(args: EagleArgs) -> None:
    """Train a head that drafts from the target's hidden states.

    The target continues pieces of the files, half of them greedily, and the head learns from these texts. The
    folder is a drafter like any other afterwards, for this target alone, with a card that says how good it is. A
    run that was stopped resumes where it stopped.

    \b
        spectune train eagle --target path/to/target --data corpus.jsonl -o my-head
        spectune train eagle --target path/to/target --data book.txt -o my-head --form 1 --steps 500
    """
    from ..training.eagle import EagleRequest

    form = "eagle3" if FORMS[args.form] == "eagle3" else "eagle"
    request = EagleRequest(**(fields_of(EagleRequest, args) | args.request() | {"form": form}))
    train_and_show(args, request, "head")


train.add_command(cacheback)
train.add_command(medusa)
train.add_command(ctc)
train.add_command(specformer)
train.add_command(exit_)
train.add_command(recycling)
train.add_command(pad)
