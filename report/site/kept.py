"""Whether a plan keeps its promises: every cell beside what validations and decoders measured of it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...planner.plans.observation import CellObservation, Observation
from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.promised import is_promised, own_observations
from ...planner.plans.validation import Validation, ValidationRow
from ...runtime.watch.drift import direction_of
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
Part = tuple[Observation, CellObservation]  # what was seen of one cell, and the observation it stands in


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpeeds:
    """What was seen of a cell in one batch of observations; speeds in tokens/s of all sequences."""

    began: str  # UTC, ISO 8601
    rounds: int
    speeds: tuple[float, ...]  # of whole blocks under the conditions that the cell promises something about

    @property
    def speed(self) -> float | None:
        """Median of the blocks; None where no block was whole."""
        return _middle(self.speeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCell:
    """One cell of a plan, what became of its promise, and what that means.

    Attributes:
        measured_speedup: of blocks over plain blocks under the same conditions, else of validations, or None.
        tokens_per_round: of one sequence, in all rounds that decoders ran as planned, else of validations, or None.
    """

    cell: PlanCell
    seen: tuple[CellSpeeds, ...]  # by decoders where and as the plan promises, in order of time
    blocks: tuple[float, ...]  # speeds of all their blocks in order of time, tokens/s
    measured_speed: float | None  # median of these, else of validations, tokens/s; None without either
    measured_speedup: float | None
    tokens_per_round: float | None
    validated: tuple[ValidationRow, ...]  # when it was measured beside plain decoding, oldest first
    faults: int
    verdict: Verdict  # "slower" and "faster" are drift by the decoders' test; "below" and "above" may be chance


def kept_cells(plan: Plan, validations: Sequence[Validation], observations: Sequence[Observation]) -> list[KeptCell]:
    """Return every cell of a plan beside what was measured of it; observations made elsewhere are left out."""
    rate = WatchOptions().false_alarms / len(plan.cells)
    parts: defaultdict[tuple[int, int], list[Part]] = defaultdict(list)
    for each in own_observations(plan, observations):
        for part in each.cells:
            parts[part.batch, part.context].append((each, part))
    return [_kept(cell, validations, parts[cell.batch, cell.context], rate) for cell in plan.cells]


def _kept(cell: PlanCell, validations: Sequence[Validation], own: Sequence[Part], rate: float) -> KeptCell:
    rows = [row for each in validations for row in each.rows if (row.batch, row.context) == (cell.batch, cell.context)]
    planned = [(each, part) for each, part in own if is_promised(part, cell)]
    seen = tuple(
        CellSpeeds(began=each.began, rounds=part.rounds, speeds=part.block_tokens_per_s) for each, part in planned
    )
    blocks = tuple(speed for each in seen for speed in each.speeds)
    plain = [speed for _, part in own if _is_plain(part) for speed in part.block_tokens_per_s if speed > 0.0]
    speed = _middle(blocks or [row.measured_tokens_per_s for row in rows])
    return KeptCell(
        cell=cell,
        seen=seen,
        blocks=blocks,
        measured_speed=speed,
        measured_speedup=_speedup(speed, plain) if blocks else _middle([row.speedup for row in rows]),
        tokens_per_round=_tokens_per_round([part for _, part in planned], rows),
        validated=tuple(rows),
        faults=sum(part.faults for _, part in own),
        verdict=_verdict(cell, blocks, speed, rate),
    )


def _middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _speedup(speed: float | None, plain_blocks: Sequence[float]) -> float | None:
    plain = _middle(plain_blocks)
    return None if speed is None or plain is None else speed / plain


def _tokens_per_round(parts: Sequence[CellObservation], rows: Sequence[ValidationRow]) -> float | None:
    if shares := sum(sum(part.kept) for part in parts):  # of sequences in rounds
        return sum(part.tokens for part in parts) / shares
    return _middle([row.tokens_per_round for row in rows if row.tokens_per_round is not None])


def _is_plain(part: CellObservation) -> bool:
    """Return whether these are plain rounds beside the planned ones; others are of a rival that drafts."""
    return not part.is_planned and part.drafter is None


def _verdict(cell: PlanCell, blocks: Sequence[float], speed: float | None, rate: float) -> Verdict:
    promise = cell.prediction
    found = direction_of(blocks, promise.low, promise.high, rate)
    if found is not None:
        return found
    if speed is None:
        return "unseen"
    return "below" if speed < promise.low else "above" if speed > promise.high else "kept"
