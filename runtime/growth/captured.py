"""Whole drafts as CUDA graphs: reading what was committed and growing the tree cost the host one launch.

Growing reads nothing from the device, so all of it can be captured: the host's part of a draft, dozens of small calls
per layer, is done once per shape and policy. Everything else that a draft depends on must be in its key or lie on the
device, as the noise of sampled drafts does; a penalty of repetition depends on the text, and is neither. The host does
not learn of a tree's end in captured work, so as many layers are drafted as any tree could need: launching each layer
from the host takes longer than a few of them do.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy
from ...planner.strategies.chain import ChainPolicy
from ..batch.sequence import Request
from ..batch.transfer import Landing, host_memory, wait_for
from ..models.forward import CausalModel, ForwardInput, TreeMask
from ..models.graphed import GraphedModel, Replayed
from ..models.kernels import children
from ..models.kernels.tree_growth import MOST_CANDIDATES, CandidateBuffer, Frontier, LayerChildren, extend, finish
from ..models.kv_cache import KeyValueCache
from ..models.static_input import StaticInput
from ..sampling.captured_sampler import DeviceDraws, draws_ahead, kind_of
from .draft import batch_of, children_by_kernels
from .grow import grow_on_device
from .layout import LayerLayout, columns_of
from .scorer import DevicePass

if TYPE_CHECKING:
    from ...planner.strategies.eagle2 import Eagle2Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDraft:
    """Captured work that reads committed text and grows trees behind it."""

    graph: Replayed
    numbers: Tensor  # (batch, 3 * nodes + 1), see `DeviceDraft.numbers`, written by every replay
    widths: tuple[int, ...]
    held: tuple[object, ...]  # tensors that the graph reads and nobody else may hold


@dataclass(frozen=True, slots=True, kw_only=True)
class _CapturedDraft:
    """One draft of one shape, ready to be replayed; its numbers are on the host."""

    input: StaticInput
    draft: RecordedDraft
    draws: DeviceDraws | None


def captured_growth(
    model: CausalModel, cache: KeyValueCache, seen_in: Callable[[int], int] | None
) -> CapturedGrowth | None:
    """Return the drafts of a model over a cache; None where its forwards are not captured."""
    return CapturedGrowth(model, cache, seen_in) if isinstance(model, GraphedModel) and seen_in is not None else None


class CapturedGrowth:
    """The drafts of one model over one cache."""

    def __init__(self, model: GraphedModel, cache: KeyValueCache, seen_in: Callable[[int], int]) -> None:
        """Start without a graph; `seen_in` maps needed cache positions to those in sight."""
        self._model, self._cache, self._seen_in = model, cache, seen_in
        self._captured: dict[tuple[object, ...], _CapturedDraft] = {}
        self._read: Callable[[ForwardInput], Tensor] | None = None
        self.vocabulary = model.vocabulary

    def read_by(self, read: Callable[[ForwardInput], Tensor]) -> None:
        """Read committed text by another forward than the model's own in later captures; it returns logits."""
        self._read = read
        self._captured.clear()
        self._model.forget(self._cache)

    def read(self, step: ForwardInput) -> Tensor:
        """Read committed text by the forward that `read_by` set, captured; return its logits."""
        assert self._read is not None, "read_by sets it"
        return self._model.forward_by(self._read, step, self._cache)

    def serves(self, policy: TreePolicy, requests: Many[Request]) -> bool:
        """Return whether drafts of a policy for such requests can be captured."""
        is_whole = policy.is_of_one_size or policy.is_captured_whole
        return is_whole and draws_ahead(requests)

    @torch.inference_mode()
    def draft(self, step: ForwardInput, longest: int, policy: TreePolicy, requests: Many[Request]) -> DraftBatch:
        """Return the trees behind the committed text: one launch and one wait.

        `step` reads what was committed, as `lay_out` gives it for captured forwards, with `take`; `longest` is the most
        tokens of any row after that. Policy and requests are served.
        """
        ends = longest + columns_of(policy)
        self._cache.require(ends)
        seen = self._seen_in(ends)
        kind = kind_of(requests)
        key = (policy, step.signature, seen, kind)
        captured = self._captured.get(key)
        if captured is None:
            draws = None if kind is None else DeviceDraws(kind, len(requests), self._model.device)
            captured = self._captured[key] = self._capture(step, longest, policy, seen, draws)
        captured.input.load(step)
        if captured.draws is not None:
            captured.draws.put(requests)
        captured.draft.graph.replay()
        wait_for(self._model.device)
        return batch_of(captured.draft.numbers.numpy(), captured.draft.widths)

    def seen_behind(self, longest: int, most_read: int, policy: TreePolicy) -> int | None:
        """Return the cache positions in sight of a draft by a served policy; None where there is no room for it.

        `longest` is the most tokens of any row's text, of which the cache lacks at least one; `most_read` the tokens
        per row fed to read them, padding included.
        """
        ends, read = longest + columns_of(policy), longest - 1 + most_read
        most = max(ends, read)
        return self._seen_in(most) if most <= self._cache.capacity else None

    def record(
        self,
        read: Callable[[], ForwardInput],
        land: Callable[[Tensor], Tensor],
        *,
        longest: int,  # most tokens of any row when that is read
        policy: TreePolicy,
        seen: int,  # cache positions in sight
        draws: DeviceDraws | None = None,
    ) -> RecordedDraft:
        """Return the drafting of a served policy as captured work.

        Args:
            read: part of the work, returns the forward that reads what was committed; see `draft`.
            land: likewise, puts a draft's numbers where they are wanted, always at the same place.
            draws: how the target draws, whose noise drafts share; None where the best of the logits is drawn.
        """
        model = self._model.model
        widths: list[int] = []
        held: list[Tensor] = []
        known: dict[int, tuple[Tensor, Tensor]] | None = {} if policy.is_of_one_shape else None

        def feed(layer: ForwardInput) -> Tensor:
            return model.forward(layer, self._cache)

        def run() -> Tensor:
            held.clear()  # where nothing is captured it runs every round
            step = read()
            logits, scored = feed(step) if self._read is None else self._read(step), _Scoring(draws, step)
            kind = logits.dtype if draws is None else torch.float32
            if policy.kind == "eagle2" and is_supported(policy, logits.device, kind):
                numbers, widths[:] = grow_eagle2_by_kernels(
                    policy, step, scored(logits), lambda layer: scored(feed(layer)), seen
                )
                return land(numbers)
            scorer = DevicePass(
                catch_up=lambda: logits,
                feed=feed,
                scores=lambda found, _: scored(found),
                layout=self._layout(step, longest, seen, known, policy.compact_nodes),
                device=model.device,
                is_captured=True,
                asks_rates=not isinstance(policy, ChainPolicy),
            )
            draft = grow_on_device(policy, scorer, len(step.tokens), held)
            widths[:] = draft.widths
            return land(draft.numbers())

        graph, numbers = self._model.record(run)
        return RecordedDraft(graph=graph, numbers=numbers, widths=tuple(widths), held=(known, *held))

    def _capture(
        self, step: ForwardInput, longest: int, policy: TreePolicy, seen: int, draws: DeviceDraws | None
    ) -> _CapturedDraft:
        placed = StaticInput(step, self._model.device)

        def read() -> ForwardInput:
            placed.arrive()
            return placed.step

        draft = self.record(read, Landing(host_memory), longest=longest, policy=policy, seen=seen, draws=draws)
        return _CapturedDraft(input=placed, draft=draft, draws=draws)

    def _layout(
        self,
        step: ForwardInput,
        longest: int,
        seen: int,
        known: dict[int, tuple[Tensor, Tensor]] | None,
        compact: int | None,
    ) -> LayerLayout:
        """Return a layout behind what a forward reads, wherever that ends; a rigid tree's is laid out once."""
        assert step.tree is not None and step.take is not None
        lengths = (step.tree.starts + step.take + 1).unsqueeze(1)
        return LayerLayout(
            [longest] * len(step.tokens),
            self._cache,
            dtype=self._model.dtype,
            device=self._model.device,
            compact=compact,
            seen_in=lambda _: seen,
            placed=lengths,
            known=known,
        )


