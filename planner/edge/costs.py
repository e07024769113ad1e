"""What the server's forwards cost, by how many drafts they verify and how long these are."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ...profiler.records.host_line import PLAIN
from ..inputs import PlanInputs
from ..pricing.fed import drafted_tokens, nearest_context
from ..pricing.table import cost_table
from ..records.draft import Bools, Ints
from ..records.recording import Recording
from ..strategies.base import results_of

if TYPE_CHECKING:
    from ..strategies.confident_chain import ConfidentChainPolicy


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerCosts:
    """Milliseconds of one round of the server, the host's work included.

    Rows are drafts verified together, columns tokens of the longest, its root included; row 0 and column 0 are 0.
    """

    ms: Floats  # (rows + 1, tokens + 1)

    @property
    def most_rows(self) -> int:
        """Most drafts at once that were priced."""
        return len(self.ms) - 1

    @property
    def most_tokens(self) -> int:
        """Most tokens of a draft, its root included, that were priced."""
        return int(self.ms.shape[1]) - 1


def server_batches(inputs: PlanInputs) -> tuple[int, ...]:
    """Return the batch sizes whose whole rounds were timed, smallest first; PlanError where only forwards were."""
    known = tuple(batch for batch in inputs.verify.batches if batch in inputs.overhead.timed_batches)
    if not known:
        raise PlanError("no rounds were timed at the batches whose forwards were; run: spectune profile")
    return known


def server_costs(inputs: PlanInputs, *, most_rows: int, context: int) -> ServerCosts:
    """Return what rounds cost that verify 1 .. most_rows drafts behind `context` tokens.

    It is linear between measured batches, and constant below the smallest: that forward can run with unused rows. The
    server of `inputs` drafts nothing: its rounds take the time of plain rounds, and of each token of a draft.
    PlanError: no batch whose rounds were timed holds so many drafts.
    """
    measured = server_batches(inputs)
    if measured[-1] < most_rows:
        raise PlanError(
            f"rounds of {most_rows} sequences were not timed, at most {measured[-1]}; profile larger batches with "
            "--batch"
        )
    known = measured[: bisect_left(measured, most_rows) + 1]
    rows = [_row(inputs, batch, context) for batch in known]
    most = min(map(len, rows))
    table = np.array([row[:most] for row in rows])
    counts = np.arange(1, most_rows + 1)
    found = np.stack([np.interp(counts, known, table[:, tokens]) for tokens in range(most)], axis=1)
    return ServerCosts(ms=np.vstack([np.zeros((1, most)), found]))


def _row(inputs: PlanInputs, batch: int, context: int) -> Floats:
    """Return (tokens + 1,) milliseconds of rounds of one measured batch; a server pads no forward."""
    at = nearest_context(inputs.verify, batch, context)
    fed = drafted_tokens(inputs.verify, batch, at)
    host = inputs.overhead.lines(batch)[PLAIN]
    verify = cost_table(inputs.verify, batch, at, fed).row(float(at))
    whole: Floats = verify + host.round_ms + host.node_ms * np.arange(len(fed))
    whole[0] = 0.0
    return whole


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
