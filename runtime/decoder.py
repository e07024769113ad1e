"""Decode a batch round by round: draft, verify in one forward, accept, commit.

The output is the target's own whatever the drafts are: each emitted token is drawn from the
target's logits (see draws.py), and a draft only decides how many are drawn per forward. So a
drafter that fails costs its drafts and nothing else (see faults.py). A decoder made with `allow_lossy` is
the one exception: it runs lossy policies as they are (see lossy.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np

from ..errors import RequestError
from ..planner.growth.draft import DraftBatch
from ..planner.policies import LossyPolicy, ResumedPolicy
from .ahead.rounds import RoundsAhead
from .cache import Kept
from .drafters.lookup import roots_of
from .drafters.protocol import Drafter, DraftsAhead, ReadsTarget
from .drafting import Drafting
from .draws import best_tokens, draw, drawn_from, scored
from .faults import Fault, is_out_of_memory, reason_of
from .fed_trees import FedTrees, prepare
from .layout import Masks, seen_by
from .lossy import Gates
from .lossy_round import LossyRound, refusal
from .models.forward import CausalModel, LeftStates
from .models.graphed import GraphedModel
from .pad import PivotJudge
from .prefill import read_prompt
from .requests import Request, Sequence, are_greedy
from .resumed import logits_of, states_left
from .round import Round as Round  # what this module is asked for besides
from .setup import RoundSetup, Schedule
from .stopwatch import Stopwatch
from .walk import accept

BEGUN, DRAFTED, LAID_OUT, VERIFIED, DONE = range(5)  # moments of a round


class Decoder:
    """A running batch over one target and its drafters.

    Invariant: slot i of every cache belongs to `running[i]`; the target's cache holds all of its
    tokens but the last.
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
    ) -> None:
        """Allocate the target's cache for `slots` sequences of `capacity` tokens, draft nodes included.

        Without `allow_lossy`, or without the judge among `judges` that it asks, a lossy policy's drafts are verified
        without loss, and every such round has a fault.
        """
        self.running: list[Sequence] = []
        self.forwards = 0  # of the target, in rounds that were committed
        self._target = target
        self._schedule = schedule
        self._slots, self._allow_lossy, self._judges = slots, allow_lossy, judges or {}
        self._cache = target.new_cache(slots, capacity)
        self._masks = Masks(target.dtype, target.device, slots=slots, capacity=capacity)
        self._seen_in = seen_by(target, capacity)
        self._watch = Stopwatch(DONE + 1)
        self._faults: list[Fault] = []  # of the round that runs, and of admissions before it
        self._drafting = Drafting(drafters, target.vocabulary, self._faults)
        if drafters:
            prepare(target.dtype, target.device)
        self._ahead: RoundsAhead | None = None
        if isinstance(target, GraphedModel) and self._seen_in is not None:
            self._ahead = RoundsAhead(target, self._cache, seen_in=self._seen_in, faults=self._faults)
        for drafter in drafters.values():
            if isinstance(drafter, ReadsTarget):
                drafter.attach(self._cache)

    @property
    def is_faultless(self) -> bool:
        """Whether no drafter has failed in its last round, or for good."""
        return self._drafting.is_faultless

    @property
    def has_room(self) -> bool:
        """Whether another sequence fits into the batch."""
        return len(self.running) < self._slots

    def admit(self, request: Request, index: int = 0) -> Sequence:
        """Read a prompt, draw its first token and let the sequence join the batch.

        Returns the sequence; it joins only if that token did not finish it.
        """
        assert self.has_room
        self._cache.require(len(request.prompt) + request.max_new_tokens)
        sequence = Sequence(request, index)
        slot = len(self.running)
        logits = read_prompt(self._target, self._cache, request.prompt, slot)
        sequence.commit(draw(logits, [sequence], np.zeros((1, 1), dtype=np.int64))[0])
        if not sequence.is_finished:
            self.running.append(sequence)
            self._drafting.keep_up(lambda drafter: drafter.admit(slot, sequence))
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Let a sequence leave before it is finished; what it has emitted stays in it.

        Raises:
            RequestError: it is not in the batch.
        """
        if not any(other is sequence for other in self.running):
            raise RequestError(
                f"request {sequence.index} is not being decoded; it has finished or was cancelled before"
            )
        self._leave(sequence)

    def step(self) -> Round:
        """Run one round over the whole batch and let finished sequences leave.

        Raises:
            MemoryError: the target cannot verify even the newest token of every sequence.
        """
        self._watch.mark(BEGUN)
        batch = list(self.running)
        context = max(s.context for s in batch)
        setup = self._schedule(len(batch), context)
        done = self._run_ahead(batch, setup) or self._run(batch, setup)
        finished = [s for s in batch if s.is_finished]
        for sequence in finished:
            self._leave(sequence)
        faults = tuple(self._faults)
        self._faults.clear()
        self._watch.mark(DONE)
        round_ms = self._watch.ms(BEGUN, DONE)
        draft_ms = min(done.draft_ms, round_ms)
        return Round(
            setup=setup,
            context=context,
            sequences=[s.index for s in batch],
            kept=done.kept,
            verify_tokens=done.fed,
            widths=done.draft.widths,
            fresh=done.fresh,
            finished=finished,
            levels=done.draft.levels,
            faults=faults,
            lossy=tuple(done.lossy),
            gates=tuple(done.gates),
            draft_ms=draft_ms,
            verify_ms=min(done.verify_ms, round_ms - draft_ms),
            round_ms=round_ms,
        )

    def _run_ahead(self, batch: Many[Sequence], setup: RoundSetup) -> _Committed | None:
        """Commit what a round says that was launched ahead, or is now; None where it has to be run as any other."""
        if self._ahead is None:
            return None
        asked = self._drafting.asked(setup)
        drafter = asked if asked is not None and isinstance(asked, DraftsAhead) else None
        told = self._ahead.told(batch, setup, drafter)
        if told is None:
            return None
        self.forwards += 1
        fresh, draft = 0, told.draft
        if drafter is not None:
            fresh = max(map(len, drafter.unread(batch)))
            drafter.note_drafted(batch, len(draft.widths))
            fresh, draft = self._drafting.sound(batch, setup, fresh, draft)
        done = self._commit(batch, draft, told.best, len(told.best[0]))
        done.fresh, done.draft_ms, done.verify_ms = fresh, told.draft_ms, told.verify_ms
        return done

    def _run(self, batch: Many[Sequence], setup: RoundSetup) -> _Committed:
        """Draft, verify and commit, each when the host has seen what came before."""
        fresh, draft = self._drafting.draft(batch, setup)
        self._watch.mark(DRAFTED)
        done = self._verify(batch, draft, setup)
        done.draft, done.fresh = draft, fresh
        done.draft_ms, done.verify_ms = self._watch.ms(BEGUN, DRAFTED), self._watch.ms(LAID_OUT, VERIFIED)
        return done

    def _loosely(self, setup: RoundSetup) -> LossyPolicy | None:
        """Return the lossy policy of a round, None where it is lossless or has to be."""
        policy = setup.policy
        if not isinstance(policy, LossyPolicy):
            return None
        reason = refusal(policy, self._judges, self._cache, is_allowed=self._allow_lossy)
        if reason is not None:
            self._faults.append(Fault(drafter=None, reason=f"{policy.label} is verified without loss: {reason}"))
            return None
        return policy

    def _verify(self, batch: Many[Sequence], draft: DraftBatch, setup: RoundSetup) -> _Committed:
        """Return what was emitted; where a tree does not fit, its root alone is verified."""
        fed = setup.padded(max(draft.sizes.tolist()))
        lossy = self._loosely(setup)
        try:
            return self._verify_tree(batch, draft, fed, setup, lossy)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or fed == 1:
                raise
            self._faults.append(Fault(drafter=None, reason=reason_of(error)))
        return self._verify_tree(batch, roots_of(len(batch)), 1, setup)

    def _left(self, batch: Many[Sequence], draft: DraftBatch, fed: int, setup: RoundSetup) -> LeftStates | None:
        """Return the states that a verification goes on from; None where it reads all nodes by all layers."""
        if not isinstance(setup.policy, ResumedPolicy) or not draft.widths:
            return None
        try:
            return states_left(self._target, self._drafting.drafters[setup.drafter or ""], batch, draft, fed)
        except Exception as error:  # whatever is wrong with an exit, the target reads its drafts by itself
            reason = f"{setup.policy.label} is verified by all layers: {reason_of(error)}"
            self._faults.append(Fault(drafter=setup.drafter, reason=reason))
        return None

    def _verify_tree(
        self,
        batch: Many[Sequence],
        draft: DraftBatch,
        fed: int,
        setup: RoundSetup,
        lossy: LossyPolicy | None = None,
    ) -> _Committed:
        trees = FedTrees(batch, draft, fed)
        self._cache.require(max(trees.contexts) + fed)
        step = trees.laid_out(self._masks, self._seen_in)
        self._watch.mark(LAID_OUT)
        self.forwards += 1
        left, is_greedy = self._left(batch, draft, fed, setup), are_greedy(s.request for s in batch)
        if lossy is None and isinstance(self._target, GraphedModel) and is_greedy:
            draws = self._target.best(step, self._cache)
            self._watch.mark(VERIFIED)
            return self._kept(batch, draft, draws, fed)
        logits = logits_of(self._target, step, self._cache, left)
        if logits.device.type == "cpu":
            self._watch.mark(VERIFIED)
        scores = logits if is_greedy else scored(logits, batch, trees.paths)
        draws = best_tokens(scores) if is_greedy else drawn_from(scores, batch, trees.depths)
        if logits.device.type != "cpu":  # a GPU's forward ends behind its call; the draws tell that it has
            self._watch.mark(VERIFIED)
        loosely = None
        if lossy is not None:
            found = {"logits": logits, "scores": scores}
            loosely = LossyRound(lossy, self._judges, **found, cache=self._cache, contexts=trees.contexts)
        return self._kept(batch, draft, draws, fed, loosely)

    def _kept(
        self,
        batch: Many[Sequence],
        draft: DraftBatch,
        draws: list[list[int]],
        fed: int,
        loosely: LossyRound | None = None,
    ) -> _Committed:
        """Commit what is accepted and move its keys together."""
        done = self._commit(batch, draft, draws, fed, loosely)
        self._cache.keep(done.moves)
        return done

    def _commit(
        self,
        batch: Many[Sequence],
        draft: DraftBatch,
        draws: list[list[int]],
        fed: int,
        loosely: LossyRound | None = None,
    ) -> _Committed:
        """Let every sequence have the longest path of its tree that is accepted; its keys stay where they are."""
        done = _Committed(draft=draft, fed=fed)
        tokens, parents, sizes = draft.tokens.tolist(), draft.parents.tolist(), draft.sizes.tolist()
        for slot, sequence in enumerate(batch):
            drafted = (tokens[slot], parents[slot], sizes[slot], draws[slot])
            if loosely is None:
                path = accept(*drafted)
            else:
                path, gates = loosely.accept(slot, *drafted, stop=sequence.request.stop)
                done.gates.append(gates)
            done.moves.append((slot, sequence.context, path.nodes))
            kept = sequence.commit(path.drawn, path.lossy)
            done.kept.append(kept)
            if loosely is not None:
                done.lossy.append(sum(place < kept for place in path.lossy))
        return done

    def _leave(self, sequence: Sequence) -> None:
        """Give the sequence's slot to the last one of the batch."""
        slot = next(place for place, other in enumerate(self.running) if other is sequence)
        last = len(self.running) - 1
        if slot != last:
            mover = self.running[last]
            self._cache.move_slot(last, slot, mover.context)
            self._drafting.keep_up(lambda drafter: drafter.move(last, slot))
            self.running[slot] = mover
        self.running.pop()


@dataclass(slots=True, kw_only=True)
class _Committed:
    """What a round drafted, and what its sequences emitted: of each how many tokens."""

    draft: DraftBatch
    fed: int  # tokens per sequence, to the target
    fresh: int = 0  # tokens that the drafter had to read first
    kept: list[int] = field(default_factory=list)
    moves: list[Kept] = field(default_factory=list)  # what is to be moved together in the target's cache
    lossy: list[int] = field(default_factory=list)  # of those, by a lossy round's rule
    gates: list[Gates] = field(default_factory=list)
    draft_ms: float = 0.0
    verify_ms: float = 0.0
