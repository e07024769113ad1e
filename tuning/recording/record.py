"""Record what a drafter would draw at every position of the target's own text: every node that a recipe's trees expand.

A policy whose tree only expands recorded nodes then replays exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError, NoRoomError
from ...planner.records.draft import Children, Ints
from ...profiler.protocols import Parts
from ...profiler.records.acceptance import PromptTrace
from ...runtime.batch.faults import memory_for
from ...runtime.batch.sequence import Request
from ...runtime.models.block import BlockHead
from ...runtime.models.forward import CausalModel
from ...runtime.models.recycling import RecyclingHead
from ..parts import kept_or_made
from .block_pass import BlockTextPass
from .node_cache import NodeCache
from .portion import WHOLE, Portion
from .recipe import Recipe
from .recycling_pass import RecyclingTextPass
from .text_pass import TextPass
from .union import ExpandedLayer, grow_union

AnyPass = TextPass | BlockTextPass | RecyclingTextPass


def record_prompts(
    drafter: CausalModel,
    texts: Sequence[tuple[Request, Sequence[int]]],
    recipe: Recipe,
    positions: Sequence[Sequence[int]] | None = None,
    *,
    parts: Parts | None = None,
    name: str = "drafter",
    progress: Callable[[float], None] | None = None,
) -> tuple[PromptTrace, ...]:
    """Return a drafter's recording along the target's texts: requests and continuations of at least 2 tokens each.

    The drafter has the number format it will draft in; traces in float32 and float64 replay exactly. Trees are recorded
    at `positions`, per text, or at all; elsewhere only the root's children. `parts` get finished prompts as "trace NAME
    0", ..., and spare recording them again. MeasurementError if a stored part is of another text or another recipe.
    """
    recorder = Recorder(drafter, recipe, longest=max(len(asked.prompt) + len(text) for asked, text in texts))
    found = []
    for place, (asked, text) in enumerate(texts):
        at = None if positions is None else positions[place]
        made = kept_or_made(parts, f"trace {name} {place}", PromptTrace, partial(recorder.record, asked, text, at))
        if (made.prompt, made.continuation) != (asked.prompt, tuple(text)):
            raise MeasurementError(f"the stored trace {name} {place} is of another text; start over with --fresh")
        found.append(made)
        if progress is not None:
            progress((place + 1) / len(texts))
    return tuple(found)


class Recorder:
    """Records one drafter, prompt by prompt; less at once from where memory was short."""

    def __init__(self, drafter: CausalModel, recipe: Recipe, *, longest: int, portion: Portion = WHOLE) -> None:
        self._drafter, self._recipe, self._longest, self._portion = drafter, recipe, longest, portion
        self._pass: AnyPass | None = None

    def record(
        self, request: Request, continuation: Sequence[int], positions: Sequence[int] | None = None
    ) -> PromptTrace:
        """Return the trace of one prompt and the target's own continuation of it, at least 2 tokens.

        Trees are recorded at `positions`, ascending, or at all; elsewhere only the root's children. NoRoomError where
        memory has no room for a single position's tree.
        """
        while True:
            try:
                with memory_for("recording a text", "free some, or ask for shorter texts with --max-new-tokens"):
                    return self._record(request, continuation, positions)
            except NoRoomError:
                less = self._portion.halved
                if less is None:
                    raise
            self._pass, self._portion = None, less

    def _record(self, request: Request, continuation: Sequence[int], positions: Sequence[int] | None) -> PromptTrace:
        if self._pass is None:
            self._pass = pass_of(self._drafter, self._longest, self._recipe.children, self._portion)
        first, own = len(request.prompt), np.array(continuation, dtype=np.int64)
        roots = self._pass.read([*request.prompt, *continuation[:-1]], request)
        everywhere = np.arange(len(own) - 1)
        wanted = everywhere if positions is None else np.array(positions, dtype=np.int64)
        bare = np.setdiff1d(everywhere, wanted)
        layers = grow_union(_forest(self._pass, roots, own, bare), (), own, bare)
        for start in range(0, len(wanted), self._portion.rows):
            rows = wanted[start : start + self._portion.rows]
            self._pass.stand((first + rows + 1).tolist())
            layers += grow_union(_forest(self._pass, roots, own, rows), self._recipe.trees, own, rows)
        return _assembled(request.prompt, tuple(continuation), layers)


def pass_of(drafter: CausalModel, longest: int, children: int, portion: Portion = WHOLE) -> AnyPass:
    """Return what reads texts of `longest` tokens at most with a drafter, and says so many children of each node."""
    if isinstance(drafter, BlockHead):
        return BlockTextPass(drafter, longest=longest, children=children)
    if isinstance(drafter, RecyclingHead):
        return RecyclingTextPass(drafter, longest=longest, children=children)
    return TextPass(drafter, longest=longest, children=children, portion=portion)


def _forest(drafter: AnyPass, roots: Children, continuation: Ints, positions: Ints) -> NodeCache:
    """Return the roots at some positions, each joined to the next position's where that is among them.

    Heads are not joined: below the target's token they draft on their own feature. Nor are block drafters, which say
    there what they said one token earlier, nor recycled ones, which know a row less.
    """
    tokens = roots.tokens[:, positions]
    is_next = tokens[0] == continuation[positions + 1][:, None]
    is_joined = is_next[:-1].any(axis=1) & (np.diff(positions) == 1)
    joined = np.flatnonzero(is_joined & drafter.is_of_text_alone)
    own = Children(tokens=tokens, log_probs=roots.log_probs[:, positions])
    return NodeCache(drafter, own, joined, is_next[joined].argmax(axis=1))


def _assembled(prompt: tuple[int, ...], continuation: tuple[int, ...], layers: list[ExpandedLayer]) -> PromptTrace:
    positions = np.concatenate([layer.positions for layer in layers])
    order = np.argsort(positions, kind="stable")  # position by position, layers top down

    def together(name: str) -> NDArray[Any]:
        joined: NDArray[Any] = np.concatenate([getattr(layer, name) for layer in layers])[order]
        return joined

    counts = np.bincount(positions, minlength=len(continuation) - 1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    hits = together("hit_ranks").astype(np.uint8)
    return PromptTrace(
        prompt=prompt,
        continuation=continuation,
        next_rank=hits[offsets[:-1]],
        offsets=offsets,
        parent=together("parents").astype(np.int16),
        rank=together("ranks").astype(np.uint8),
        log_probs=together("log_probs"),
        hit_rank=hits,
    )
