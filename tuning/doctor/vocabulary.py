"""Which tokens a drafter knows of its target's: sizes, numbers that differ, and tables of draft vocabularies."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...runtime.models.head_tensors import CAN_DRAFT, DRAFTED, stored_tables
from ...runtime.models.vocabulary import added_tokens, numbered_tokens, tokens_apart
from .finding import DrafterFinding
from .pair import Pair

SHOWN = 5  # tokens
ONE_VOCABULARY = "give a drafter with the target's tokenizer; a server may translate: spectune tune -- COMMAND"


def check_vocabulary(pair: Pair) -> Iterator[DrafterFinding]:
    """Yield sizes and differences of the vocabularies, and whether they matter."""
    if pair.role == "draft":
        yield from _of_model(pair)
    elif pair.role == "head" and pair.head.form == "eagle3":
        yield from _of_head(pair)


def _of_model(pair: Pair) -> Iterator[DrafterFinding]:
    rows, target_rows = int(pair.drafter_config.vocab_size), int(pair.target_config.vocab_size)
    sizes = f"{rows:,} rows, the target's {target_rows:,}"
    if pair.tokenizers is None:
        is_equal = rows == target_rows
        yield DrafterFinding(
            check="vocabulary",
            seen=f"{sizes}; without both tokenizers only sizes are compared",
            severity="ok" if is_equal else "broken",
            advice="" if is_equal else ONE_VOCABULARY,
        )
        return
    numbered, drafted = numbered_tokens(str(pair.target)), numbered_tokens(str(pair.drafter))
    apart = tokens_apart(numbered, drafted)
    if not apart:
        padding = "" if rows == target_rows else "; the rest of the rows is padding, which does not matter"
        yield DrafterFinding(check="vocabulary", seen=f"{sizes}, {len(numbered):,} tokens numbered alike{padding}")
        return
    added = added_tokens(str(pair.target)) | added_tokens(str(pair.drafter))
    special = sum(text in added for text in apart)
    shown = ", ".join(map(repr, apart[:SHOWN]))
    yield DrafterFinding(
        check="vocabulary",
        seen=f"{sizes}; {len(apart):,} tokens differ, {special:,} of them added ones: {shown}",
        severity="broken",
        advice=ONE_VOCABULARY,
    )


def _of_head(pair: Pair) -> Iterator[DrafterFinding]:
    tables = stored_tables(pair.drafter)
    target = pair.sizes.vocabulary
    drafted = pair.written.get("draft_vocab_size") or (len(tables[DRAFTED]) if DRAFTED in tables else target)
    if DRAFTED not in tables:
        is_all = drafted == target
        yield DrafterFinding(
            check="vocabulary",
            seen=f"drafts {drafted:,} of {target:,} tokens" + ("" if is_all else f", and no {DRAFTED} says which"),
            severity="ok" if is_all else "broken",
            advice="" if is_all else f"copy the head again with its tensor {DRAFTED}, offsets from draft ids to tokens",
        )
        return
    if _holds_ids(tables, target):
        yield DrafterFinding(
            check="vocabulary",
            seen=f"{DRAFTED} holds ids of tokens where offsets from draft ids belong",
            severity="broken",
            advice=f"save {DRAFTED} - torch.arange(len({DRAFTED}))",
        )
        return
    share = f"drafts {drafted:,} of {target:,} tokens; the others are never drafted"
    yield DrafterFinding(check="vocabulary", seen=share)


def _holds_ids(tables: dict[str, Tensor], target: int) -> bool:
    """Return whether a table of offsets holds the ids themselves: they ascend, and t2d names them where it is there."""
    said = tables[DRAFTED].long()
    places = torch.arange(len(said))
    if not len(said) or int(said.min()) < 0 or int(said.max()) >= target or not bool((said.diff() > 0).all()):
        return False
    if CAN_DRAFT in tables:
        return torch.equal(tables[CAN_DRAFT].bool().nonzero().flatten(), said)
    return int((said + places).max()) >= target
