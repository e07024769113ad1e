"""`spectune train`: drafters that learn from a target."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options
from .report import Table, print_json, print_table, progress, tell
from .settings import Settings

if TYPE_CHECKING:
    from ..training.head_files import HeadCard

FORMS = {"1": "eagle", "2": "eagle", "3": "eagle3"}  # what --form says; 1 and 2 differ in their trees alone


@click.group(name="train")
def train() -> None:
    """Train a drafter on a target of yours.

    Each kind of drafter is a command of its own.

    \b
        spectune train eagle --target path/to/target --data corpus.jsonl -o my-head
    """


@train.command()
@options.target
@click.option(
    "--data",
    "files",
    required=True,
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Text whose pieces the target continues; .jsonl has one text per line. Repeatable.",
)
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The head's folder."
)
@click.option("--form", default="3", show_default=True, type=click.Choice([*FORMS]), help="Of EAGLE.")
@click.option("--steps", default=1000, show_default=True, type=click.IntRange(1), help="Updates of the weights.")
@click.option("--batch", default=16, show_default=True, type=click.IntRange(1), help="Pieces of text per step.")
@click.option("--piece", default=256, show_default=True, type=click.IntRange(4), help="Tokens of a piece.")
@click.option("--texts", default=2048, show_default=True, type=click.IntRange(1), help="Texts the target writes.")
@click.option("--new-tokens", default=224, show_default=True, type=click.IntRange(1), help="Tokens of each of them.")
@click.option("--test-steps", default=7, show_default=True, type=click.IntRange(1), help="Of the training-time test.")
@click.option(
    "--draft-vocabulary",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="Tokens form 3 can draft; a quarter of all unless given.",
)
@click.option(
    "--intermediate",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="Width of the MLP; else the target's.",
)
@options.device
@options.dtype
@options.seed
@click.option("--fresh", is_flag=True, help="Begin anew what an earlier run left unfinished.")
@options.as_json
@click.pass_obj
def eagle(
    settings: Settings,
    /,
    target: Path,
    files: tuple[Path, ...],
    output: Path,
    form: str,
    steps: int,
    batch: int,
    piece: int,
    texts: int,
    new_tokens: int,
    test_steps: int,
    draft_vocabulary: int,
    intermediate: int,
    device: str,
    dtype: str,
    seed: int,
    fresh: bool,
    as_json: bool,
) -> None:
    """Train a head that drafts from the target's hidden states.

    The target continues pieces of the files, half of them greedily, and the head learns from these texts. The folder
    is a drafter like any other afterwards, for this target alone, with a card that says how good it is. A run that was
    stopped goes on where it stopped.

    \b
        spectune train eagle --target path/to/target --data corpus.jsonl -o my-head
        spectune train eagle --target path/to/target --data book.txt -o my-head --form 1 --steps 500
    """
    from ..profiler.device import detect
    from ..training.eagle import EagleRequest, train_eagle
    from ..training.own_text import OwnTextSettings
    from ..training.settings import TrainingSettings
    from ..tuning.family import torch_device

    here = detect(device)
    request = EagleRequest(
        target=target,
        data=files,
        form="eagle3" if FORMS[form] == "eagle3" else "eagle",
        settings=TrainingSettings(steps=steps, batch=batch, sequence_tokens=piece, seed=seed),
        own=OwnTextSettings(texts=texts, new_tokens=new_tokens, seed=seed),
        test_steps=test_steps,
        draft_vocabulary=draft_vocabulary,
        intermediate=intermediate,
        device=torch_device(here),
        dtype=here.dtype_for(dtype),
    )
    with progress(settings) as report:
        card = train_eagle(request, output, fresh=fresh, progress=report)
    if as_json:
        print_json(asdict(card) | {"folder": str(output)})
        return
    _print(card)
    tell(settings, f"kept in {output}; next: spectune profile --target {target} --drafter head={output}")


def _print(card: HeadCard) -> None:
    rows = [(depth, f"{chance:.1%}") for depth, chance in enumerate(card.acceptance, start=1)]
    title = f"{card.parameters:,} parameters, {card.tokens_per_round:.2f} tokens a round in chains"
    print_table(Table(title=title, columns=("depth", "accepted"), rows=rows))
