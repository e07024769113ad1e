"""`spectune train cacheback`: a table of n-grams, counted in a corpus."""

from __future__ import annotations

from pathlib import Path

import click

from . import options
from .report import print_json, progress, tell
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
    help="Text that is counted; data files hold texts or conversations. Repeatable.",
)
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
    leaders: int,
    followers: int,
    leader_tokens: int,
    follower_tokens: int,
    as_json: bool,
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
    from ..tuning.tables import write_table

    place = resolve_model(target)
    with progress(settings) as report:
        report("reading the texts", 0.0)
        tokenizer = load_tokenizer(str(place))
        corpus = np.concatenate([read_corpus(path, tokenizer).whole for path in files])
        report("counting n-grams", 0.5)
        table = frozen_table(
            corpus,
            leader_tokens=leader_tokens,
            follower_tokens=follower_tokens,
            leaders=leaders,
            followers=followers,
        )
    write_table(output, table)
    if as_json:
        print_json({"file": str(output), "tokens": len(corpus), "leaders": table.leaders, "followers": table.followers})
        return
    click.echo(f"{table.leaders:,} leaders with up to {table.followers} followers each, out of {len(corpus):,} tokens")
    tell(settings, f"kept in {output}; next: spectune plan --target {target} --table {output}")
