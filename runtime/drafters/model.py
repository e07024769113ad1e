"""A smaller causal language model as drafter: growth code requests children, the model returns them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np
import torch

from ...planner.kernels.arrays import Bools, Ints
from ...planner.records.draft import DraftBatch
from ...planner.records.room import READ_TOGETHER
from ...planner.strategies import TreePolicy
from ...planner.strategies.base import grow
from ..batch.sequence import Sequence
from ..growth.captured import CapturedGrowth, captured_growth
from ..growth.draft import DeviceDraft
from ..growth.grow import grow_on_device
from ..growth.layout import LayerLayout
from ..growth.scorer import DevicePass
from ..models.forward import ALL, NO_NODES, CausalModel, Draws, FindsChildren, ForwardInput
from ..models.kv_cache import KeyValueCache
from ..models.layout import PREFILL_TOKENS, Masks, chain_sight, lay_out, seen_by
from ..sampling.filters import draft_scores
from ..sampling.sampler import drafted_draws, is_unpenalised
from .base import Drafter
from .host_pass import DraftPass, Found, prepare
from .one_call import beam_of, grown_by, nodes_behind


class ModelDrafter(Drafter):
    """Runs a drafter model over its own cache.

    On a CPU trees grow on the host, by the planner's own code: reading every layer's scores costs nothing there, and no
    forward is wider than needed or in vain. A GPU would idle at every such read, and a few more nodes in a forward cost
    it little. So there trees grow on the device (`runtime.growth`), and the host reads only complete ones.

    Invariant: `_cached[slot]` tokens of the slot's sequence are in the cache, and all of them are committed: accepted
    tokens are always fed again, so a draft depends on the committed text alone.
    """

    overlap = "model"

    def __init__(self, model: CausalModel, *, slots: int, capacity: int, on_device: bool | None = None) -> None:
        """Allocate the cache, draft nodes included; `on_device` None: trees grow there unless it is the CPU."""
        self.forwards = 0
        self._model = model
        self._cache = self.new_cache(slots, capacity)
        self._masks = Masks(model.dtype, model.device, slots=slots, capacity=capacity)
        self._seen_in = seen_by(model, capacity)
        self._captured = captured_growth(model, self._cache, self._seen_in)
        self._cached = [0] * slots
        self._on_device = model.device.type != "cpu" if on_device is None else on_device
        self._finds: FindsChildren | None = None  # of heads, once they are attached
        if not self._on_device:
            prepare(model.dtype)

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache."""
        return self._model.new_cache(slots, capacity)

    def read_along(self, slot: int, tokens: Many[int], held: int) -> int:
        """Read tokens into a slot that holds the first `held` of them."""
        for start in range(held, len(tokens), PREFILL_TOKENS):
            piece = tokens[start : start + PREFILL_TOKENS]
            self._feed_text(np.array([piece]), [start], take=np.array([len(piece) - 1]), first_slot=slot)
        self._cached[slot] = len(tokens)
        return len(tokens)

    def forget(self, slot: int) -> bool:
        """Drop a slot's text."""
        self.read_along(slot, (), 0)
        return True

    def move(self, source: int, target: int) -> None:
        """Move a sequence from slot `source` to `target`."""
        self._cache.move_slot(source, target, self._cached[source])
        self._cached[target] = self._cached[source]

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Copy at most `most` of the first tokens of a slot over another; return how many."""
        held = min(self._cached[source], most)
        if slot != source:
            self._cached[slot] = 0
            self._cache.move_slot(source, slot, held)
        self._cached[slot] = held
        return held

    def swap_prefixes(self, one: int, other: int) -> None:
        """Exchange the texts of two slots."""
        held = self._cached[one], self._cached[other]
        self._cached[one] = self._cached[other] = 0
        self._cache.swap_slots(one, other, max(held))
        self._cached[other], self._cached[one] = held

    def uncached(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that the next draft has to read first."""
        held = zip(sequences, self._cached, strict=False)
        return max(max(len(sequence.tokens) - count, 1) for sequence, count in held)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the trees the policy draws from this model's scores."""
        captured = self.growth_for(sequences, policy)
        if captured is not None:
            return self._draft_captured(captured, sequences, policy)
        if self._on_device:
            return self.draft_on_device(sequences, policy).host()
        grown = self._grown(sequences, policy)
        return grow(policy, DraftPass(self, sequences), len(sequences)) if grown is None else grown

    def _grown(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch | None:
        """Return the trees of a beam, or a beam of one, where one call reads, drafts and grows them; else None."""
        beam = None if self._finds is None else beam_of(policy)
        if self._finds is None or beam is None or beam.top_k > self._model.vocabulary:
            return None
        if not is_unpenalised(sequences):
            return None
        unread = self._unread_rows(sequences)
        read, behind = self._cached[: len(sequences)], [len(s.tokens) for s in sequences]
        draft = grown_by(self._finds, self._cache, beam, read, behind, unread, drafted_draws(sequences))
        if draft is not None:
            self.note_drafted(sequences, len(draft.widths))
        return draft

    def growth_for(self, sequences: Many[Sequence], policy: TreePolicy) -> CapturedGrowth | None:
        """Return the capture of whole drafts of a policy over the cache; None where they cannot be captured."""
        captured = self._captured
        return captured if captured is not None and captured.serves(policy, [s.request for s in sequences]) else None

    def unread(self, sequences: Many[Sequence]) -> list[list[int]]:
        """Return the tokens of each sequence that the next draft must read first, the newest always among them."""
        for slot, sequence in enumerate(sequences):
            self._cached[slot] = min(self._cached[slot], len(sequence.tokens) - 1)
        return [s.tokens[self._cached[slot] :] for slot, s in enumerate(sequences)]

    def note_drafted(self, sequences: Many[Sequence], forwards: int) -> None:
        """Note that captured work has read all of the sequences and drafted behind them."""
        self._note_read(sequences)
        self.forwards += forwards

    def draft_on_device(self, sequences: Many[Sequence], policy: TreePolicy) -> DeviceDraft:
        """Return the same trees, grown on the model's device without a read by the host."""
        layout = LayerLayout(
            [len(s.tokens) for s in sequences],
            self._cache,
            dtype=self._model.dtype,
            device=self._model.device,
            compact=policy.compact_nodes,
            seen_in=self._seen_in,
        )
        scorer = DevicePass(
            catch_up=lambda: self.catch_up(sequences),
            feed=self.feed,
            scores=lambda logits, paths: draft_scores(logits, sequences, paths),
            layout=layout,
            device=self._model.device,
        )
        return grow_on_device(policy, scorer, len(sequences))

    def _draft_captured(self, captured: CapturedGrowth, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        longest, requests = max(len(s.tokens) for s in sequences), [s.request for s in sequences]
        draft = captured.draft(self._catching_up(sequences), longest, policy, requests)
        self.note_drafted(sequences, len(draft.widths))
        return draft

    def read_prefixes(self, tokens: Many[int], lengths: Many[int]) -> None:
        """Let slot i hold the first lengths[i] of the tokens: many positions of one text at once."""
        for start in range(0, len(tokens), PREFILL_TOKENS):
            piece = tokens[start : start + PREFILL_TOKENS]
            self._feed_text(np.array([piece]), [start], take=np.array([len(piece) - 1]))
        self._cache.spread(len(lengths), len(tokens))
        self._cached[: len(lengths)] = lengths

    def rewind(self, lengths: Many[int]) -> bool:
        """Crop slot i to its first lengths[i] tokens; the rest is read again."""
        self._cached[: len(lengths)] = lengths
        return True

    def catch_up(self, sequences: Many[Sequence]) -> torch.Tensor:
        """Feed what was committed since the last round; return logits (batch, 1, vocabulary) behind it."""
        logits = self.read(self._catching_up(sequences))
        self._note_read(sequences)
        return logits

    def _catching_up(self, sequences: Many[Sequence]) -> ForwardInput:
        tokens, take = self._unread_rows(sequences)
        return self._text_step(tokens, self._cached[: len(tokens)], take=take, seen_in=self._seen_in)

    def _unread_rows(self, sequences: Many[Sequence]) -> tuple[Ints, Ints]:
        fresh = self.unread(sequences)
        if not self._can_read_together(max(map(len, fresh)), len(sequences)):
            self.read_up(sequences)
            fresh = self.unread(sequences)
        counts = [len(new) for new in fresh]
        room = self._room_for(max(counts), sequences)
        tokens = np.array([new + [0] * (room - count) for new, count in zip(fresh, counts, strict=True)])
        return tokens, np.array([count - 1 for count in counts])

    def _room_for(self, count: int, sequences: Many[Sequence]) -> int:
        """Return how many tokens per row to feed; captured forwards need few different numbers."""
        if self._seen_in is None:
            return count
        padded = 1 << (count - 1).bit_length()
        return padded if padded <= self._cache.capacity - max(self._cached[: len(sequences)]) else count

    def _note_read(self, sequences: Many[Sequence]) -> None:
        for slot, sequence in enumerate(sequences):
            self._cached[slot] = len(sequence.tokens)

    def feed(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward; return its logits."""
        self.forwards += 1
        return self._model.forward(step, self._cache)

    def read(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward over committed text; return its logits."""
        return self.feed(step)

    @property
    def finds_children(self) -> bool:
        """Whether one call may feed tokens and return the likeliest behind them."""
        return self._finds is not None

    def found_behind_text(self, sequences: Many[Sequence], count: int, draws: Draws | None) -> Found | None:
        """Feed what `catch_up` does and return the likeliest tokens behind it; None where one call cannot."""
        if self._finds is None:
            return None
        tokens, wanted = self._unread_rows(sequences)
        found = self._found(self._finds, tokens, 0, NO_NODES, wanted, count, draws)
        if found is not None:
            self._note_read(sequences)
        return found

    def found_behind_layer(
        self, tokens: Ints, depth: int, visible: Bools, count: int, draws: Draws | None
    ) -> Found | None:
        """Feed what `feed_layer` does and return the likeliest tokens behind each; None where one call cannot."""
        return None if self._finds is None else self._found(self._finds, tokens, depth - 1, visible, ALL, count, draws)

    def _found(
        self,
        model: FindsChildren,
        tokens: Ints,
        depth: int,
        visible: Bools,
        wanted: Ints,
        count: int,
        draws: Draws | None,
    ) -> Found | None:
        nodes = nodes_behind(self._cached[: len(tokens)], tokens, depth, visible, wanted, draws)
        self._cache.require(nodes.seen)
        found = model.found(nodes, count, self._cache)
        self.forwards += found is not None
        return found

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
            masks=self._masks,
            seen_in=self._seen_in,
        )
        return self.feed(step)

    def _can_read_together(self, fresh: int, batch: int) -> bool:
        """Whether one forward, with rows padded to the longest, should read the new tokens."""
        return fresh <= min(self._cache.capacity - max(self._cached[:batch]), READ_TOGETHER)

    def read_up(self, sequences: Many[Sequence]) -> None:
        """Feed all but the newest token of every sequence, one sequence at a time."""
        for slot, sequence in enumerate(sequences):
            self.read_along(slot, sequence.tokens[:-1], self._cached[slot])

    def _feed_text(self, tokens: Ints, contexts: Many[int], *, take: Ints, first_slot: int = 0) -> torch.Tensor:
        return self.read(self._text_step(tokens, contexts, take=take, first_slot=first_slot))

    def _text_step(
        self,
        tokens: Ints,
        contexts: Many[int],
        *,
        take: Ints,
        first_slot: int = 0,
        seen_in: Callable[[int], int] | None = None,
    ) -> ForwardInput:
        count = tokens.shape[1]
        return lay_out(
            tokens,
            np.arange(count),
            contexts,
            chain_sight(count),
            take=take,
            first_slot=first_slot,
            dtype=self._model.dtype,
            device=self._model.device,
            masks=self._masks,
            seen_in=seen_in,
        )
