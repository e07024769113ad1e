"""What became of a plan's promise: predicted and measured speed, side by side, and what sets them apart.

The texts, of which a draft has more or fewer tokens accepted than of those recorded; the machine's pace since the
profile; and the rounds, whose time is not the plan's sum. Only the last is the plan's fault:

    measured / predicted = (tokens kept a round, measured / predicted) * (pace) * (rest)
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PlanError
from ...profiler.records.wire import to_json
from .observation import LARGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRow:
    """One cell: what was promised and what was measured; tokens/s of all sequences together, above 0.

    Attributes:
        at_context: the context of the texts, at which the prediction is: see `Plan.at_context`; None: the cell's.
        machine_speed: the machine's pace while this was measured over its pace when it was profiled, by forwards
            of the plan's own sizes; None where it was not gauged.
        tokens_per_round: per sequence, measured; None, like the predicted ones, where they were not counted.
    """

    batch: int
    context: int
    policy: str
    drafter: str | None
    predicted_tokens_per_s: float
    interval: tuple[float, float]
    measured_tokens_per_s: float
    plain_tokens_per_s: float
    machine_speed: float | None = None
    predicted_tokens_per_round: float | None = None  # per sequence, optimism taken off as it is of the speed
    tokens_per_round: float | None = None
    at_context: int | None = None

    def __post_init__(self) -> None:
        speeds = (self.predicted_tokens_per_s, self.measured_tokens_per_s, self.plain_tokens_per_s)
        if not all(1.0 / LARGEST <= speed <= LARGEST for speed in speeds):
            raise PlanError(
                f"predicted, measured and plain speed must be finite and above 0, got {speeds}; validate the plan again"
            )
        low, high = self.interval
        if not 0.0 <= low <= high <= LARGEST:
            raise PlanError(f"a promised interval needs 0 <= low <= high, finite, got {low} and {high}; correct it")
        pace = self.machine_speed
        if pace is not None and not 1.0 / LARGEST <= pace <= LARGEST:
            raise PlanError(f"a machine's pace is finite and above 0, got {pace}; leave it out where it was not gauged")
        kept = (self.predicted_tokens_per_round, self.tokens_per_round)
        if not all(each is None or 1.0 / LARGEST <= each <= LARGEST for each in kept):
            raise PlanError(
                f"tokens a round are finite and above 0, got {kept}; leave them out where nothing was counted"
            )

    @property
    def error(self) -> float:
        """|predicted / measured - 1|."""
        return abs(self.predicted_tokens_per_s / self.measured_tokens_per_s - 1.0)

    @property
    def error_at_pace(self) -> float | None:
        """The error of the promise at the machine's present pace: what the plan itself has wrong."""
        if self.machine_speed is None:
            return None
        return abs(self.predicted_tokens_per_s * self.machine_speed / self.measured_tokens_per_s - 1.0)

    @property
    def by_texts(self) -> float | None:
        """Tokens per round over those predicted: above 1 these texts are easier to draft than the recorded ones."""
        if self.tokens_per_round is None or self.predicted_tokens_per_round is None:
            return None
        return self.tokens_per_round / self.predicted_tokens_per_round

    @property
    def by_rounds(self) -> float | None:
        """Measured over predicted speed that neither texts nor the machine's pace explain: what the plan has wrong."""
        if self.by_texts is None or self.machine_speed is None:
            return None
        return self.measured_tokens_per_s / self.predicted_tokens_per_s / self.by_texts / self.machine_speed

    @property
    def speedup(self) -> float:
        """Measured, over plain decoding of the same run."""
        return self.measured_tokens_per_s / self.plain_tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """All measured cells of one plan."""

    plan_id: int | None  # beside which it is kept; None of a plan that lies in no store, or is for another device
    rows: tuple[ValidationRow, ...]


def validation_to_json(validation: Validation) -> str:
    """Return the stored document; a cell without `at_context` is written as before that field was there."""
    rows = {i: {"at_context"} for i, row in enumerate(validation.rows) if row.at_context is None}
    return to_json(validation, without={"rows": rows} if rows else None)
