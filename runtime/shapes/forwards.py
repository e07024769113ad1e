"""Forwards of any shape, run as the decoder runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ...errors import MeasurementError
from ...planner.kernels.arrays import Bools, Ints
from ...profiler.records.role import RESUME
from ..batch.faults import is_out_of_memory
from ..models.exit import ExitModel
from ..models.forward import CausalModel, ForwardInput, LeftStates
from ..models.kv_cache import KeyValueCache
from ..models.layout import ancestors, chain_sight, lay_out, seen_by

STEP = 256  # tokens: shapes of nearly one size share a cache


class ShapeCaches:
    """Caches filled with noise: one for all shapes wherever there is memory for it."""

    def __init__(self, model: CausalModel, *, slots: int, capacity: int) -> None:
        """Try to allocate a cache for the largest batch and context to be timed."""
        self._model, self._capacity = model, capacity
        self._whole: KeyValueCache | None = None
        self._held: WeakKeyDictionary[KeyValueCache, int] = WeakKeyDictionary()  # the capacity that was asked for
        try:
            self._whole = self._new(slots, capacity)
        except Exception as error:
            if not is_out_of_memory(error):
                raise

    def holding(self, batch: int, columns: int) -> KeyValueCache:
        """Return a cache for `columns` positions of each sequence, which the caller must hold; fails without memory."""
        if self._whole is not None:
            return self._whole
        fitting = [cache for cache, room in self._held.items() if cache.slots >= batch and room >= columns]
        if fitting:
            return max(fitting, key=lambda cache: cache.slots * cache.capacity)
        capacity = min(-(-columns // STEP) * STEP, self._capacity)
        cache = self._new(batch, capacity)
        self._held[cache] = capacity
        return cache

    def _new(self, slots: int, capacity: int) -> KeyValueCache:
        cache = self._model.new_cache(slots, capacity)
        cache.states.normal_()
        return cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the cache and the positions of a model hold."""

    slots: int
    capacity: int  # tokens per slot
    longest_context: int  # places in a text

    def require(self, *, batch: int, columns: int, place: int) -> None:
        """Raise MeasurementError unless a shape of `columns` cache positions per sequence fits.

        `place` is the last one of the text itself. Drafts after it may reach beyond the model's positions, as a
        decoder's do at the end of a text: forwards take the last position for them.
        """
        if batch > self.slots or columns > self.capacity:
            raise MeasurementError(
                f"batch {batch} with {columns} tokens each exceeds {self.slots} slots of {self.capacity}; "
                "measure smaller shapes"
            )
        if place >= self.longest_context:
            raise MeasurementError(
                f"a token at place {place} lies behind the model's longest context of {self.longest_context}; "
                "measure shorter contexts"
            )

    def longest_before(self, columns: int) -> int:
        """Return the longest context before tokens that take so many cache positions per sequence."""
        return max(min(self.capacity - columns, self.longest_context - 1), 0)


EARLIER_LAYERS = 2  # of a draft tree, in the cache already when a drafter reads a layer of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New tokens after a context: their depths and what they see."""

    depths: Ints  # (n,)
    visible: Bools  # (1, n, written + n), which of the nodes behind the context each sees
    written: int = 0  # nodes behind the context that are in the cache already

    @property
    def tokens(self) -> int:
        """Tokens per sequence the forward reads."""
        return len(self.depths)

    @property
    def room(self) -> int:
        """Cache positions it needs after the context."""
        return self.written + self.tokens


