"""A feature-level head as drafter: trees grow as on a model; committed text comes with the target's features."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

import torch

from ...errors import ModelError
from ...planner.kernels.arrays import Ints
from ..cache import KeyValueCache
from ..models.block import BlockHead
from ..models.eagle import EagleHead
from ..models.exit import ExitModel
from ..models.forward import CausalModel, ForwardInput, UnlaidBeam, UnlaidNodes
from ..models.graphed import GraphedModel, as_loaded
from ..models.recycling import RecyclingHead
from ..models.whole_head import TargetStates
from .block import BlockDrafter
from .exit import ExitDrafter
from .features import NOT_ATTACHED, FeatureDrafter, GivenFeatures
from .host_pass import Found
from .model import ModelDrafter
from .recycling import RecyclingDrafter


class HeadDrafter(FeatureDrafter):
    """Runs a head over a cache of its own, beside a target that taps features; see `tapped_for`."""

    def __init__(
        self, head: EagleHead | GraphedModel, *, slots: int, capacity: int, on_device: bool | None = None
    ) -> None:
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
            self._captured.read_by(reads)
        if isinstance(self._model, GraphedModel):
            self._model.forget(self._cache)  # it has read what another target kept
        beside = None if self._on_device else self.target_states()
        if beside is not None and self._head.can_draft(self._cache, beside):
            self._finds = _Beside(self._head, beside)

    def read(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward over committed text with the target's features; return its logits."""
        if self._reads_text is None:
            raise ModelError(NOT_ATTACHED)
        self.forwards += 1
        if isinstance(self._model, GraphedModel):
            return self._model.forward_by(self._reads_text, step, self._cache)
        return self._reads_text(step)


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
        assert isinstance(model, EagleHead | GraphedModel)
        return HeadDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, BlockHead):
        return BlockDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, RecyclingHead):
        return RecyclingDrafter(model, slots=slots, capacity=capacity)
    if isinstance(model, ExitModel):
        return ExitDrafter(model, slots=slots, capacity=capacity)
    return ModelDrafter(model, slots=slots, capacity=capacity)
