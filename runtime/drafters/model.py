"""A smaller causal language model as drafter: the planner's growth code asks, the model answers."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch
from numpy.typing import NDArray

from ...planner.growth import Children, DraftBatch, grow
from ...planner.policy import TreePolicy
from ..layout import Bools, lay_out
from ..models.forward import CausalModel
from ..requests import Sequence

Ints = NDArray[np.int64]
PREFILL_TOKENS = 512  # longest piece of a prompt fed at once


class ModelDrafter:
    """Runs a drafter model over its own cache.

    Invariant: `_cached[slot]` tokens of the slot's sequence are in the cache, and all of them are
    committed: accepted tokens are always fed again, so a proposal depends on the committed text
    alone.
    """

    def __init__(self, model: CausalModel, *, slots: int, capacity: int) -> None:
        """Allocate the cache for `slots` sequences of up to `capacity` tokens, draft nodes included."""
        self.forwards = 0
        self._model = model
        self._cache = model.new_cache(slots, capacity)
        self._cached = [0] * slots

    def admit(self, slot: int, sequence: Sequence) -> None:
        """Read all but the newest committed token of a fresh sequence into the cache."""
        self._read(slot, sequence.tokens[:-1], 0)

    def move(self, source: int, target: int) -> None:
        """Let `target` become the slot of the sequence in `source`."""
        self._cache.move_slot(source, target, self._cached[source])
        self._cached[target] = self._cached[source]

    def fresh(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that the next draft has to read first."""
        return max(len(s.tokens) - self._cached[slot] for slot, s in enumerate(sequences))

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the trees the policy draws from this model's scores."""
        return grow(policy, DraftPass(self, sequences), len(sequences))

    def read_prefixes(self, tokens: Many[int], lengths: Many[int]) -> None:
        """Let slot i hold the first lengths[i] of the tokens: many positions of one text at once."""
        for start in range(0, len(tokens), PREFILL_TOKENS):
            piece = tokens[start : start + PREFILL_TOKENS]
            self._feed(np.array([piece]), [start], take=np.array([len(piece) - 1]))
        self._cache.spread(len(lengths), len(tokens))
        self._cached[: len(lengths)] = lengths

    def rewind(self, lengths: Many[int]) -> None:
        """Let slot i hold only the first lengths[i] tokens of those it has read: the rest is read again."""
        self._cached[: len(lengths)] = lengths

    def catch_up(self, sequences: Many[Sequence]) -> torch.Tensor:
        """Feed what was committed since the last round; return logits (batch, 1, vocabulary) behind it."""
        if not self._has_room_for_padding(sequences):
            self._catch_up_alone(sequences)
        fresh = [s.tokens[self._cached[slot] :] for slot, s in enumerate(sequences)]
        counts = np.array([len(f) for f in fresh], dtype=np.int64)
        tokens = np.zeros((len(fresh), int(counts.max())), dtype=np.int64)
        for row, new in enumerate(fresh):
            tokens[row, : len(new)] = new
        logits = self._feed(tokens, self._cached[: len(fresh)], take=counts - 1)
        for slot, sequence in enumerate(sequences):
            self._cached[slot] = len(sequence.tokens)
        return logits

    def _has_room_for_padding(self, sequences: Many[Sequence]) -> bool:
        """Whether every row could be padded to the longest: rows drift apart in rounds of other drafters."""
        room = min(self._cache.capacity, self._model.longest_context) - max(self._cached[: len(sequences)])
        return self.fresh(sequences) <= room

    def _catch_up_alone(self, sequences: Many[Sequence]) -> None:
        """Feed all but the newest token of every sequence, one sequence at a time."""
        for slot, sequence in enumerate(sequences):
            self._read(slot, sequence.tokens[:-1], self._cached[slot])

    def _read(self, slot: int, tokens: Many[int], cached: int) -> None:
        """Let a slot that holds the first `cached` of these tokens hold all of them."""
        for start in range(cached, len(tokens), PREFILL_TOKENS):
            piece = tokens[start : start + PREFILL_TOKENS]
            self._feed(np.array([piece]), [start], take=np.array([len(piece) - 1]), first_slot=slot)
        self._cached[slot] = len(tokens)

    def feed_layer(self, tokens: Ints, depth: int, visible: Bools, written: int) -> torch.Tensor:
        """Feed draft nodes of one depth; return their logits (batch, width, vocabulary)."""
        contexts = self._cached[: len(tokens)]
        self._cache.require(max(contexts) + written + tokens.shape[1])
        step = lay_out(
            tokens,
            np.full(tokens.shape[1], depth - 1),
            contexts,
            visible,
            written=written,
            dtype=self._model.dtype,
            device=self._model.device,
        )
        self.forwards += 1
        return self._model.forward(step, self._cache)

    def _feed(self, tokens: Ints, contexts: Many[int], *, take: Ints, first_slot: int = 0) -> torch.Tensor:
        count = tokens.shape[1]
        step = lay_out(
            tokens,
            np.arange(count),
            contexts,
            np.tri(count, dtype=np.bool_)[None],
            take=take,
            first_slot=first_slot,
            dtype=self._model.dtype,
            device=self._model.device,
        )
        self.forwards += 1
        return self._model.forward(step, self._cache)