def whole_tree(nodes: int) -> Piece:
    """Return a tree as a target verifies it, root included; 1 and 2 nodes are a chain."""
    places = np.arange(nodes)
    parents = np.where(places > 0, (places - 1) // 2, -1)
    depths = np.floor(np.log2(places + 1)).astype(np.int64)
    return Piece(depths=depths, visible=ancestors(parents[None]))


def chain(nodes: int) -> Piece:
    """Return a chain as a target verifies it, root included."""
    return Piece(depths=np.arange(nodes), visible=chain_sight(nodes))


def tree_layer(width: int) -> Piece:
    """Return a layer as a drafter reads it: each node sees its one ancestor in every layer above, and itself."""
    own = np.eye(width, dtype=np.bool_)
    return Piece(
        depths=np.full(width, EARLIER_LAYERS, dtype=np.int64),
        visible=np.concatenate([own] * (EARLIER_LAYERS + 1), axis=1)[None],
        written=EARLIER_LAYERS * width,
    )


class ForwardShapes:
    """One model in one role, on shared caches: a target verifies a whole tree, a drafter reads one layer of a tree."""

    def __init__(
        self,
        model: CausalModel,
        *,
        identity: str,
        dtype: str,
        role: str,
        slots: int,
        capacity: int,
        caches: ShapeCaches | None = None,
    ) -> None:
        self.identity, self.dtype, self.role = identity, dtype, role
        self.regime, self.attention = model.regime, model.attention
        self._model = model
        self.caches = caches or ShapeCaches(model, slots=slots, capacity=capacity)
        self._room = Room(slots=slots, capacity=capacity, longest_context=model.longest_context)

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that runs one forward of the shape; the cache does not change.

        The input is laid out here, its mask once for all rows, to hold many calls. The first call captures or compiles.
        MeasurementError where the shape does not fit into the cache or the model's positions; Exception where there is
        no memory for a cache of that size.
        """
        piece = self._piece(tokens)
        columns = context_tokens + piece.room
        self._room.require(batch=batch, columns=columns, place=context_tokens)
        cache = self.caches.holding(batch, columns)
        step = self._step(batch, context_tokens, piece, cache)

        def run() -> None:
            self._model.forward(step, cache)

        return run

    def longest_before(self, tokens: int) -> int:
        """Return the longest context before so many tokens; later rounds of a text cost what they cost there."""
        return self._room.longest_before(self._piece(tokens).room)

    def wait(self) -> None:
        """Return when the device has finished its work."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

    def _piece(self, tokens: int) -> Piece:
        return whole_tree(tokens) if self.role == "verify" else tree_layer(tokens)

    def _step(self, batch: int, context_tokens: int, piece: Piece, cache: KeyValueCache) -> ForwardInput:
        """Return the input of all rows: laid out for one, and repeated."""
        drawn = np.random.default_rng(0).integers(0, self._model.vocabulary, (batch, piece.tokens))
        seen_in = seen_by(self._model, cache.capacity)
        if seen_in is not None:  # no mask to keep once
            return self._laid_out(drawn, [context_tokens] * batch, piece, seen_in)
        row = self._laid_out(drawn[:1], [context_tokens], piece, None)
        bias = None if row.bias is None else row.bias.expand(batch, -1, -1)
        parts = torch.from_numpy(drawn), row.positions.cpu().repeat(batch, 1), row.columns.cpu().repeat(batch, 1)
        tokens, positions, columns = torch.stack(parts).to(self._model.device)
        return replace(row, tokens=tokens, positions=positions, columns=columns, bias=bias)

    def _laid_out(
        self, tokens: Ints, contexts: list[int], piece: Piece, seen_in: Callable[[int], int] | None
    ) -> ForwardInput:
        return lay_out(
            tokens,
            piece.depths,
            contexts,
            piece.visible,
            written=piece.written,
            dtype=self._model.dtype,
            device=self._model.device,
            seen_in=seen_in,
        )


class ResumedShapes(ForwardShapes):
    """A target that reads chains of which its exit has read all tokens but the last, as the decoder runs it.

    That token goes through the exit's layers, without a head; then all go through the other layers and the head.
    """

    def __init__(
        self,
        model: ExitModel,
        *,
        identity: str,
        dtype: str,
        slots: int,
        capacity: int,
        caches: ShapeCaches | None = None,
    ) -> None:
        super().__init__(
            model.target, identity=identity, dtype=dtype, role=RESUME, slots=slots, capacity=capacity, caches=caches
        )
        self._exit, self._target = model, model.target

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        """Return a call that verifies chains of so many tokens, roots included; all states but the last are noise.

        MeasurementError where the shape does not fit into the cache or the model's positions; Exception where there is
        no memory for a cache of that size.
        """
        last = context_tokens + tokens - 1
        self._room.require(batch=batch, columns=last + 1, place=context_tokens)
        cache = self.caches.holding(batch, last + 1)
        unread = self._step(batch, last, chain(1), cache)
        whole = self._step(batch, context_tokens, chain(tokens), cache)
        model, lower = self._target, cache.first(self._exit.exit_layer)
        states = torch.randn(batch, tokens, model.hidden).to(cache.states)
        left = LeftStates(owner=model, layers=self._exit.exit_layer, states=states)

        def run() -> None:
            self._exit.leave(unread, lower, states[:, -1])
            model.resume(whole, cache, left)

        return run

    def _piece(self, tokens: int) -> Piece:
        return chain(tokens)