class _Scoring:
    def __init__(self, draws: DeviceDraws | None, step: ForwardInput) -> None:
        assert step.tree is not None and step.take is not None
        self._draws, self._place = draws, None if draws is None else step.tree.starts + step.take + 1

    def __call__(self, logits: Tensor) -> Tensor:
        if self._draws is None or self._place is None:
            return logits
        scores, self._place = self._draws.drafted(logits, self._place), self._place + 1
        return scores


def is_supported(policy: Eagle2Policy, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels run on a device, for logits of that kind and trees of that size."""
    candidates = policy.top_k + policy.depth * policy.top_k**2
    return candidates <= MOST_CANDIDATES and children.is_supported(device, dtype, policy.top_k)


def grow_eagle2_by_kernels(
    policy: Eagle2Policy, read: ForwardInput, logits: Tensor, feed: Callable[[ForwardInput], Tensor], seen: int
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the numbers and widths of the draft that `eagle2.grow` grows from such scores.

    `read` is the forward that read what was committed, with `take` and a tree; `logits` (batch, 1, vocabulary) its
    result, or the scores that are drawn from. `feed` runs a forward and returns (batch, width, vocabulary) of its
    layer; `seen` cache positions are in sight.
    """
    assert read.tree is not None and read.take is not None
    widths = _widths(policy, logits.shape[2])
    recorded = CandidateBuffer.room(len(logits), min(policy.top_k, logits.shape[2]) * sum(widths), logits.device)
    layer, written = _layer(policy, logits, None), 0
    for width in widths[1:]:
        frontier = extend(layer, recorded, read.tree.starts, read.take, width=width, written=written)
        written += width
        layer = _layer(policy, feed(_step(frontier, seen)), layer, frontier)
    return finish(layer, recorded, min(policy.verify_tokens - 1, layer.end)), widths


def _widths(policy: Eagle2Policy, vocabulary: int) -> tuple[int, ...]:
    """Return how many nodes every forward is fed: few where a vocabulary is small."""
    widths = [1]
    for _ in range(policy.depth):
        widths.append(min(policy.top_k, widths[-1] * min(policy.top_k, vocabulary)))
    return tuple(widths)


def _layer(
    policy: Eagle2Policy, logits: Tensor, before: LayerChildren | None, above: Frontier | None = None
) -> LayerChildren:
    """Return the children of a frontier from the logits (batch, width, vocabulary) behind it and the layer before."""
    below = children_by_kernels(logits, policy.top_k)
    return LayerChildren(
        tokens=below.tokens.flatten(1),
        log_probs=below.log_probs.flatten(1),
        children=below.tokens.shape[2],
        above=above,
        start=0 if before is None else before.end,
        depth=1 if before is None else before.depth + 1,
    )


def _step(frontier: Frontier, seen: int) -> ForwardInput:
    return ForwardInput(
        tokens=frontier.tokens,
        positions=frontier.positions,
        columns=frontier.columns,
        bias=None,
        seen=seen,
        tree=TreeMask(starts=frontier.starts, bits=frontier.bits),
    )
