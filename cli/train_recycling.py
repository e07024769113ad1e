"""`spectune train recycling`: the target's own likeliest successors as a drafter."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from . import options
from .report import Table, print_json, print_table, progress, tell
from .settings import Settings


@click.command()
@options.target
@click.option(
    "--data",
    "files",
    required=True,
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Text whose pieces the target continues; data files hold texts or conversations. Repeatable.",
)
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The drafter's folder."
)
@click.option("--successors", default=8, show_default=True, type=click.IntRange(1), help="Kept of every token.")
@click.option(
    "--new-tokens", default=224, show_default=True, type=click.IntRange(1), help="Tokens of each continuation."
)
@options.device
@options.dtype
@options.seed
@options.as_json
@click.pass_obj
def recycling(
    settings: Settings,
    /,
    target: str,
    files: tuple[Path, ...],
    output: Path,
    successors: int,
    new_tokens: int,
    device: str,
    dtype: str,
    seed: int,
    as_json: bool,
) -> None:
    """Draft from what the target held likeliest before.

    Token Recycling: behind every token stand the successors that the target held likeliest when that token last stood
    in the text. There are no weights and nothing is learned; the target continues pieces of the files, and accepted
    drafts are counted for the card. The folder is a drafter like any other, for this target alone.

    \b
        spectune train recycling --target path/to/target --data corpus.jsonl -o recycling
        spectune profile --target path/to/target --drafter recycling=recycling
    """
    from ..profiler.device import detect
    from ..profiler.hub import resolve_model
    from ..training.own_text import OwnTextSettings
    from ..training.recycling import RecyclingRequest, make_recycling
    from ..tuning.family import torch_device

    here = detect(device)
    request = RecyclingRequest(
        target=resolve_model(target),
        data=files,
        successors=successors,
        own=OwnTextSettings(new_tokens=new_tokens, seed=seed),
        device=torch_device(here),
        dtype=here.dtype_for(dtype),
    )
    with progress(settings) as report:
        card = make_recycling(request, output, progress=report)
    if as_json:
        print_json(asdict(card) | {"folder": str(output)})
        return
    rows = [(depth, f"{chance:.1%}") for depth, chance in enumerate(card.acceptance, start=1)]
    title = f"{card.successors} successors, {card.tokens_per_round:.2f} tokens a round in chains"
    print_table(Table(title=title, columns=("depth", "accepted"), rows=rows))
    tell(settings, f"kept in {output}; next: spectune profile --target {target} --drafter recycling={output}")
