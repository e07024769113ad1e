"""`spectune train cacheback` and `recycling`: tables that are counted, not learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import options
from .command import command
from .option import whole
from .report import print_facts, progress, tell
from .train_run import DrafterArgs, data, placed, show_card


@dataclass(frozen=True, kw_only=True)
class CachebackArgs(DrafterArgs):
    """What was typed."""

    files: tuple[Path, ...] = data.but(help="Text that is counted; data files hold texts or conversations. Repeatable.")
    output: Path = options.folder.but(metavar="FILE", help="Where to.")
    leaders: int = whole("Leaders in the table.", default=1024)
    followers: int = whole("Followers of each.", default=4)
    leader_tokens: int = whole("Tokens of a leader.", default=1)
    follower_tokens: int = whole("Tokens of a follower.", default=3)
    as_json: bool = options.as_json


@command(CachebackArgs)
def cacheback(args: CachebackArgs) -> None:
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
    from ..training.prompts import read_corpus
    from ..tuning.documents import write_table

    place = resolve_model(args.target)
    with progress(args.settings) as report:
        report("reading the texts", 0.0)
        tokenizer = load_tokenizer(str(place))
        corpus = np.concatenate([read_corpus(path, tokenizer).whole for path in args.files])
        report("counting n-grams", 0.5)
        table = frozen_table(
            corpus,
            leaders=args.leaders,
            followers=args.followers,
            leader_tokens=args.leader_tokens,
            follower_tokens=args.follower_tokens,
        )
    write_table(args.output, table)
    sizes = {"tokens": len(corpus), "leaders": table.leaders, "followers": table.followers}
    words = f"{table.leaders:,} leaders with up to {table.followers} followers each, out of {len(corpus):,} tokens"
    print_facts({"file": str(args.output), **sizes}, [words], as_json=args.as_json)
    if not args.as_json:
        following = f"spectune plan --target {args.target} --table {args.output}"
        tell(args.settings, f"kept in {args.output}; next: {following}")


@dataclass(frozen=True, kw_only=True)
class RecyclingArgs(DrafterArgs):
    """What was typed."""

    successors: int = whole("Kept of every token.", default=8)
    new_tokens: int = whole("Tokens of each continuation.", default=224)
    device: str = options.device
    dtype: str = options.dtype
    seed: int = options.seed
    as_json: bool = options.as_json


@command(RecyclingArgs)
def recycling(args: RecyclingArgs) -> None:
    """Draft from what the target held likeliest before.

    Token Recycling: behind every token stand the successors that the target held likeliest when that token last stood
    in the text. There are no weights and nothing is learned; the target continues pieces of the files, and accepted
    drafts are counted for the card. The folder is a drafter like any other, for this target alone.

    \b
        spectune train recycling --target path/to/target --data corpus.jsonl -o recycling
        spectune profile --target path/to/target --drafter recycling=recycling
    """
    from ..profiler.hub import resolve_model
    from ..training.own_text import OwnTextSettings
    from ..training.recycling import RecyclingRequest, make_recycling

    request = RecyclingRequest(
        target=resolve_model(args.target),
        data=args.files,
        successors=args.successors,
        own=OwnTextSettings(new_tokens=args.new_tokens, seed=args.seed),
        **placed(args.device, args.dtype),
    )
    with progress(args.settings) as report:
        card = make_recycling(request, args.output, progress=report)
    show_card(args, card, f"{card.successors} successors", "recycling", as_json=args.as_json)
