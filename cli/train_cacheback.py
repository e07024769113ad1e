"""`spectune train cacheback`: a table of n-grams, counted in a corpus."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from . import options
from .report import Settings, Table, print_json, print_table, progress, tell
from .train_run import CONTINUED, data_files


@click.command()
@options.target
@data_files("Text that is counted; data files hold texts or conversations. Repeatable.")
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Where to.")
@click.option("--leaders", default=1024, show_default=True, type=click.IntRange(1), help="Leaders in the table.")
@click.option("--followers", default=4, show_default=True, type=click.IntRange(1), help="Followers of each.")
@click.option("--leader-tokens", default=1, show_default=True, type=click.IntRange(1), help="Tokens of a leader.")
@click.option("--follower-tokens", default=3, show_default=True, type=click.IntRange(1), help="Tokens of a follower.")
@options.as_json
@click.pass_obj
def cacheback(
    settings: Settings,
    /,
    target: str,
    files: tuple[Path, ...],
    output: Path,
    as_json: bool,
    **sizes: int,  # of a table
) -> None:
    """Count n-grams for Cacheback's frozen table.

    The file holds what most often followed the most frequent tokens. Plans that are given it may draft from it, and
    carry it with them: whoever decodes needs no file.

    \b
        spectune train cacheback --target path/to/target --data corpus.jsonl -o table.json
        spectune plan --target path/to/target --table table.json
    """
    import numpy as np

    from ..planner.records.frozen_table import frozen_table
    from ..profiler.hub import resolve_model
    from ..runtime.models.loading import load_tokenizer
    from ..training.corpus import read_corpus
    from ..tuning.documents import write_table

    place = resolve_model(target)
    with progress(settings) as report:
        report("reading the texts", 0.0)
        tokenizer = load_tokenizer(str(place))
        corpus = np.concatenate([read_corpus(path, tokenizer).whole for path in files])
        report("counting n-grams", 0.5)
        table = frozen_table(corpus, **sizes)
    write_table(output, table)
    if as_json:
        print_json({"file": str(output), "tokens": len(corpus), "leaders": table.leaders, "followers": table.followers})
        return
    click.echo(f"{table.leaders:,} leaders with up to {table.followers} followers each, out of {len(corpus):,} tokens")
    tell(settings, f"kept in {output}; next: spectune plan --target {target} --table {output}")


@click.command()
@options.target
@data_files(CONTINUED)
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
