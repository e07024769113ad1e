"""`spectune train medusa`, `ctc` and `specformer`: drafters that say many tokens in one forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .command import command
from .option import flag, whole
from .train_run import BASIC, STRAY, TrainArgs, intermediate, train_and_show

if TYPE_CHECKING:
    from ..runtime.models.drafter_shapes import Kind


@dataclass(frozen=True, kw_only=True)
class BlockArgs(TrainArgs):
    """What was typed to each of them."""

    piece: int = whole("Neighbouring places of a text learned from at once.", default=16)


@dataclass(frozen=True, kw_only=True)
class MedusaArgs(BlockArgs):
    """What was typed."""

    heads: int = whole("Tokens said at once.", default=5)


@dataclass(frozen=True, kw_only=True)
class CtcArgs(BlockArgs):
    """What was typed."""

    frames: int = whole("Places that say a token or none.", default=8)
    labels: int = whole("Tokens these learn to say.", default=5)
    intermediate: int = intermediate


@dataclass(frozen=True, kw_only=True)
class SpecFormerArgs(BlockArgs):
    """What was typed."""

    places: int = whole("Tokens said at once.", default=8)
    width: int = whole("Width of a token's vector; else the target's.", least=0, absent=0, metavar="N")
    intermediate: int = intermediate
    published: bool = flag("Do not read the newest token itself, as in the paper.")


@dataclass(frozen=True, kw_only=True)
class ExitArgs(TrainArgs):
    """What was typed."""

    exit_layer: int = whole("Layers of the target that draft.", required=True)
    width: int = whole("Width of the imitation network; else the hidden size.", least=0, absent=0, metavar="N")


@command(MedusaArgs, basic=BASIC, stray=STRAY)
def medusa(args: MedusaArgs) -> None:
    """Train Medusa heads on the last hidden state.

    Each head is one residual block; the language-model head is the target's own. The target continues pieces of the
    files, half of them greedily, and the heads learn from these texts. The folder is a drafter for this target alone,
    with a card that says how good it is. A run that was stopped resumes where it stopped.

    \b
        spectune train medusa --target path/to/target --data corpus.jsonl -o my-heads
    """
    _train(args, "medusa", depth=args.heads)


@command(CtcArgs, basic=BASIC, stray=STRAY)
def ctc(args: CtcArgs) -> None:
    """Train a drafter by CTC: frames that say tokens or blanks.

    One layer over the text's states answers all frames at once. The target continues pieces of the files, half of
    them greedily, and the drafter learns from these texts. The folder is a drafter for this target alone, with a
    card that says how good it is. A run that was stopped resumes where it stopped.

    \b
        spectune train ctc --target path/to/target --data corpus.jsonl -o my-drafter
    """
    _train(args, "ctc", depth=args.labels, frames=args.frames, intermediate=args.intermediate)


@command(SpecFormerArgs, basic=BASIC, stray=STRAY)
def specformer(args: SpecFormerArgs) -> None:
    """Train a SpecFormer: places that see the text, then each other.

    It reads the target's states behind half of its layers, behind all but one and behind all. The target continues
    pieces of the files, half of them greedily, and the drafter learns from these texts. The folder is a drafter for
    this target alone, with a card that says how good it is. A run that was stopped resumes where it stopped.

    \b
        spectune train specformer --target path/to/target --data corpus.jsonl -o my-drafter
    """
    sizes = {"width": args.width, "intermediate": args.intermediate, "published": args.published}
    _train(args, "specformer", depth=args.places, **sizes)


def _train(args: BlockArgs, kind: Kind, **sizes: Any) -> None:  # Any: as the request types them
    from ..training.block import BlockRequest

    train_and_show(args, BlockRequest(**args.request(), kind=kind, **sizes), kind)


@command(ExitArgs, name="exit", basic=BASIC, stray=STRAY)
def exit_(args: ExitArgs) -> None:
    """Train an early exit: the target drafts for itself.

    The target's first layers draft, behind a small network that imitates what the deep layers make of their result.
    The target continues pieces of the files, half of them greedily, and the network learns from these texts. The
    folder is a drafter for this target alone, with a card that says how good it is. A stopped run resumes
    where it stopped.

    \b
        spectune train exit --target path/to/target --data corpus.jsonl -o my-exit --exit-layer 2
    """
    from ..training.exit import ExitRequest

    train_and_show(args, ExitRequest(**args.request(), exit_layer=args.exit_layer, width=args.width), "exit")
