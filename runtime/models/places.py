"""Where the new tokens of a forward lie in a cache, and what of it they see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ...planner.kernels.arrays import Ints
from .anatomy import Anatomy, Sight
from .bits import bits, is_kernels
from .forward import WORD, ForwardInput, TreeMask
from .products import STEP_BY_STEP, Products


class LayerStates(Protocol):
    """What a forward needs of a cache."""

    @property
    def states(self) -> Iterable[Tensor]:
        """One (slots, capacity, width) of keys and values per layer."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens per slot."""
        ...


@dataclass(frozen=True, kw_only=True)
class View:
    """What a forward's new tokens see in layers with the same sight, and how they are turned."""

    start: int  # first cache position in sight
    bias: Tensor | None  # (batch, 1, n * groups, seen - start)
    tree: TreeMask | None  # what tells it instead, and to a kernel that reads it
    window: int | None = None  # of what the tree tells, the last tokens that are seen; None: all
    positions: Tensor  # (batch, n), of the new tokens in the text
    sight: Sight

    @property
    def table(self) -> Tensor:
        """(places, 2 * size): cosines, then signed sines, of every place in a text."""
        return self.sight.turns

    @cached_property
    def turns(self) -> Tensor:
        """The new tokens' lines of the table, (batch, n, 1, 2 * size)."""
        return _turns_at(self.positions, self.sight).unsqueeze(2)

    @property
    def cosine(self) -> Tensor:
        """(batch, n, 1, size)."""
        return self.turns[..., : self.turns.shape[-1] // 2]

    @property
    def sine(self) -> Tensor:
        """(batch, n, 1, size), signed."""
        return self.turns[..., self.turns.shape[-1] // 2 :]

    @cached_property
    def turn_bits(self) -> NDArray[Any]:
        """The turns for kernels on a CPU, (batch * n, 2 * size)."""
        return bits(self.turns.view(-1, self.turns.shape[-1]))

    @cached_property
    def bias_bits(self) -> NDArray[Any]:
        """The bias for kernels on a CPU, (batch, n * groups, seen - start), or (batch, 1, 0) for none."""
        return bits(
            self.turns.new_empty((len(self.turns), 1, 0)) if self.bias is None else self.bias[:, 0].contiguous()
        )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the new tokens of one forward lie in a cache."""

    slots: slice
    columns: Tensor  # (batch, n), of each row's slot
    capacity: int  # columns of a slot
    seen: int  # cache positions in sight, new tokens included
    views: list[View]  # one per way of looking at the text
    products: Products = STEP_BY_STEP  # how layers multiply
    is_shared: bool = False  # whether several threads share loops of kernels on a CPU

    @cached_property
    def rows(self) -> Tensor:
        """(batch * n,), where the new tokens are written among the cache's slots * capacity rows."""
        return _rows(self.columns, self.slots.start, self.capacity)

    @cached_property
    def column_numbers(self) -> Ints:
        """The columns for kernels on a CPU, (batch * n,)."""
        numbers: Ints = self.columns.numpy().reshape(-1)
        return numbers


def views_of(step: ForwardInput, anatomy: Anatomy, first: int, *, reads_trees: bool) -> list[View]:
    """Return one view per sight; without a bias tokens see the text from cache column `first` on."""
    bias, groups = step.bias, anatomy.heads // anatomy.kv_heads
    trees = [_tree_of(sight, step) if reads_trees else None for sight in anatomy.sights]
    if step.tree is not None and None in trees:
        bias = step.tree.bias(step.seen, anatomy.embedding.dtype)
    ways = list(zip(anatomy.sights, trees, strict=True))
    masks: dict[int | None, Tensor] = {}
    if bias is not None:  # one for all that see alike here: in a short text, windows close nothing
        needed = {_window_of(sight, step) for sight, tree in ways if tree is None}
        masks = {window: _folded(bias, window, groups) for window in needed}
    return [_view(sight, step, tree, masks, first) for sight, tree in ways]


def _window_of(sight: Sight, step: ForwardInput) -> int | None:
    """Return how many tokens are seen at most; None for the whole text."""
    return sight.window if sight.window is not None and sight.window < step.seen else None


def _folded(bias: Tensor, window: int | None, groups: int) -> Tensor:
    """Return (batch, 1, n * groups, seen): every token's line, once per query head folded into its rows."""
    if window is not None:
        bias = windowed(bias, window)
    batch, count, seen = bias.shape
    return bias.unsqueeze(2).expand(-1, -1, groups, -1).reshape(batch, 1, count * groups, seen)


def _tree_of(sight: Sight, step: ForwardInput) -> TreeMask | None:
    """Return the tree for our kernel; None where there is none, or it may outgrow the window."""
    tree = step.tree
    if tree is None or sight.window is None or sight.window >= min(step.seen, tree.bits.shape[2] * WORD):
        return tree
    return None


def _view(
    sight: Sight, step: ForwardInput, tree: TreeMask | None, masks: Mapping[int | None, Tensor], first: int
) -> View:
    window = _window_of(sight, step)
    if tree is not None:  # its kernel looks no further than the table goes
        return View(start=0, bias=None, tree=tree, window=window, positions=step.positions, sight=sight)
    positions = _within(step, len(sight.turns))
    if not masks:
        start = first if window is None else max(first, step.seen - window)
        return View(start=start, bias=None, tree=None, positions=positions, sight=sight)
    return View(start=0, bias=masks[window], tree=None, positions=positions, sight=sight)


def rows_of(step: ForwardInput, cache: LayerStates) -> Tensor:
    """Return (batch * n,): where the new tokens of a forward are written, among slots * capacity rows."""
    return _rows(step.columns, step.first_slot, cache.capacity)


def _rows(columns: Tensor, first_slot: int, capacity: int) -> Tensor:
    first = first_slot * capacity
    starts = torch.arange(first, first + len(columns) * capacity, capacity, device=columns.device)
    return (starts.unsqueeze(1) + columns).view(-1)


def _turns_at(positions: Tensor, sight: Sight) -> Tensor:
    """Return (batch, n, 2 * size) of the table's lines at positions (batch, n)."""
    if not is_kernels(sight.turns):
        return F.embedding(positions, sight.turns)
    turns = sight.turns.new_empty((*positions.shape, sight.turns.shape[1]))
    np.take(sight.turn_bits, positions.numpy(), axis=0, out=bits(turns), mode="clip")  # half the time of torch's
    return turns


def _within(step: ForwardInput, places: int) -> Tensor:
    """Return positions in a table of `places`: beyond lie drafts that no text reaches, or texts too long to draft."""
    return step.positions if step.seen <= places else step.positions.clamp(max=places - 1)


def windowed(bias: Tensor, window: int) -> Tensor:
    """Return a mask (..., seen) of 0 and -inf, closed before the last `window` >= 1 tokens that each token sees.

    A token sees one cached token per place of its text, in order, itself last (see `ForwardInput`). So how far back a
    token lies is how many seen ones follow it.
    """
    count = (bias == 0).cumsum(-1, dtype=torch.int32)
    return bias.masked_fill(count[..., -1:] - count >= window, -torch.inf)
