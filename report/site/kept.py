"""Whether a plan keeps its promises: every cell beside what validations and decoders measured of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...planner.plans.observation import CellObservation, Observation
from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.promised import is_promised, own_observations
from ...planner.plans.validation import Validation, ValidationRow
from ...runtime.watch.drift import PromiseTest
from ...runtime.watch.options import WatchOptions

Verdict = Literal["kept", "below", "above", "slower", "faster", "unseen"]
VERDICT_WORDS: Mapping[Verdict, str] = {
    "kept": "as promised",
    "below": "below its interval",
    "above": "above its interval",
    "slower": "drifted, slower",
    "faster": "drifted, faster",
    "unseen": "not measured yet",
}
VERDICT_SIGNS: Mapping[Verdict, str] = {  # as `words.SIGNS` calls them
    "kept": "good",
    "below": "open",
    "above": "open",
    "slower": "warning",
    "faster": "warning",
    "unseen": "open",
}
DRIFTED: tuple[Verdict, ...] = ("slower", "faster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of a cell in one batch of observations; speeds in tokens/s of all sequences."""

    began: str  # UTC, ISO 8601
    rounds: int
    speeds: tuple[float, ...]  # of whole blocks under the conditions that the cell promises something about

    @property
    def speed(self) -> float | None:
        """Median of the blocks; None where no block was whole."""
        return statistics.median(self.speeds) if self.speeds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCell:
    """One cell of a plan, what became of its promise, and what that means.

    Attributes:
        seen: by decoders where and as the plan promises, in order of time.
        plain_blocks: speeds of blocks that decoders ran plainly under the same conditions, tokens/s.
        tokens_per_round: of one sequence, in all rounds that decoders ran as planned, else the middle of validations;
            None where nobody counted.
        validated: when it was measured beside plain decoding, oldest first.
        verdict: "slower" and "faster" are drift, found by the test that decoders use; "below" and "above" is a
            measured speed outside the interval, which may be chance.
    """

    cell: PlanCell
    seen: tuple[Seen, ...]
    plain_blocks: tuple[float, ...]
    tokens_per_round: float | None
    validated: tuple[ValidationRow, ...]
    faults: int
    verdict: Verdict

    @property
    def blocks(self) -> tuple[float, ...]:
        """Speeds of all blocks in order of time, tokens/s."""
        return tuple(speed for each in self.seen for speed in each.speeds)

    @property
    def measured_speed(self) -> float | None:
        """Median of the blocks that decoders saw, else of what validations measured; tokens/s."""
        if self.blocks:
            return statistics.median(self.blocks)
        rows = [row.measured_tokens_per_s for row in self.validated]
        return statistics.median(rows) if rows else None

    @property
    def measured_speedup(self) -> float | None:
        """Measured speed over plain decoding, both from the same source; None where either was not measured."""
        if self.blocks:
            return statistics.median(self.blocks) / statistics.median(self.plain_blocks) if self.plain_blocks else None
        rows = [row.speedup for row in self.validated]
        return statistics.median(rows) if rows else None


def kept_cells(plan: Plan, validations: Sequence[Validation], observations: Sequence[Observation]) -> list[KeptCell]:
    """Return every cell of a plan beside what was measured of it; observations made elsewhere are left out."""
    rate = WatchOptions().false_alarms / len(plan.cells)
    own = own_observations(plan, observations)
    return [_kept(cell, validations, own, rate) for cell in plan.cells]


def _kept(
    cell: PlanCell, validations: Sequence[Validation], observations: Sequence[Observation], rate: float
) -> KeptCell:
    rows = [row for each in validations for row in each.rows if (row.batch, row.context) == (cell.batch, cell.context)]
    own = [(each, part) for each in observations for part in each.cells if _is_of(part, cell)]
    planned = [(each, part) for each, part in own if is_promised(part, cell)]
    seen = tuple(Seen(began=each.began, rounds=part.rounds, speeds=part.block_tokens_per_s) for each, part in planned)
    blocks = [speed for each in seen for speed in each.speeds]
    return KeptCell(
        cell=cell,
        seen=seen,
        plain_blocks=tuple(
            speed for _, part in own if not part.is_planned for speed in part.block_tokens_per_s if speed > 0.0
        ),
        tokens_per_round=_tokens_per_round([part for _, part in planned], rows),
        validated=tuple(rows),
        faults=sum(part.faults for _, part in own),
        verdict=_verdict(cell, blocks, rows, rate),
    )


def _tokens_per_round(parts: Sequence[CellObservation], rows: Sequence[ValidationRow]) -> float | None:
    if shares := sum(sum(part.kept) for part in parts):  # of sequences in rounds
        return sum(part.tokens for part in parts) / shares
    counted = [row.tokens_per_round for row in rows if row.tokens_per_round is not None]
    return statistics.median(counted) if counted else None


def _is_of(part: CellObservation, cell: PlanCell) -> bool:
    return (part.batch, part.context) == (cell.batch, cell.context)


def _verdict(cell: PlanCell, blocks: Sequence[float], rows: Sequence[ValidationRow], rate: float) -> Verdict:
    promise = cell.prediction
    test = PromiseTest(promise.low, promise.high, rate)
    for speed in blocks:
        test.add(speed)
    if test.found is not None:
        return test.found
    measured = blocks or [row.measured_tokens_per_s for row in rows]
    if not measured:
        return "unseen"
    middle = statistics.median(measured)
    return "below" if middle < promise.low else "above" if middle > promise.high else "kept"
