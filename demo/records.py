"""What one demo shows, as records: the rows people compare and the cells that are judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    """One way of decoding at one batch size; what does not apply to it is None."""

    batch: int
    name: str
    policy: str | None
    drafters: tuple[str, ...]
    predicted_tokens_per_s: float | None
    measured_tokens_per_s: float
    tokens_per_round: float | None  # counted in fp32, steady state
    near_ties: int | None  # emitted tokens that fp32 forwards of other shapes might order differently
    replayed_tokens_per_round: float | None  # from a trace of the measured prompts, same slots


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutcome:
    """One cell: what was chosen and how it fared."""

    batch: int
    chosen: str
    measured_tokens_per_s: float
    speedup_over_plain: float
    speedup_over_generate: float
    prediction_error: float  # |predicted / measured - 1| of the chosen row
    interval: tuple[float, float]  # the plan's 90 % interval of tokens/s
    is_covered: bool  # whether the measurement lies in it
    predicted_tokens_per_round: float
    tokens_per_round: float  # of the measured prompts: more than predicted where they are easier to draft


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """Everything the demo measured."""

    device: str
    rows: tuple[DemoRow, ...]
    cells: tuple[CellOutcome, ...]
    greedy_identical: bool
    seconds: float
