"""Decode a batch round by round: draft, verify in one forward, accept, commit.

The output is the target's own whatever the drafts are: each emitted token is drawn from the
target's logits (see draws.py), and a draft only decides how many are drawn per forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch

from ..planner.growth import DraftBatch
from .drafters.lookup import chains
from .drafters.protocol import Drafter
from .draws import draw
from .layout import Ints, ancestors, lay_out
from .models.forward import CausalModel
from .requests import Request, Sequence
from .setup import RoundSetup, Schedule
from .walk import accept

PREFILL_TOKENS = 512  # longest piece of a prompt fed at once


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
    ) -> None:
        """Allocate the target's cache for `slots` sequences of `capacity` tokens, draft nodes included."""
        self.running: list[Sequence] = []
        self.forwards = 0  # of the target, prefill apart
        self._target = target
        self._drafters = drafters
        self._schedule = schedule
        self._slots = slots
        self._cache = target.new_cache(slots, capacity)

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
            for drafter in self._drafters.values():
                drafter.admit(slot, sequence)
        return sequence

    def step(self) -> Round:
        """Run one round over the whole batch and let finished sequences leave."""
        batch = list(self.running)
        context = max(s.context for s in batch)
        setup = self._schedule(len(batch), context)
        fresh = self._drafters[setup.drafter].fresh(batch) if setup.drafter else 0
        draft = self._draft(batch, setup)
        kept, fed = self._verify(batch, draft, setup)
        finished = [s for s in batch if s.is_finished]
        for sequence in finished:
            self._leave(sequence)
        return Round(
            setup=setup,
            context=context,
            sequences=[s.index for s in batch],
            kept=kept,
            verify_tokens=fed,
            widths=draft.widths,
            fresh=fresh,
            finished=finished,
        )

    def _draft(self, batch: Many[Sequence], setup: RoundSetup) -> DraftBatch:
        if setup.drafter is None:
            return chains([[] for _ in batch])
        return self._drafters[setup.drafter].draft(batch, setup.policy)

    def _verify(self, batch: Many[Sequence], draft: DraftBatch, setup: RoundSetup) -> tuple[list[int], int]:
        nodes = int(draft.sizes.max())
        fed = setup.padded(nodes)
        tokens, parents, depths = (_widen(a, nodes, fed) for a in (draft.tokens, draft.parents, draft.depths))
        tokens[:, 0] = [s.tokens[-1] for s in batch]
        contexts = [s.context for s in batch]
        self._cache.require(max(contexts) + fed)
        step = lay_out(
            np.maximum(tokens, 0),
            depths,
            contexts,
            ancestors(parents),
            dtype=self._target.dtype,
            device=self._target.device,
        )
        logits = self._target.forward(step, self._cache)
        self.forwards += 1
        return self._commit(batch, draft, draw(logits, batch, depths), contexts), fed

    def _commit(
        self, batch: Many[Sequence], draft: DraftBatch, draws: list[list[int]], contexts: Many[int]
    ) -> list[int]:
        kept = []
        tokens, parents, sizes = draft.tokens.tolist(), draft.parents.tolist(), draft.sizes.tolist()
        for slot, sequence in enumerate(batch):
            path = accept(tokens[slot], parents[slot], sizes[slot], draws[slot])
            self._cache.keep(slot, contexts[slot], path.nodes)
            kept.append(sequence.commit(path.drawn))
        return kept

    def _leave(self, sequence: Sequence) -> None:
        """Give the sequence's slot to the last one of the batch."""
        slot = next(place for place, other in enumerate(self.running) if other is sequence)
        last = len(self.running) - 1
        if slot != last:
            mover = self.running[last]
            self._cache.move_slot(last, slot, mover.context)
            for drafter in self._drafters.values():
                drafter.move(last, slot)
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


def _widen(array: Ints, nodes: int, fed: int) -> Ints:
    """Return a copy with `fed` columns: the first `nodes`, then padding of zeros."""
    wide = np.zeros((len(array), fed), dtype=np.int64)
    wide[:, :nodes] = array[:, :nodes]
    return wide
