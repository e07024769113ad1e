"""A feature-level head as drafter: trees grow as on a model; committed text comes with the target's features."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from weakref import ref

import numpy as np
import torch

from ...errors import ModelError
from ...planner.kernels.arrays import Ints
from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy, drafting
from ..batch.sequence import Sequence
from ..models.block import BlockHead
from ..models.eagle import EagleHead
from ..models.exit import ExitModel
from ..models.forward import CausalModel, ForwardInput, LeftStates, UnlaidBeam, UnlaidNodes
from ..models.graphed import as_loaded
from ..models.kernels.whole_head import TargetStates
from ..models.kv_cache import KeyValueCache
from ..models.layout import lay_out
from ..models.recycling import RecyclingHead
from .block import BlockDrafter
from .features import NOT_ATTACHED, FeatureDrafter, GivenFeatures
from .host_pass import Found
from .model import ModelDrafter
from .recycling import RecyclingDrafter


class HeadDrafter(FeatureDrafter):
    """Runs a head over its own cache, beside a target that taps features; see `tapped_for`."""

    def __init__(self, head: CausalModel, *, slots: int, capacity: int, on_device: bool | None = None) -> None:
        own = as_loaded(head)
        assert isinstance(own, EagleHead), "a head, or one whose forwards are captured"
        super().__init__(head, own.reads, slots=slots, capacity=capacity, on_device=on_device)
        self._head = own
        self._reads_text: Callable[[ForwardInput], torch.Tensor] | None = None  # once attached

    def attach(self, cache: KeyValueCache) -> None:
        """Use the target's cache and load what drafts beside it; ModelError if it lacks the head's features."""
        super().attach(cache)
        self._finds = None
        self._reads_text = reads = _reading(self._head, self.given, self._cache)
        if self._captured is not None:
            self._captured.read_by(reads)  # it has read what another target kept
        beside = None if self._on_device else self.target_states()
        if beside is not None and self._head.can_draft(self._cache, beside):
            self._finds = _Beside(self._head, beside)

    def read(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward over committed text with the target's features; return its logits."""
        if self._reads_text is None:
            raise ModelError(NOT_ATTACHED)
        self.forwards += 1
        return self._reads_text(step) if self._captured is None else self._captured.read(step)


def _reading(head: EagleHead, given: GivenFeatures, cache: KeyValueCache) -> Callable[[ForwardInput], torch.Tensor]:
    """Return a head's forward over committed text; captured work holds it, so it holds the cache only weakly."""
    held = ref(cache)

    def read(step: ForwardInput) -> torch.Tensor:
        own = held()
        assert own is not None, "whoever runs a forward holds its cache"
        return head.read(given.before(step), step, own)

    return read


class _Beside:
    def __init__(self, head: EagleHead, target: TargetStates) -> None:
        self._head, self._target = head, target

    def found(self, nodes: UnlaidNodes, count: int, cache: KeyValueCache) -> Found | None:
        return self._head.found(nodes, count, cache, self._target)

    def grown(self, beam: UnlaidBeam, cache: KeyValueCache) -> tuple[Ints, bool] | None:
        return self._head.grown(beam, cache, self._target)


def model_drafter(model: CausalModel, *, slots: int, capacity: int) -> ModelDrafter:
    """Return the drafter of a model, a head, a block drafter, an exit, or recycled successors."""
    if isinstance(as_loaded(model), EagleHead):
        return HeadDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, BlockHead):
        return BlockDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, RecyclingHead):
        return RecyclingDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, ExitModel):
        return ExitDrafter(model, slots=slots, capacity=capacity)
    return ModelDrafter(model, slots=slots, capacity=capacity)


