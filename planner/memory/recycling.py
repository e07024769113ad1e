"""What Token Recycling takes of memory: rows of successors beside a text's tokens, and no weights.

Every number is alive at the named moment of `runtime/models/recycling.py`; k is the successors of a token.
"""

from __future__ import annotations

from ...profiler.records.architecture import Architecture, bytes_of
from ..records.beside import Beside, LookedUp
from ..records.footprint import Footprint

PIECE_TOKENS = 64  # whose logits are held at once: as runtime/models/recycled.py
ID_BYTES = 8  # of a token's id, or of a place in a text
SCORE_BYTES = 4  # of a log-probability
CHOSEN = (
    4 * ID_BYTES + SCORE_BYTES
)  # of a successor while the best are put in order: two orders, its ids twice, a score
SOUGHT = 1 + 2 * ID_BYTES  # of a node and a place of the text: whether it stands there, the place, and that once more


def recycling_footprint(target: Architecture, successors: int, dtype: str) -> Footprint:
    """Return what a target's successors take, without its hidden states; ModelError for an unknown format."""
    size, kept = bytes_of(dtype), min(successors, target.vocabulary)
    copied = 0 if size == SCORE_BYTES else size  # logits in the target's format, until they are scores
    looked_up = LookedUp(
        piece_tokens=PIECE_TOKENS,
        logit_bytes=target.vocabulary * max(copied + SCORE_BYTES, 2 * SCORE_BYTES) + kept * CHOSEN,
        row_bytes=size * target.hidden,
        kept_bytes=kept * (ID_BYTES + SCORE_BYTES),
        found_bytes=2 * kept * (ID_BYTES + SCORE_BYTES),
    )
    return Footprint(
        weight_bytes=0,
        kv_bytes_per_token=ID_BYTES + kept * (ID_BYTES + SCORE_BYTES),
        vocabulary=target.vocabulary,
        number_bytes=size,
        beside=Beside(sight_bytes=SOUGHT, looked_up=looked_up),
    )
