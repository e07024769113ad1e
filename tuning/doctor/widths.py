"""The widths of a head beside its target's, matrices that lie the other way around, and whose embeddings it reads."""

from __future__ import annotations

from collections.abc import Iterator

from ...runtime.models.head_tensors import head_tensors
from .finding import DrafterFinding
from .pair import Pair

EMBEDDING = "embed_tokens.weight"


def check_widths(pair: Pair) -> Iterator[DrafterFinding]:
    """Yield the widths of target and drafter, and whether embeddings are tied."""
    if pair.role == "draft":
        own, target = int(pair.drafter_config.hidden_size), int(pair.target_config.hidden_size)
        tied = "tied embeddings" if pair.drafter_config.tie_word_embeddings else "a head apart from its embeddings"
        yield DrafterFinding(check="widths", seen=f"hidden size {own}, the target's {target}; {tied}")
    elif pair.role == "head":
        yield from _of_head(pair)


def _of_head(pair: Pair) -> Iterator[DrafterFinding]:
    own, target = int(pair.head.config.hidden_size), pair.sizes.hidden
    if own != target:
        yield DrafterFinding(
            check="widths",
            seen=f"hidden size {own}, and the target's states have {target} numbers",
            severity="broken",
            advice="give the head of this target: its name usually holds the target's size",
        )
        return
    needed, optional = head_tensors(pair.head, pair.sizes)
    turned = [
        name
        for name, shape in {**needed, **optional}.items()
        if name in pair.stored and pair.stored[name].shape == shape[::-1] != shape
    ]
    if turned:
        rows, columns = pair.stored[turned[0]].shape
        yield DrafterFinding(
            check="transposed",
            seen=f"{turned[0]} is {rows} x {columns} where {columns} x {rows} belong: it is transposed",
            severity="broken",
            advice="save it as torch.nn.Linear holds it, (output, input)",
        )
    whose = "a table of its own" if EMBEDDING in pair.stored else "the target's"
    yield DrafterFinding(check="widths", seen=f"hidden size {own} as the target's; embeddings: {whose}")
