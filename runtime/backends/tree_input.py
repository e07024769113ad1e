"""The trees of a round as its target reads them: equally many tokens of every sequence, in one forward."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import cached_property

import numpy as np

from ...planner.kernels.arrays import Bools, Ints
from ...planner.records.draft import DraftBatch
from ..batch.sequence import Sequence
from ..batch.transfer import sent
from ..models.forward import ForwardInput
from ..models.layout import Masks, ancestors, widened
from ..sampling.filters import tree_paths

ALONE: Bools = np.ones((1, 1, 1), dtype=np.bool_)  # what a root sees of the nodes behind its text


class TreeInput:
    """A batch of well-formed trees, each padded to `num_tokens` tokens, its root included; computed on demand."""

    def __init__(self, batch: Many[Sequence], draft: DraftBatch, num_tokens: int) -> None:
        self._batch, self._draft, self.num_tokens = batch, draft, num_tokens
        self._nodes = max(draft.sizes.tolist())
        self.contexts = [s.context for s in batch]

    @cached_property
    def tokens(self) -> Ints:
        """(batch, num_tokens), roots included; -1 where a tree is smaller than the largest."""
        tokens = widened(self._draft.tokens, self._nodes, self.num_tokens)
        tokens[:, 0] = self._roots
        return tokens

    @cached_property
    def depths(self) -> Ints:
        """(batch, num_tokens)."""
        return widened(self._draft.depths, self._nodes, self.num_tokens)

    @cached_property
    def sees(self) -> Bools:
        """(batch, num_tokens, num_tokens), or (1, num_tokens, num_tokens) where all are chains."""
        return ancestors(widened(self._draft.parents, self._nodes, self.num_tokens))

    @property
    def paths(self) -> Ints | None:
        """Each node's own path, None where no request penalises repetition; see `sampling.tree_paths`."""
        if not any(s.request.penalises for s in self._batch):
            return None
        return tree_paths(self._batch, self.tokens, self.sees)

    def laid_out(self, masks: Masks, seen_in: Callable[[int], int] | None = None) -> ForwardInput:
        """Return the forward's input; for `seen_in` see `layout.lay_out`."""
        ends, seen = self._ends, self._seen
        batch, draft = len(self.contexts), self._draft
        if seen_in is not None:
            trees = draft.tokens, draft.parents, draft.depths
            return masks.packed.of(trees, self._nodes, ends, self.num_tokens, seen_in(seen))
        placed = np.empty((3, batch, self.num_tokens), dtype=np.int64)
        if self.num_tokens == 1:
            placed[0, :, 0], placed[1, :, 0], placed[2, :, 0] = ends[0], ends[1], ends[1]
            is_open = min(self.contexts) == max(self.contexts)
            bias = None if is_open else masks.mask(self.contexts, ALONE, seen)
        else:
            bias = masks.of_trees((draft.tokens, draft.parents, draft.depths), self._nodes, ends, placed, seen)
        tokens, positions, columns = sent(placed, masks.device).unbind()
        return ForwardInput(tokens=tokens, positions=positions, columns=columns, bias=bias, seen=seen)

    @property
    def _ends(self) -> Ints:
        """Tokens of the roots and numbers of cached tokens, (2, batch)."""
        return np.array([self._roots, self.contexts], dtype=np.int64)

    @property
    def _seen(self) -> int:
        return max(self.contexts) + self.num_tokens

    @property
    def _roots(self) -> list[int]:
        return [s.tokens[-1] for s in self._batch]
