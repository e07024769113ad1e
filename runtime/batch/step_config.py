"""How one round runs: its policy, its drafter, its padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.schedule import next_cell
from ...planner.strategies import TreePolicy
from ...planner.strategies.lossy import LossyPolicy
from ...planner.strategies.plain import PlainPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """What a plan sets for one cell of batch x context.

    `run_tokens[n]` is the number of tokens per sequence with which a verify of n really runs: a larger shape can be
    cheaper. Beyond its end there is no padding.
    """

    policy: TreePolicy
    drafter: str | None = None  # name among the decoder's drafters; None: nothing is drafted
    run_tokens: tuple[int, ...] = ()

    def padded(self, tokens: int) -> int:
        """Return the tokens per sequence to feed for a verify of that many."""
        return self.run_tokens[tokens] if tokens < len(self.run_tokens) else tokens

    @property
    def is_lossy(self) -> bool:
        """Whether it may emit tokens that are not the target's own."""
        return isinstance(self.policy, LossyPolicy)

    @property
    def classifier(self) -> str | None:
        """Name of its pivot classifier, if any."""
        return self.policy.classifier.name if self.policy.kind == "lossy-pad" else None

    @property
    def plain(self) -> StepConfig:
        """The same setup without drafts, padded where a larger shape is cheaper."""
        return StepConfig(policy=PlainPolicy(), run_tokens=self.run_tokens[:2])

    @property
    def most_tokens(self) -> int:
        """Most tokens per sequence that one verify can feed."""
        return max(self.policy.max_verify_tokens, *self.run_tokens, 1)


def setup_of(cell: PlanCell) -> StepConfig:
    """Return the setup of a plan's cell."""
    return StepConfig(policy=cell.policy, drafter=cell.drafter, run_tokens=cell.run_tokens)


def plain_setup(cell: PlanCell) -> StepConfig:
    """Return the fastest plain setup of a plan's cell."""
    return setup_of(cell).plain


Schedule = Callable[[int, int], StepConfig]  # (batch, context) -> setup

PLAIN = StepConfig(policy=PlainPolicy())


def draft_room(setups: Sequence[StepConfig], batch: int | None = None) -> int:
    """Return the cache positions that rounds need behind the text; `batch` None, if unknown, may need many more."""
    return 1 + max(max(setup.policy.draft_room(batch), setup.most_tokens) for setup in setups)


def always(setup: StepConfig) -> Schedule:
    """Return the schedule that runs every round alike."""
    return lambda batch, context: setup


AHEAD = 64  # tokens of context for which an answer is looked up at once


class PlannedSchedule:
    """Maps a round to a cell of a plan; it leaves a cell only when another is clearly nearer.

    Invariant: at `_batch` sequences and a context from `_first` to `_last`, the answer is `_cell`. While one cell is
    nearest, the contexts at which a decoder stays in its cell have no gaps, so the two ends decide for all between.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cell: PlanCell | None = None
        self._batch = self._first = self._last = 0

    def __call__(self, batch: int, context: int) -> PlanCell:
        """Return the cell of a round of so many sequences behind so many tokens."""
        if self._cell is not None and batch == self._batch and self._first <= context <= self._last:
            return self._cell
        cell = next_cell(self._plan, self._cell, batch, context)
        stays = self._stays(cell, batch, context)
        self._cell, self._batch = cell, batch
        self._first, self._last = context, context + AHEAD if stays else context
        return cell

    def _stays(self, cell: PlanCell, batch: int, context: int) -> bool:
        is_one_nearest = self._plan.cell(batch, context) is self._plan.cell(batch, context + AHEAD)
        return is_one_nearest and next_cell(self._plan, cell, batch, context + AHEAD) is cell
