"""Decode a batch round by round: draft, verify in one forward, accept, commit.

Each emitted token is drawn from the target's logits (see batch/sampler.py), so drafts only decide how many are drawn
per forward. A failing drafter costs only its drafts (see batch/faults.py). The one exception is `allow_lossy` (see
lossy_rule.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many

import torch

from ...errors import RequestError
from ...planner.records.draft import DraftBatch
from ..ahead.rounds import RoundsAhead
from ..batch.faults import Fault
from ..batch.sequence import Request, Sequence, shared_temperature
from ..batch.step_config import RoundSetup, Schedule
from ..batch.stopwatch import BEGUN, DONE, DRAFTED, LAID_OUT, VERIFIED, Stopwatch
from ..batch.tree_input import prepare
from ..drafters.lookup import LookupDrafter
from ..drafters.protocol import Drafter, DraftsAhead, Forgets, ReadsTarget
from ..models.forward import CausalModel
from ..models.graphed import GraphedModel
from ..models.layout import Masks, seen_by
from .drafting import Drafting
from .pad import PivotJudge
from .prefill import Reading
from .scheduler import Admission
from .step_output import Committed, accepted_of, commit, commit_drawn
from .step_output import Round as Round  # what this module is asked for besides
from .verification import Verifying


class Decoder:
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
    ) -> None:
        """Allocate the target's cache for `slots` sequences of `capacity` tokens, draft nodes included.

        Args:
            allow_lossy: without it, or without the policy's judge, lossy drafts are verified without loss, with a
                fault.
            absent: why drafters are missing; a round whose drafter is missing has a fault.
            prefix_caching: texts that have left stay in free and in spare slots; a prompt that begins like one of them,
                or like a running prompt, is read from where they differ.
        """
        self._told = 0  # rounds ahead of the host that were committed
        self._left = 0  # sequences, since the last round was told
        self._joined: list[int] = []  # likewise, by index
        self._target = target
        self._schedule = schedule
        self._cache = target.new_cache(slots + spare_slots, capacity)
        seen_in = seen_by(target, capacity)
        self._watch = Stopwatch(DONE + 1)
        self._faults: list[Fault] = []  # of the round that runs, and of admissions before it
        self._drafting = Drafting(drafters, target.vocabulary, self._faults, absent or {})
        self._admission = Admission(target, self._cache, self._drafting, slots=slots, prefix_caching=prefix_caching)
        prepare(target.dtype, target.device)
        self._verifying = Verifying(
            target,
            self._cache,
            Masks(target.dtype, target.device, slots=slots, capacity=capacity),
            seen_in,
            self._drafting.drafters,
            judges=judges or {},
            allow_lossy=allow_lossy,
            faults=self._faults,
            watch=self._watch,
        )
        self._ahead: RoundsAhead | None = None
        if isinstance(target, GraphedModel) and seen_in is not None:
            self._ahead = RoundsAhead(target, self._cache, seen_in=seen_in, faults=self._faults)
        for drafter in drafters.values():
            if isinstance(drafter, ReadsTarget):
                drafter.attach(self._cache)

    @property
    def running(self) -> list[Sequence]:
        """The batch, which only the decoder changes."""
        return self._admission.running

    @property
    def forwards(self) -> int:
        """Forwards of the target in committed rounds."""
        return self._told + self._verifying.forwards

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
        return self._admission.has_room

    def expect(self, batch: int, context: int) -> None:
        """Let only the drafters of rounds of this size read prompts at once; without this call every drafter does."""
        self._drafting.expect(self._schedule(batch, context))

    def unread(self, request: Request) -> int:
        """Return how many tokens of a prompt would have to be read now: at least one; all without `prefix_caching`."""
        return self._admission.unread(request)

    def admit(self, request: Request, index: int = 0) -> Sequence:
        """Read a prompt and draw its first token; the sequence joins the batch unless that token finished it."""
        sequence = self._admission.admit(request, index)
        self._note_joined(sequence)
        return sequence

    def begin(self, request: Request, index: int = 0) -> Reading:
        """Reserve a slot, one at a time, for a prompt that `read_on` reads between rounds; `abandon` frees it."""
        return self._admission.begin(request, index)

    def read_on(self, reading: Reading, most: int) -> None:
        """Read at most `most` more tokens of a prompt; behind the last one do as `admit` does."""
        self._admission.read_on(reading, most)
        if not reading.left:
            self._note_joined(reading.sequence)

    def abandon(self, reading: Reading) -> None:
        """Give up a prompt that was begun and has not joined."""
        self._admission.abandon(reading)

    def cancel(self, sequence: Sequence) -> None:
        """Remove a sequence before it is finished; RequestError if it is not in the batch."""
        if not any(other is sequence for other in self.running):
            raise RequestError(
                f"request {sequence.index} is not being decoded; it has finished or was cancelled before"
            )
        self._leave(sequence)

    def step(self, setup: RoundSetup | None = None) -> Round:
        """Run one round over the whole batch and let finished sequences leave; `setup` None: as scheduled.

        MemoryError where the target cannot verify even the newest token of every sequence.
        """
        self._watch.mark(BEGUN)
        self._admission.settle()
        batch = list(self.running)
        context = max(s.context for s in batch)
        asked = self._schedule(len(batch), context) if setup is None else setup
        setup = self._drafting.turn_to(asked)
        done = self._run_ahead(batch, setup) or self._run(batch, setup)
        finished = self._let_finished_leave(batch)
        faults, joined, left = tuple(self._faults), tuple(self._joined), self._left
        self._faults.clear()
        self._joined.clear()
        self._left = 0
        has_read = self._admission.note_round()
        is_behind = self._drafting.has_read_late(setup, done.widths) or has_read
        self._watch.mark(DONE)
        round_ms = self._watch.ms(BEGUN, DONE)
        draft_ms = min(done.draft_ms, round_ms)
        return Round(
            setup=setup,
            instead_of=None if setup is asked else asked,
            context=context,
            sequences=[s.index for s in batch],
            kept=done.kept,
            verify_tokens=done.fed,
            widths=done.widths,
            fresh=done.fresh,
            finished=finished,
            joined=joined,
            left=left,
            temperature=shared_temperature(batch),
            levels=done.levels,
            faults=faults,
            lossy=tuple(done.lossy),
            gates=tuple(done.gates),
            is_ahead=done.is_ahead,
            is_behind=is_behind,
            draft_ms=draft_ms,
            verify_ms=min(done.verify_ms, round_ms - draft_ms),
            round_ms=round_ms,
        )

    def draft(self, setup: RoundSetup, fresh: int) -> None:
        """Let a setup's drafter draft with `fresh` unread tokens, and drop the draft."""
        self._admission.settle()
        drafter = self._drafting.asked(setup)
        if isinstance(drafter, Forgets):
            if drafter.fresh(self.running) > fresh:
                self._drafting.draft(self.running, setup)
            drafter.rewind([len(s.tokens) - fresh for s in self.running])
            self._drafting.draft(self.running, setup)

    def verify(self, draft: DraftBatch, setup: RoundSetup) -> None:
        """Verify given trees, one for each sequence, as a round of a setup would; errors as in `step`."""
        self._admission.settle()
        self._verifying.verify(self.running, draft, setup)
        self._let_finished_leave(list(self.running))

    def forgiven(self) -> list[Fault]:
        """Return and clear the faults outside rounds, and the failure counts of drafters still in use."""
        faults = list(self._faults)
        self._faults.clear()
        self._drafting.forgive()
        return faults

    def tell_again(self, faults: Iterable[Fault]) -> None:
        """Add faults of earlier rounds that were not reported to the next round."""
        self._faults.extend(faults)

    def _let_finished_leave(self, batch: Many[Sequence]) -> list[Sequence]:
        finished = [s for s in batch if s.is_finished]
        for sequence in finished:
            self._leave(sequence)
        return finished

    def _run_ahead(self, batch: Many[Sequence], setup: RoundSetup) -> Committed | None:
        """Commit a round that runs ahead; None where it must run as any other round."""
        if self._ahead is None:
            return None
        asked = self._drafting.asked(setup)
        drafter = asked if asked is not None and isinstance(asked, DraftsAhead) else None
        if drafter is None and asked is not None and not isinstance(asked, LookupDrafter):
            return None
        fresh = 0 if drafter is None else drafter.fresh(batch)
        told = self._ahead.told(batch, setup, drafter)
        if told is None:
            return None
        self._told += 1
        if drafter is not None:
            drafter.note_drafted(batch, len(told.widths))
        fed, drawn = told.best.shape[1], told.standing(setup.policy.max_verify_tokens, self.vocabulary)
        if drawn is not None:
            if asked is not None:
                self._drafting.note_sound(setup)
            done = commit_drawn(batch, told.widths, drawn, fed)
        else:
            fresh, draft = self._drafting.sound(batch, setup, fresh, told.draft)
            done = commit(batch, draft, accepted_of(told.best, draft), fed)
        done.fresh, done.is_ahead, done.draft_ms, done.verify_ms = fresh, True, told.draft_ms, told.verify_ms
        return done

    def _run(self, batch: Many[Sequence], setup: RoundSetup) -> Committed:
        fresh, draft = self._drafting.draft(batch, setup)
        self._watch.mark(DRAFTED)
        done = self._verifying.verify(batch, draft, setup)
        done.widths, done.levels, done.fresh = draft.widths, draft.levels, fresh
        done.draft_ms, done.verify_ms = self._watch.ms(BEGUN, DRAFTED), self._watch.ms(LAID_OUT, VERIFIED)
        return done

    def _note_joined(self, sequence: Sequence) -> None:
        if not sequence.is_finished:
            self._joined.append(sequence.index)
        if self._ahead is not None:
            self._ahead.note_joined(self.running)

    def _leave(self, sequence: Sequence) -> None:
        self._admission.leave(sequence)
        self._left += 1
