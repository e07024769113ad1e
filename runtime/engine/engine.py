"""A running batch over one target and its drafters: sequences come and go, `step` runs a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ...errors import RequestError
from ...planner.records.draft import DraftBatch
from ..backends.base import Backend
from ..backends.choice import choose
from ..batch.faults import Fault
from ..batch.sequence import Request, Sequence
from ..batch.step_config import Schedule, StepConfig
from ..batch.stopwatch import DONE, Stopwatch
from ..drafters.base import Drafter
from ..models.forward import CausalModel
from ..models.layout import Masks, seen_by
from .cache_slots import CacheSlots, commit
from .drafting import Drafting
from .exit_states import ExitStates
from .lossy_rule import LossyRules
from .overlap import Overlap
from .pad import PivotJudge
from .prefill import ALL, Prefill
from .step import RoundRunner, TargetVerifier
from .step_output import StepOutput


class Engine:
    """A running batch over one target and its drafters.

    Invariant: while a round runs, slot i of every cache belongs to `running[i]`; the target's lacks its last token.
    """

    def __init__(
        self,
        target: CausalModel,
        drafters: Mapping[str, Drafter],
        schedule: Schedule,
        *,
        slots: int,
        capacity: int,
        allow_lossy: bool = False,
        judges: Mapping[str, PivotJudge] | None = None,
        absent: Mapping[str, str] | None = None,
        prefix_caching: bool = False,
        spare_slots: int = 0,
        backend: type[Backend] | None = None,
    ) -> None:
        """Allocate the target's cache for `slots` sequences of `capacity` tokens, draft nodes included.

        Args:
            allow_lossy: without it, or without the policy's judge, lossy drafts are verified without loss, with a
                fault.
            absent: why drafters are missing; a round whose drafter is missing has a fault.
            prefix_caching: texts that have left stay in free and in spare slots; a prompt that begins like one of them,
                or like a running prompt, is read from where they differ.
            backend: what runs the rounds; None: that of the target.
        """
        self._target, self._schedule = target, schedule
        self._cache = cache = target.new_cache(slots + spare_slots, capacity)
        self._faults: list[Fault] = []  # of the round that runs, and of admissions before it
        faults, watch, seen_in = self._faults, Stopwatch(DONE + 1), seen_by(target, capacity)
        self._drafting = Drafting(drafters, target.vocabulary, faults, absent or {})
        self._slots = CacheSlots(target, cache, self._drafting, slots=slots, prefix_caching=prefix_caching)
        self._backend = (backend or choose(target))(target, cache, watch)
        self._backend.prepare()
        self._verification = TargetVerifier(
            self._backend,
            cache,
            Masks(target.dtype, target.device, slots=slots, capacity=capacity),
            seen_in,
            exits=ExitStates(target, drafters, faults),
            rules=LossyRules(judges or {}, cache, faults, is_allowed=allow_lossy),
            faults=faults,
            watch=watch,
        )
        self._overlap = Overlap(self._backend.rounds_ahead(seen_in, faults), self._drafting, target.vocabulary)
        self._rounds = RoundRunner(
            self._slots, self._drafting, self._verification, schedule, self._overlap, faults=faults, watch=watch
        )
        for drafter in drafters.values():
            drafter.attach(cache)

    @property
    def running(self) -> list[Sequence]:
        """The batch, which only the engine changes."""
        return self._slots.running

    @property
    def forwards(self) -> int:
        """Forwards of the target in committed rounds."""
        return self._overlap.forwards + self._verification.forwards

    @property
    def device(self) -> torch.device:
        """The target's device."""
        return self._target.device

    @property
    def vocabulary(self) -> int:
        """The target's vocabulary size."""
        return self._target.vocabulary

    @property
    def is_faultless(self) -> bool:
        """Whether no drafter failed in its last round or for good."""
        return self._drafting.is_faultless

    @property
    def has_room(self) -> bool:
        """Whether another sequence fits into the batch."""
        return self._slots.has_room

    def expect(self, batch: int, context: int) -> None:
        """Let only the drafters of rounds of this size read prompts at once; without this call every drafter does."""
        self._drafting.expect(self._schedule(batch, context))

    def unread(self, request: Request) -> int:
        """Return how many tokens of a prompt would have to be read now: at least one; all without `prefix_caching`."""
        return self._slots.unread(request)

    def admit(self, request: Request, index: int = 0) -> Sequence:
        """Read a whole prompt and draw its first token; the sequence joins the batch unless that token finished it."""
        reading = self.begin(request, index, ALL)
        self.read_on(reading, ALL)
        return reading.sequence

    def begin(self, request: Request, index: int = 0, most: int = 0) -> Prefill:
        """Return a prompt that `read_on` reads into a slot, at once where no more than `most` of its tokens are unread.

        Longer ones are read between rounds, one at a time; until then they hold a slot, which `abandon` frees.
        """
        return self._slots.begin(request, index, most)

    def read_on(self, reading: Prefill, most: int) -> None:
        """Read at most `most` more tokens of a prompt; behind the last one draw, and join, as `admit` says."""
        self._slots.read_on(reading, most)
        if not reading.left:
            self._overlap.note_joined(self.running)

    def abandon(self, reading: Prefill) -> None:
        """Give up a prompt that was begun and has not joined."""
        self._slots.abandon(reading)

    def cancel(self, sequence: Sequence) -> None:
        """Remove a sequence before it is finished; RequestError if it is not in the batch."""
        if not any(other is sequence for other in self.running):
            raise RequestError(
                f"request {sequence.index} is not being decoded; it has finished or was cancelled before"
            )
        self._slots.leave(sequence)

    def step(self, setup: StepConfig | None = None) -> StepOutput:
        """Run one round over the whole batch and let finished sequences leave; see `RoundRunner.step`."""
        return self._rounds.step(setup)

    def draft(self, setup: StepConfig, uncached: int) -> None:
        """Let a setup's drafter draft with `uncached` unread tokens, and drop the draft."""
        self._drafting.draft_behind(self._slots.schedule(), setup, uncached)

    def verify(self, draft: DraftBatch, setup: StepConfig) -> None:
        """Verify given trees, one for each sequence, as a round of a setup would; errors as in `step`."""
        batch = self._slots.schedule()
        commit(batch, self._verification.verify(batch, draft, setup).accepted)
        self._slots.let_finished_leave(batch)

    def forgiven(self) -> list[Fault]:
        """Return and clear the faults outside rounds, and the failure counts of drafters still in use."""
        faults = list(self._faults)
        self._faults.clear()
        self._drafting.forgive()
        return faults

    def tell_again(self, faults: Iterable[Fault]) -> None:
        """Add faults of earlier rounds that were not reported to the next round."""
        self._faults.extend(faults)
