"""The base of strategies that draft as another one does, and verify or accept in their own way."""

from __future__ import annotations

from dataclasses import dataclass

from ..records.draft import Growth
from ..records.ops import Ops
from .base import Bounds, Strategy, Trees
from .chain import ChainPolicy
from .stack import StackPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegatingPolicy(Strategy):
    """A strategy that drafts what `draft` drafts: a model's own chain, or that of a stack."""

    draft: ChainPolicy | StackPolicy

    @property
    def draft_forwards(self) -> int:
        return self.draft.draft_forwards

    @property
    def max_verify_tokens(self) -> int:
        return self.draft.max_verify_tokens

    @property
    def bounds(self) -> Bounds:
        return self.draft.bounds

    def draft_room(self, batch: int | None = None) -> int:
        return self.draft.draft_room(batch)

    @property
    def widest_layer(self) -> int:
        return self.draft.widest_layer

    @property
    def children(self) -> int:
        return self.draft.children

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        return self.draft.grow(ops)