class ExitDrafter(ModelDrafter):
    """Runs an exit over the first layers of the target's cache, to be attached before the first draft.

    That cache holds all tokens of a text but the newest, so a round reads one token, whichever drafter ran before, and
    joining a batch costs nothing. Draft nodes are written behind the committed text. The verification overwrites them;
    of chains drafted for a ResumedPolicy it continues from their states behind the last layer.

    Invariant: nothing in front of a sequence's newest token is written.
    """

    def __init__(self, model: ExitModel, *, slots: int, capacity: int, on_device: bool | None = None) -> None:
        super().__init__(model, slots=slots, capacity=capacity, on_device=on_device)
        self._exit, self._exit_layer, self._is_attached = model, model.exit_layer, False
        self._slots = slots
        self._states = torch.zeros(slots, 0, model.hidden, dtype=model.dtype, device=model.device)
        self._keeps, self._kept = False, 0  # whether states are being kept, and of how many nodes they are

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return a cache without slots: the target's takes its place."""
        return super().new_cache(0, capacity)

    def attach(self, cache: KeyValueCache) -> None:
        """Use the target's cache; ModelError if it is that of another kind of model."""
        if cache.layers <= self._exit_layer or cache.states.shape[3] != self._cache.states.shape[3]:
            raise ModelError(
                f"an exit after layer {self._exit_layer} drafts on its target's cache of more layers and "
                f"{self._cache.states.shape[3]} numbers a token, got one of {cache.layers} layers and "
                f"{cache.states.shape[3]}; decode with the target it was loaded beside"
            )
        self._cache, self._is_attached = cache.first(self._exit_layer), True

    def read_along(self, slot: int, tokens: Many[int], held: int) -> int:
        """Return all: the target reads prompts."""
        return len(tokens)

    def move(self, source: int, target: int) -> None:
        """Do nothing: the target's cache has moved before."""

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Return `most`: the target's cache copies these keys."""
        return most

    def swap_prefixes(self, one: int, other: int) -> None:
        """Do nothing: the target's cache has done it."""

    def uncached(self, sequences: Many[Sequence]) -> int:
        """Return 1: the newest token is the only one that the target has not read."""
        return 1

    def catch_up(self, sequences: Many[Sequence]) -> torch.Tensor:
        """Feed the newest token of every sequence; return logits (batch, 1, vocabulary) behind it."""
        if not self._is_attached:
            raise ModelError("an exit drafts on its target's cache; let the decoder attach it, or call attach first")
        self.rewind([sequence.context for sequence in sequences])
        return super().catch_up(sequences)

    def policy_for(self, policy: TreePolicy) -> TreePolicy:
        """Return a ResumedPolicy as it is: it says that states are left."""
        return policy if policy.kind == "resumed" else drafting(policy)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the policy's trees; for a ResumedPolicy the states of fed tokens are stored for `left`."""
        self._keeps, self._kept = policy.kind == "resumed", 0
        if self._keeps:
            self._make_room(policy.max_verify_tokens)
        try:
            return super().draft(sequences, drafting(policy))
        finally:
            self._keeps = False

    def feed(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward; return its logits."""
        if not self._keeps:
            return super().feed(step)
        self.forwards += 1
        self._kept += 1
        return self._exit.forward_leaving(step, self._cache, self._states[: len(step.tokens), self._kept - 1])

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        """Read each chain's last token; return all nodes' states, finite behind them; ModelError for other drafts."""
        last = self._kept
        if last < 1 or (draft.sizes != last + 1).any():
            raise ModelError(
                f"states of {last} nodes were stored, and the draft has {draft.sizes.tolist()}; verify the chains that "
                "a ResumedPolicy has just drafted"
            )
        self._make_room(max(fed, last + 1))
        step = lay_out(
            draft.tokens[:, last : last + 1],
            np.zeros(1, dtype=np.int64),
            [sequence.context + last for sequence in sequences],
            np.ones((1, 1, 1), dtype=np.bool_),
            dtype=self._model.dtype,
            device=self._model.device,
            masks=self._masks,
        )
        self._exit.leave(step, self._cache, self._states[: len(sequences), last])
        return LeftStates(owner=self._exit.target, layers=self._exit_layer, states=self._states)

    def _make_room(self, tokens: int) -> None:
        known = self._states.shape[1]
        if tokens > known:
            grown = self._states.new_zeros(self._slots, tokens, self._states.shape[2])
            grown[:, :known] = self._states
            self._states = grown
