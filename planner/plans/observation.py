"""What a decoder saw while it ran a plan: the measured side of every promise, added up cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from ...errors import PlanError

LARGEST = 1e15  # count, milliseconds or tokens/s: nothing real is near it, and sums of such stay finite


@dataclass(frozen=True, slots=True, kw_only=True)
class CellObservation:
    """The rounds of one cell, run one way: sums over all of them, and speeds of blocks under the cell's own conditions.

    The sums give shares and tokens a round. They give no speed: their rounds had other batches and contexts too.

    Attributes:
        batch, context: the plan's cell; rounds may have had other batches near it.
        kept: index = tokens that one sequence got in one round, value = how often; what is beyond its end counts last.
        draft_ms, verify_ms, round_ms: added up; the rest of a round is the host's.
        block_tokens_per_s: speeds of whole blocks of rounds at exactly the cell's batch, in its contexts and at the
            plan's temperature: what its promise is about, with times brought to the cell's own context. Older records
            have none of plain rounds beside a plan's, and times as they were.
    """

    batch: int
    context: int
    is_planned: bool  # False for rounds of another way, plain or by another drafter: comparisons, and after a switch
    policy: str  # label of what really ran
    drafter: str | None
    rounds: int
    tokens: int  # of all sequences
    kept: tuple[int, ...]
    draft_ms: float
    verify_ms: float
    round_ms: float
    faults: int = 0  # reported in these rounds
    block_tokens_per_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        counts = (self.rounds, self.tokens, self.faults, *self.kept)
        if self.rounds < 1 or min(counts) < 0 or max(counts) > LARGEST:
            raise PlanError(f"an observed cell needs a round or more and counts of 0 to {LARGEST:g}, got {self}")
        times = (self.draft_ms, self.verify_ms, self.round_ms, *self.block_tokens_per_s)
        if not all(0.0 <= time <= LARGEST for time in times):
            raise PlanError(
                f"observed times and speeds must be finite and 0 to {LARGEST:g}, got {times}; leave out what was not "
                "timed"
            )

    @property
    def host_ms(self) -> float:
        """Time beyond drafting and verifying."""
        return max(self.round_ms - self.draft_ms - self.verify_ms, 0.0)

    @property
    def accepted_at_least(self) -> tuple[int, ...]:
        """Index d - 1 = how often one sequence's draft was accepted down to depth d or further."""
        deeper, found = 0, []
        for count in reversed(self.kept[2:]):
            deeper += count
            found.append(deeper)
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One batch of observations of one stored plan.

    Attributes:
        began, ended: UTC, ISO 8601; see `moment_of`.
    """

    plan_id: int
    device: str  # fingerprint of where it was seen
    dtype: str
    source: str  # how the plan was found, as `Choice.source` says it
    spectune: str
    began: str
    ended: str
    cells: tuple[CellObservation, ...]
    events: tuple[str, ...] = ()  # what was told meanwhile: switches, drift, faults

    def __post_init__(self) -> None:
        if not self.cells:
            raise PlanError("an observation needs a cell in which something ran; write none where nothing did")
        moment_of(self.began)
        moment_of(self.ended)


def moment_of(text: str) -> datetime:
    """Return the moment that a text gives, in UTC, its zone where it names none; PlanError where it gives none."""
    try:
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:  # the latter on the calendar's first and last day
        raise PlanError(f"a moment is ISO 8601, such as 2026-01-31T12:00:00+00:00, got {text[:40]!r}") from error