class DraftPass:
    """One round's `LayerScorer`: depth 1 from the committed text, then layer by layer."""

    def __init__(self, drafter: ModelDrafter, sequences: Many[Sequence]) -> None:
        """Start a round behind the committed text of the sequences, one per slot."""
        self._drafter = drafter
        self._sequences = sequences
        self._depth = 0
        self._tokens: Ints = np.empty((0, 0, 0), dtype=np.int64)
        self._visible: Bools = np.empty((0, 0, 0), dtype=np.bool_)

    def root(self, children: int) -> Children:
        """Return the first layer's candidates, one row per sequence."""
        return self._answer(self._drafter.catch_up(self._sequences), children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Feed the chosen nodes of the layer before and return their children.

        A slot of a row that has no more nodes is fed the first child of its first slot: some token has to stand there.
        """
        rows, slots = np.arange(len(parents))[:, None], np.maximum(parents, 0)
        tokens = self._tokens[rows, slots, ranks]
        self._visible = self._sight(slots, rows)
        written = self._visible.shape[2] - tokens.shape[1]
        return self._answer(self._drafter.feed_layer(tokens, self._depth, self._visible, written), children)

    def _sight(self, slots: Ints, rows: Ints) -> Bools:
        batch, width = slots.shape
        own = np.broadcast_to(np.eye(width, dtype=np.bool_), (batch, width, width))
        if self._depth == 1:
            return own
        return np.concatenate((self._visible[rows, slots], own), axis=2)

    def _answer(self, logits: torch.Tensor, count: int) -> Children:
        self._depth += 1
        log_probs, order = best_children(logits, count, [s.request.temperature for s in self._sequences])
        self._tokens = order.numpy()
        return Children(tokens=self._tokens, log_probs=log_probs.numpy())


def best_children(logits: torch.Tensor, count: int, temperatures: Many[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` most likely next tokens behind every node, on the host, most likely first.

    Args:
        logits: (batch, width, vocabulary).
        count: children wanted; the vocabulary where that is smaller.
        temperatures: (batch,), the requests'; the log-probabilities are the sampled distribution's, and
            at temperature 0 the model's own.

    Returns:
        log-probabilities float32 and token ids int64, both (batch, width, count).
    """
    scaled = logits.float()
    if any(temperatures):
        divisors = torch.tensor([t or 1.0 for t in temperatures], dtype=torch.float32)
        scaled = scaled / divisors.view(-1, 1, 1).to(scaled.device)
    log_probs, order = torch.log_softmax(scaled, dim=-1).topk(min(count, logits.shape[-1]), dim=-1)
    return log_probs.cpu(), order.cpu()
