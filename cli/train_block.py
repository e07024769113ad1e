"""`spectune train medusa`, `ctc` and `specformer`: drafters that say many tokens in one forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .command import Command
from .report import Settings
from .train_run import BASIC, TrainingRun, intermediate, train_and_show, training_run

if TYPE_CHECKING:
    from ..runtime.models.drafter_shapes import Kind

SAID = "Neighbouring places of a text learned from at once."


@click.command(cls=Command, basic=BASIC, stray="name the model with --target MODEL")
@training_run(piece=16, least_piece=1, said=SAID)
@click.option("--heads", default=5, show_default=True, type=click.IntRange(1), help="Tokens said at once.")
def medusa(settings: Settings, run: TrainingRun, heads: int) -> None:
    """Train Medusa heads on the last hidden state.

    Each head is one residual block; the language-model head is the target's own. The target continues pieces of the
    files, half of them greedily, and the heads learn from these texts. The folder is a drafter for this target alone,
    with a card that says how good it is. A run that was stopped resumes where it stopped.

    \b
        spectune train medusa --target path/to/target --data corpus.jsonl -o my-heads
    """
    _train(settings, run, "medusa", depth=heads)


@click.command(cls=Command, basic=BASIC, stray="name the model with --target MODEL")
@training_run(piece=16, least_piece=1, said=SAID)
@click.option("--frames", default=8, show_default=True, type=click.IntRange(1), help="Places that say a token or none.")
@click.option("--labels", default=5, show_default=True, type=click.IntRange(1), help="Tokens these learn to say.")
@intermediate
def ctc(settings: Settings, run: TrainingRun, frames: int, labels: int, intermediate: int) -> None:
    """Train a drafter by CTC: frames that say tokens or blanks.

    One layer over the text's states answers all frames at once. The target continues pieces of the files, half of
    them greedily, and the drafter learns from these texts. The folder is a drafter for this target alone, with a
    card that says how good it is. A run that was stopped resumes where it stopped.

    \b
        spectune train ctc --target path/to/target --data corpus.jsonl -o my-drafter
    """
    _train(settings, run, "ctc", depth=labels, frames=frames, intermediate=intermediate)


@click.command(cls=Command, basic=BASIC, stray="name the model with --target MODEL")
@training_run(piece=16, least_piece=1, said=SAID)
@click.option("--places", default=8, show_default=True, type=click.IntRange(1), help="Tokens said at once.")
@click.option(
    "--width",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="Width of a token's vector; else the target's.",
)
@intermediate
@click.option("--published", is_flag=True, help="Do not read the newest token itself, as in the paper.")
def specformer(
    settings: Settings, run: TrainingRun, places: int, width: int, intermediate: int, published: bool
) -> None:
    """Train a SpecFormer: places that see the text, then each other.

    It reads the target's states behind half of its layers, behind all but one and behind all. The target continues
    pieces of the files, half of them greedily, and the drafter learns from these texts. The folder is a drafter for
    this target alone, with a card that says how good it is. A run that was stopped resumes where it stopped.

    \b
        spectune train specformer --target path/to/target --data corpus.jsonl -o my-drafter
    """
    _train(settings, run, "specformer", depth=places, width=width, intermediate=intermediate, published=published)


def _train(settings: Settings, run: TrainingRun, kind: Kind, **sizes: Any) -> None:  # Any: as the request types them
    from ..training.block import BlockRequest, train_block

    request = BlockRequest(**run.asked, kind=kind, **sizes)
    train_and_show(settings, run, train_block, request, kind)


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

    request = ExitRequest(**run.asked, exit_layer=exit_layer, width=width)
    train_and_show(settings, run, train_exit, request, "exit")
