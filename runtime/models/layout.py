"""Lay new tokens of several sequences out for one forward: positions, cache columns, mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...planner.kernels.arrays import Bools, Ints
from ...planner.records.room import masked_tokens
from ...profiler.records.role import CAPTURED
from ..batch.transfer import sent
from ..kernels.trees import pack, place_and_show, place_layer, uncover, whole
from .forward import TREE_ATTENTION, WORD, CausalModel, ForwardInput, packed_input, packed_size


class Arena:
    """Hands out overlapping views: the last write decides. Older views stay valid when it grows, on their memory."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = torch.empty(0, dtype=dtype, device=device)
        self._size = 0
        self._numbers: NDArray[Any] | None = None

    def reserve(self, size: int) -> None:
        """Make room for views of `size` numbers, and for no more."""
        if size > self._size:
            self._grow(size)

    def fit(self, size: int) -> None:
        """Make room for views of `size` numbers; at least double where it grows."""
        if size > self._size:
            self._grow(max(size, 2 * self._size))

    def view(self, shape: Sequence[int]) -> Tensor:
        """Return a contiguous view of that shape with any content."""
        size, steps = 1, [0] * len(shape)
        for place in range(len(shape) - 1, -1, -1):
            steps[place] = size
            size *= shape[place]
        self.fit(size)
        return self._flat.as_strided(tuple(shape), steps)  # one call; most views are made behind a forward

    def numbers(self, kind: torch.dtype) -> NDArray[Any]:
        """Return all of it, (any,), as another type of the same size; on the host, valid until it grows."""
        if self._numbers is None:
            self._numbers = self._flat.view(kind).numpy()
        return self._numbers

    def _grow(self, size: int) -> None:
        self._flat, self._size, self._numbers = self._flat.new_empty(size), size, None


PREFILL_TOKENS = 512  # longest piece of a text read at once
MOST_SHAPES = 64  # of trees whose places are kept ready
GRAPH_STEP = 128  # cache positions in sight of captured forwards that take a mask are a multiple of this


