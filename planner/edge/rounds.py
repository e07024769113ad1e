"""The rounds of a device along the recorded texts: what it drafts, what of it stands, and whether it guessed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..records.draft import Bools, Ints
from ..records.recording import Recording
from ..strategies.base import results_of

if TYPE_CHECKING:
    from ..strategies.confident_chain import ConfidentChainPolicy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeRounds:
    """All rounds of one way of drafting along all texts, one text behind the other.

    A round `goes_on` where all of its chain is accepted and the drafter's next guess is the token behind it: then what
    was drafted ahead begins the next chain.
    """

    drafted: Ints  # (rounds,), tokens of the chain that is sent
    kept: Ints  # (rounds,), tokens that the text grows by: those accepted and one of the target's own
    goes_on: Bools  # (rounds,)
    starts: Ints  # (texts,), the first round of each
    censored: float = 0.0  # share of the rounds whose chain runs beyond the recording


def edge_rounds(chain: ConfidentChainPolicy, recording: Recording) -> EdgeRounds:
    """Return a chain's rounds as a device runs them; the recorded drafter reads the text alone, like a device's."""
    results, rows = results_of(chain, recording), recording.rows
    found, starts = list[int](), list[int]()
    for row in rows.starts.tolist():
        starts.append(len(found))
        while rows.left[row]:
            found.append(row)
            row += min(int(results.accepted[row]) + 1, int(rows.left[row]))
    at = np.array(found, dtype=np.int64)
    sent = np.minimum(results.sizes[at], rows.left[at]) - 1  # the target adds the last token of a text by itself
    kept = np.minimum(results.accepted[at] + 1, rows.left[at])
    is_whole = (sent > 0) & (kept == sent + 1)
    return EdgeRounds(
        drafted=sent,
        kept=kept,
        goes_on=is_whole & (recording.next_rank[at + sent] == 0),
        starts=np.array(starts, dtype=np.int64),
        censored=float(results.censored[at].mean()),
    )
