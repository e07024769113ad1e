"""What the decoder needs of a source of drafts."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol, runtime_checkable

from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy, drafting
from ..batch.sequence import Sequence
from ..growth.captured import CapturedGrowth
from ..models.forward import LeftStates
from ..models.kv_cache import KeyValueCache


class Drafter(Protocol):
    """Proposes a draft tree behind every sequence of the batch."""

    @property
    def forwards(self) -> int:
        """Drafter forwards run so far."""

    def admit(self, slot: int, sequence: Sequence) -> None:
        """Take a new sequence with its prompt into a slot; not part of any round."""

    def move(self, source: int, target: int) -> None:
        """Move a sequence from slot `source` to `target`; called again if interrupted."""

    def fresh(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that the next draft has to read first."""

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the trees drawn behind the committed text; row i is slot i."""


@runtime_checkable
class ReadsAlong(Protocol):
    """A drafter that can read a prompt piece by piece, before its sequence joins."""

    def read_along(self, slot: int, tokens: Many[int], held: int) -> None:
        """Let a slot that holds the first `held` of these tokens hold exactly all of them."""


@runtime_checkable
class CopiesPrefix(Protocol):
    """A drafter that can copy the start of one slot to another."""

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Let a slot hold only the first tokens, at most `most`, of `source`, perhaps itself; return how many."""

    def swap_prefixes(self, one: int, other: int) -> None:
        """Exchange the texts of two slots in which no sequence runs; if interrupted, both are lost."""


@runtime_checkable
class Forgets(Protocol):
    """A drafter that can go back in the texts it has read."""

    def rewind(self, lengths: Many[int]) -> None:
        """Crop slot i to its first lengths[i] tokens; the rest is read again."""


@runtime_checkable
class ReadsTarget(Protocol):
    """A drafter that also reads the target's cache."""

    def attach(self, cache: KeyValueCache) -> None:
        """Use the target's cache: slot i is that of the drafter's slot i, and moves before it does."""


@runtime_checkable
class LeavesStates(Protocol):
    """A drafter that may have run the target's own first layers over its draft."""

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        """Return states of the last draft's nodes, with room for `fed` per sequence; None where no layer ran."""


@runtime_checkable
class DraftsAhead(Protocol):
    """A drafter whose whole draft may be captured, and run behind a text that the host does not know yet."""

    def growth_for(self, sequences: Many[Sequence], policy: TreePolicy) -> CapturedGrowth | None:
        """Return the capture of whole drafts of a policy over the drafter's cache; None where there is none."""

    def unread(self, sequences: Many[Sequence]) -> list[list[int]]:
        """Return the tokens of every sequence that the next draft has to read first; at least one each."""

    def read_up(self, sequences: Many[Sequence]) -> None:
        """Read all unread tokens of the sequences but the newest of each, as prompts are read."""

    def note_drafted(self, sequences: Many[Sequence], forwards: int) -> None:
        """Note captured work of so many forwards that has read all of the sequences."""


def asked_of(drafter: Drafter, policy: TreePolicy) -> TreePolicy:
    """Return the policy to draft by: without the resuming part where the drafter cannot leave states."""
    return policy if policy.kind == "resumed" and isinstance(drafter, LeavesStates) else drafting(policy)