class PackedTrees:
    """Inputs of captured forwards on the host, in memory reused by every round: few shapes of trees recur."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int], tuple[Ints, ForwardInput]] = {}

    def of(self, trees: tuple[Ints, Ints, Ints], nodes: int, ends: Ints, fed: int, seen: int) -> ForwardInput:
        """Return the input with a tree instead of a mask; valid until the next call.

        `trees` are tokens, parents and depths, (batch, any), parents before children, of which the first `nodes`
        columns are fed, padded to `fed` tokens below the root. `ends` is (2, batch): each root's token, and cached
        tokens. `seen` is the cache positions in sight.
        """
        key = ends.shape[1], fed, seen
        packed, step = self._kept[key] if key in self._kept else self._made(*key)
        tokens, parents, depths = (whole(part) for part in trees)
        pack(tokens, depths, parents, nodes, ends, fed, packed)
        return step

    def _made(self, batch: int, fed: int, seen: int) -> tuple[Ints, ForwardInput]:
        if len(self._kept) == MOST_SHAPES:
            self._kept.clear()
        words = -(-fed // WORD)
        packed = torch.empty(packed_size(batch, fed, words, takes=False), dtype=torch.int64)
        step = packed_input(packed, batch, fed, words, seen=seen, first_slot=0, takes=False)
        found = self._kept[batch, fed, seen] = packed.numpy(), step
        return found


class Masks:
    """The mask of a forward, in memory that is allocated once and rewritten for every forward.

    There is room for n tokens of every slot, or a few more, that see the whole cache, so the memory does not grow with
    the text. On a CPU the mask is written where it is read. On a GPU torch pins the host's part, so that no copy waits.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, *, slots: int = 1, capacity: int = 0) -> None:
        """Allocate nothing yet; with `capacity` 0 the memory grows to the largest mask."""
        self.dtype, self.device = dtype, device
        self._slots, self._capacity = slots, capacity
        self.packed = PackedTrees()  # of captured forwards, which have no masks
        kind = dtype if device.type == "cpu" else torch.float32
        self._host = Arena(kind, torch.device("cpu"))
        self._device = None if device.type == "cpu" else Arena(dtype, device)
        self._written = torch.int16 if kind.itemsize == 2 else kind  # numpy knows no bf16, but its bits
        self._open, self._shut = torch.tensor([0.0, -torch.inf], dtype=kind).view(self._written).numpy()

    def prepare(self) -> None:
        """Load and compile what writes masks, so that no round waits; read-only arrays are a type of their own."""
        for visible in (np.ones((1, 1, 1), dtype=np.bool_), chain_sight(1)):
            self.mask([0], visible, 1)

    def mask(self, contexts: Sequence[int] | Ints, visible: Bools, seen: int) -> torch.Tensor:
        """Return (batch, n, seen): 0 on the context and the visible nodes, -inf elsewhere; valid until the next."""
        shape = len(contexts), visible.shape[1], seen
        ends = np.asarray(contexts, dtype=np.int64)
        uncover(np.ascontiguousarray(visible), ends, self._open, self._shut, self._written_to(shape), seen)
        return self._read_from(shape)

    def of_trees(self, trees: tuple[Ints, Ints, Ints], nodes: int, ends: Ints, placed: Ints, seen: int) -> torch.Tensor:
        """Return `mask` of trees, (batch, fed, seen), padded below the root; write tokens and places to `placed`."""
        tokens, parents, depths = (whole(part) for part in trees)
        shape = *placed.shape[1:], seen
        written = self._written_to(shape)
        place_and_show(tokens, depths, parents, nodes, ends, placed, self._open, self._shut, written, seen)
        return self._read_from(shape)

    def _written_to(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the flat memory to which the host writes a mask of (rows, count, seen)."""
        rows, count, seen = shape
        most = 1 if rows == 1 else self._slots  # a prompt is read alone, in longer pieces
        for arena in (self._host,) if self._device is None else (self._host, self._device):
            arena.reserve(most * masked_tokens(count) * self._capacity)
            arena.fit(rows * count * seen)
        return self._host.numbers(self._written)

    def _read_from(self, shape: tuple[int, ...]) -> torch.Tensor:
        written = self._host.view(shape)
        if self._device is None:
            return written
        placed = self._device.view(shape)
        return placed.copy_(written.pin_memory() if placed.device.type == "cuda" else written, non_blocking=True)


def seen_by(model: CausalModel, capacity: int) -> Callable[[int], int] | None:
    """Return how a captured forward rounds the cache positions it needs; None: none is captured.

    Few different numbers result, since each is captured by itself. A model that reads trees never looks beyond each
    text: its number is always the whole cache, so one capture serves every context.
    """
    if model.regime != CAPTURED:
        return None
    if model.attention == TREE_ATTENTION:
        return lambda positions: capacity
    return lambda positions: min(-(-positions // GRAPH_STEP) * GRAPH_STEP, capacity)


def lay_out(
    tokens: Ints,  # (batch, n) ids
    depths: Ints,  # (batch, n) or (n,), distance from the first token behind the context
    contexts: Sequence[int],  # (batch,) committed tokens in the cache, per row
    visible: Bools,  # (batch or 1, n, written + n), which nodes behind the context each sees; `chain_sight` for texts
    *,
    dtype: torch.dtype,
    device: torch.device,
    written: int = 0,  # nodes behind the context that are in the cache already
    take: Ints | None = None,  # (batch,) the only token of each row whose output is wanted
    first_slot: int = 0,
    masks: Masks | None = None,  # memory for the mask, valid until the next; fresh memory where None
    seen_in: Callable[[int], int] | None = None,
) -> ForwardInput:
    """Return the forward's input for new nodes behind each row's context.

    Args:
        seen_in: see `seen_by`; the input is then packed, on the host, with a tree instead of a mask.
    """
    count = tokens.shape[1]
    starts, first, longest = np.array(contexts, dtype=np.int64), min(contexts), max(contexts)
    ends = int(longest) + written + count
    placed = np.empty((3, *tokens.shape), dtype=np.int64)
    place_layer(whole(tokens), depths.reshape(-1, count), starts, written, placed)
    if seen_in is not None:
        parts = placed, starts, _bits_of(visible, len(starts))
        return _packed(parts, take, seen=seen_in(ends), first_slot=first_slot)
    fed, positions, columns = sent(placed, device).unbind()
    if count == 1 and first == longest and (written == 0 or visible.all()):  # several do not see each other
        bias = None
    elif device.type != "cpu" and written == 0 and visible is chain_sight(count):
        bias = _up_to(columns, ends, dtype)
    else:
        bias = (masks or Masks(dtype, device)).mask(starts, visible, ends)
    return ForwardInput(
        tokens=fed,
        positions=positions,
        columns=columns,
        bias=bias,
        seen=ends,
        take=None if take is None else sent(take, device),
        first_slot=first_slot,
    )


def _up_to(columns: torch.Tensor, seen: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the mask of texts, (batch, n, seen), computed on the columns' device: the host sends none."""
    is_later = torch.arange(seen, device=columns.device) > columns.unsqueeze(2)
    return torch.zeros(is_later.shape, dtype=dtype, device=columns.device).masked_fill_(is_later, -torch.inf)


def _packed(parts: Sequence[Ints], take: Ints | None, *, seen: int, first_slot: int) -> ForwardInput:
    batch, count, words = parts[-1].shape
    packed = torch.from_numpy(np.concatenate([part.ravel() for part in (*parts, *(() if take is None else (take,)))]))
    return packed_input(packed, batch, count, words, seen=seen, first_slot=first_slot, takes=take is not None)


def lay_out_text(
    model: CausalModel, tokens: Sequence[int], start: int = 0, *, takes_last: bool = False, slot: int = 0
) -> ForwardInput:
    """Return the input of tokens that go on with one text behind `start` cached ones; the last output, or all."""
    count = len(tokens)
    return lay_out(
        np.array([tokens], dtype=np.int64),
        np.arange(count),
        [start],
        chain_sight(count),
        take=np.array([count - 1]) if takes_last else None,
        first_slot=slot,
        dtype=model.dtype,
        device=model.device,
    )


def _bits_of(visible: Bools, batch: int) -> Ints:
    """Return (batch, n, words) int64: bit c % 64 of word c // 64 is set where a node sees the c-th one."""
    rows, count, columns = visible.shape
    words = -(-columns // WORD)
    whole = np.zeros((rows, count, words * WORD), dtype=np.bool_)
    whole[:, :, :columns] = visible
    bits = np.packbits(whole, axis=2, bitorder="little").view("<i8")
    return bits if rows == batch else np.broadcast_to(bits, (batch, count, words))


def ancestors(parents: Ints) -> Bools:
    """Return (batch, n, n), or (1, n, n) for chains: True where a node sees itself or an ancestor."""
    batch, count = parents.shape
    before, seen_in_chains = np.arange(-1, count - 1), chain_sight(count)
    if (parents == before).all():
        return seen_in_chains
    size = -(-count // 8)  # bytes of a node's line, as numbers of any length: far cheaper than lines of an array
    lines: list[bytes] = []
    for row in parents.tolist():
        seen = [1]
        for node in range(1, count):
            seen.append(seen[row[node]] | 1 << node)
        lines.extend(bits.to_bytes(size, "little") for bits in seen)
    packed = np.frombuffer(b"".join(lines), dtype=np.uint8).reshape(batch, count, size)
    return np.unpackbits(packed, axis=2, count=count, bitorder="little").view(np.bool_)


@lru_cache(maxsize=64)
def chain_sight(count: int) -> Bools:
    """Return what tokens of a text or chain see of each other, (1, n, n); read-only."""
    seen = np.tri(count, dtype=np.bool_)[None]
    seen.flags.writeable = False
    return seen


def widened(array: Ints, nodes: int, fed: int) -> Ints:
    """Return a copy of (batch, any) with `fed` columns: the first `nodes`, then padding of zeros."""
    wide = np.zeros((len(array), fed), dtype=np.int64)
    wide[:, :nodes] = array[:, :nodes]
    return wide
