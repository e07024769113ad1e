"""How one round is run: which policy, which drafter, padded to which shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..planner.plans.plan import PlanCell
from ..planner.strategies import TreePolicy
from ..planner.strategies.lossy import LossyPolicy
from ..planner.strategies.plain import PlainPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSetup:
    """What a plan says about one cell of batch x context.

    `run_tokens[n]` is the number of tokens per sequence that a verify of n really runs with:
    a larger shape can be cheaper. Beyond its end, and where it is empty, nothing is padded.
    """

    policy: TreePolicy
    drafter: str | None = None  # name among the decoder's drafters; None: nothing is drafted
    run_tokens: tuple[int, ...] = ()

    def padded(self, tokens: int) -> int:
        """Return the tokens per sequence to feed for a verify of that many."""
        return self.run_tokens[tokens] if tokens < len(self.run_tokens) else tokens

    @property
    def is_lossy(self) -> bool:
        """Whether it may emit what the target would not have said."""
        return isinstance(self.policy, LossyPolicy)

    @property
    def classifier(self) -> str | None:
        """Name of the pivot classifier that it asks."""
        return self.policy.classifier.name if self.policy.kind == "lossy-pad" else None

    @property
    def plain(self) -> RoundSetup:
        """How to run a round of it in which nobody drafts: padded where a larger shape is cheaper."""
        return RoundSetup(policy=PlainPolicy(), run_tokens=self.run_tokens[:2])

    @property
    def most_tokens(self) -> int:
        """Most tokens per sequence one verify can feed."""
        return max(self.policy.max_verify_tokens, *self.run_tokens, 1)


def setup_of(cell: PlanCell) -> RoundSetup:
    """Return how a plan's cell runs its rounds."""
    return RoundSetup(policy=cell.policy, drafter=cell.drafter, run_tokens=cell.run_tokens)


def plain_setup(cell: PlanCell) -> RoundSetup:
    """Return the fastest plain decoding a plan's cell knows."""
    return setup_of(cell).plain


Schedule = Callable[[int, int], RoundSetup]  # (batch, context) -> setup

PLAIN = RoundSetup(policy=PlainPolicy())


def draft_room(setups: Sequence[RoundSetup], batch: int | None = None) -> int:
    """Return the cache positions that rounds need behind the committed text, in the target and in drafters.

    Args:
        setups: how rounds may be run.
        batch: most sequences at once; None where that is open, which may take much more.
    """
    return 1 + max(max(setup.policy.draft_room(batch), setup.most_tokens) for setup in setups)


def always(setup: RoundSetup) -> Schedule:
    """Return the schedule that runs every round alike."""
    return lambda batch, context: setup
