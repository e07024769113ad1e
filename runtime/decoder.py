"""Decode a batch round by round: draft, verify in one forward, accept, commit.

The output is the target's own whatever the drafts are: each emitted token is drawn from the
target's logits (see draws.py), and a draft only decides how many are drawn per forward. So a
drafter that fails costs its drafts and nothing else (see faults.py). A decoder made with `allow_lossy` is
the one exception: it runs lossy policies as they are (see lossy.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import torch

from ..errors import RequestError
from ..planner.growth.grow import DraftBatch
from ..planner.policies import LossyPolicy, ResumedPolicy
from .cache import Kept
from .drafters.lookup import roots_of
from .drafters.protocol import Drafter, ReadsTarget, asked_of
from .draws import draw, drawn_from, scored
from .faults import MOST_FAULTS, Fault, is_out_of_memory, reason_of, require_sound
from .layout import PREFILL_TOKENS, Masks, ancestors, lay_out, seen_by, widened
from .lossy import Gates
from .lossy_round import LossyRound, refusal
from .models.forward import CausalModel, LeftStates
from .models.graphed import GraphedModel
from .pad import PivotJudge
from .requests import Request, Sequence, are_greedy
from .resumed import logits_of, states_left
from .sampling import tree_paths
from .setup import RoundSetup, Schedule
from .stopwatch import Stopwatch
from .walk import accept

BEGUN, DRAFTED, LAID_OUT, VERIFIED, DONE = range(5)  # moments of a round


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round did; row i of each list is the i-th sequence of the batch before the round."""

    setup: RoundSetup
    context: int  # most cached tokens of any sequence, before the round
    sequences: list[int]  # index of each sequence
    kept: list[int]  # tokens emitted per sequence
    verify_tokens: int  # tokens per sequence fed to the target, padding included
    widths: tuple[int, ...]  # draft nodes per sequence of each drafter forward, the root's own first
    fresh: int  # tokens per sequence really fed to the first of them: what was committed since the last draft
    finished: list[Sequence]
    levels: tuple[int, ...] = ()  # of a stack, which of its models ran each forward, 0 being next to the target
    faults: tuple[Fault, ...] = ()  # what went wrong; the output is right all the same
    lossy: tuple[int, ...] = ()  # of a lossy round, tokens per sequence among the kept that are not the target's own
    gates: tuple[Gates, ...] = ()  # of a lossy round, what its rule met along each sequence's chain
    draft_ms: float = 0.0  # drafting, the growing of trees included
    verify_ms: float = 0.0  # the target's forward, on a GPU with the drawing behind it
    round_ms: float = 0.0  # everything


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
        self.forwards = 0  # of the target, prefill apart
        self._target = target
        self._drafters = drafters
        self._schedule = schedule
        self._slots, self._allow_lossy, self._judges = slots, allow_lossy, judges or {}
        self._cache = target.new_cache(slots, capacity)
        self._masks = Masks(target.dtype, target.device, slots=slots, capacity=capacity)
        self._seen_in = seen_by(target, capacity)
        self._watch = Stopwatch(DONE + 1)
        self._faults: list[Fault] = []  # of the round that runs, and of admissions before it
        self._failures = dict.fromkeys(drafters, 0)  # in a row, by drafter
        for drafter in drafters.values():
            if isinstance(drafter, ReadsTarget):
                drafter.attach(self._cache)

    @property
    def is_faultless(self) -> bool:
        """Whether no drafter has failed in its last round, or for good."""
        return not any(self._failures.values())

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
        logits = self._prefill(request.prompt, slot)
        sequence.commit(draw(logits, [sequence], np.zeros((1, 1), dtype=np.int64))[0])
        if not sequence.is_finished:
            self.running.append(sequence)
            for name in self._drafters:
                self._keep_up(name, lambda drafter: drafter.admit(slot, sequence))
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
        fresh, draft = self._draft(batch, setup)
        self._watch.mark(DRAFTED)
        done, fed = self._verify(batch, draft, setup)
        finished = [s for s in batch if s.is_finished]
        for sequence in finished:
            self._leave(sequence)
        faults, self._faults = tuple(self._faults), []
        self._watch.mark(DONE)
        return Round(
            setup=setup,
            context=context,
            sequences=[s.index for s in batch],
            kept=done.kept,
            verify_tokens=fed,
            widths=draft.widths,
            fresh=fresh,
            finished=finished,
            levels=draft.levels,
            faults=faults,
            lossy=tuple(done.lossy),
            gates=tuple(done.gates),
            draft_ms=self._watch.ms(BEGUN, DRAFTED),
            verify_ms=self._watch.ms(LAID_OUT, VERIFIED),
            round_ms=self._watch.ms(BEGUN, DONE),
        )

    def _draft(self, batch: Many[Sequence], setup: RoundSetup) -> tuple[int, DraftBatch]:
        """Return how many tokens the drafter had to read first, and its trees; only roots where it fails."""
        if setup.drafter is None:
            return 0, roots_of(len(batch))
        drafter = self._drafters.get(setup.drafter)
        if drafter is None:
            self._faults.append(Fault(drafter=setup.drafter, reason="there is no such drafter here"))
            return 0, roots_of(len(batch))
        if self._failures[setup.drafter] >= MOST_FAULTS:
            return 0, roots_of(len(batch))
        try:
            fresh, draft = drafter.fresh(batch), drafter.draft(batch, asked_of(drafter, setup.policy))
            require_sound(draft, len(batch), self._target.vocabulary)
        except Exception as error:  # whatever a drafter does wrong, the target goes on
            self._note_failure(setup.drafter, error, 1)
            return 0, roots_of(len(batch))
        self._failures[setup.drafter] = 0
        return fresh, draft

    def _keep_up(self, name: str, tell: Callable[[Drafter], None]) -> None:
        """Tell a drafter of a sequence that came or moved; one that fails at it has lost track and rests for good."""
        if self._failures[name] < MOST_FAULTS:
            try:
                tell(self._drafters[name])
            except Exception as error:
                self._note_failure(name, error, MOST_FAULTS)

    def _note_failure(self, name: str, error: Exception, weight: int) -> None:
        self._failures[name] += weight
        lost = "; it is not asked again" if self._failures[name] >= MOST_FAULTS else ""
        self._faults.append(Fault(drafter=name, reason=reason_of(error) + lost))

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

    def _verify(self, batch: Many[Sequence], draft: DraftBatch, setup: RoundSetup) -> tuple[_Committed, int]:
        """Return what was emitted, and tokens fed; where a tree does not fit, its root alone is verified."""
        fed = setup.padded(int(draft.sizes.max()))
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
            return states_left(self._target, self._drafters[setup.drafter or ""], batch, draft, fed)
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
    ) -> tuple[_Committed, int]:
        nodes = int(draft.sizes.max())
        tokens, parents, depths = (widened(a, nodes, fed) for a in (draft.tokens, draft.parents, draft.depths))
        tokens[:, 0] = [s.tokens[-1] for s in batch]
        contexts = [s.context for s in batch]
        self._cache.require(max(contexts) + fed)
        sees = ancestors(parents)
        step = lay_out(
            np.maximum(tokens, 0),
            depths,
            contexts,
            sees,
            dtype=self._target.dtype,
            device=self._target.device,
            masks=self._masks,
            seen_in=self._seen_in,
        )
        self._watch.mark(LAID_OUT)
        self.forwards += 1
        left = self._left(batch, draft, fed, setup)
        if lossy is None and isinstance(self._target, GraphedModel) and are_greedy([s.request for s in batch]):
            draws = self._target.best(step, self._cache)
            self._watch.mark(VERIFIED)
            return self._commit(batch, draft, draws, contexts, None), fed
        logits = logits_of(self._target, step, self._cache, left)
        if logits.device.type == "cpu":
            self._watch.mark(VERIFIED)
        scores = scored(logits, batch, tree_paths(batch, tokens, sees))
        draws = drawn_from(scores, batch, depths)
        if logits.device.type != "cpu":  # a GPU's forward ends behind its call; the draws tell that it has
            self._watch.mark(VERIFIED)
        loosely = None
        if lossy is not None:
            found = {"logits": logits, "scores": scores}
            loosely = LossyRound(lossy, self._judges, **found, cache=self._cache, contexts=contexts)
        return self._commit(batch, draft, draws, contexts, loosely), fed

    def _commit(
        self,
        batch: Many[Sequence],
        draft: DraftBatch,
        draws: list[list[int]],
        contexts: Many[int],
        loosely: LossyRound | None,
    ) -> _Committed:
        done, moves = _Committed(), list[Kept]()
        tokens, parents, sizes = draft.tokens.tolist(), draft.parents.tolist(), draft.sizes.tolist()
        for slot, sequence in enumerate(batch):
            drafted = (tokens[slot], parents[slot], sizes[slot], draws[slot])
            if loosely is None:
                path = accept(*drafted)
            else:
                path, gates = loosely.accept(slot, *drafted, stop=sequence.request.stop)
                done.gates.append(gates)
            moves.append((slot, contexts[slot], path.nodes))
            kept = sequence.commit(path.drawn, path.lossy)
            done.kept.append(kept)
            if loosely is not None:
                done.lossy.append(sum(place < kept for place in path.lossy))
        self._cache.keep(moves)
        return done

    def _leave(self, sequence: Sequence) -> None:
        """Give the sequence's slot to the last one of the batch."""
        slot = next(place for place, other in enumerate(self.running) if other is sequence)
        last = len(self.running) - 1
        if slot != last:
            mover = self.running[last]
            self._cache.move_slot(last, slot, mover.context)
            for name in self._drafters:
                self._keep_up(name, lambda drafter: drafter.move(last, slot))
            self.running[slot] = mover
        self.running.pop()

    def _prefill(self, prompt: Many[int], slot: int) -> torch.Tensor:
        """Read a prompt into a slot; return the logits behind its last token, (1, 1, vocabulary)."""
        logits = None
        for start in range(0, len(prompt), PREFILL_TOKENS):
            piece = np.array([prompt[start : start + PREFILL_TOKENS]], dtype=np.int64)
            count = piece.shape[1]
            step = lay_out(
                piece,
                np.arange(count),
                [start],
                np.tri(count, dtype=np.bool_)[None],
                take=np.array([count - 1]),
                first_slot=slot,
                dtype=self._target.dtype,
                device=self._target.device,
            )
            logits = self._target.forward(step, self._cache)
        assert logits is not None
        return logits


@dataclass(slots=True, kw_only=True)
class _Committed:
    """What the sequences of a round emitted: of each how many tokens, and of a lossy round how many by its rule."""

    kept: list[int] = field(default_factory=list)
    lossy: list[int] = field(default_factory=list)
    gates: list[Gates] = field(default_factory=list)
