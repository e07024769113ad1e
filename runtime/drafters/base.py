"""What a round needs of every source of drafts; whoever adds one writes `draft`, and what else its state needs."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import ClassVar, Literal

from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy, drafting
from ..batch.sequence import Sequence
from ..growth.captured import CapturedGrowth
from ..models.forward import LeftStates
from ..models.kv_cache import KeyValueCache


class Drafter:
    """Proposes a draft tree behind every sequence of the batch; sequence i is in slot i.

    The defaults are those of a drafter without a cache: it holds no text, copies none, and reads none again.

    Attributes:
        forwards: of its models so far, reading prompts included.
        overlap: what a device needs to draft ahead of the host: this drafter's "model", the "text" alone, or "none":
            it never does.
    """

    overlap: ClassVar[Literal["none", "text", "model"]] = "none"
    forwards: int = 0

    def attach(self, cache: KeyValueCache) -> None:
        """Use the target's cache, too: slot i is that of the drafter's slot i, and moves before it does."""

    def admit(self, slot: int, sequence: Sequence, held: int = 0) -> None:
        """Take a new sequence into a slot that holds the first `held` tokens of its prompt; not part of any round."""
        self.read_along(slot, sequence.tokens[:-1], held)

    def read_along(self, slot: int, tokens: Many[int], held: int) -> int:
        """Let a slot that holds the first `held` of a prompt's tokens hold exactly these; return how many it holds."""
        return 0

    def forget(self, slot: int) -> bool:
        """Drop a slot's text, to read it when it drafts next; return whether it can."""
        return False

    def move(self, source: int, target: int) -> None:
        """Move a sequence from slot `source` to `target`; called again if interrupted."""

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Let a slot hold only the first tokens, at most `most`, of `source`, perhaps itself; return how many."""
        return 0

    def swap_prefixes(self, one: int, other: int) -> None:
        """Exchange the texts of two slots in which no sequence runs; if interrupted, both are lost."""

    def rewind(self, lengths: Many[int]) -> bool:
        """Crop slot i to its first lengths[i] tokens, to read the rest again; return whether it can."""
        return False

    def uncached(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that the next draft has to read first."""
        return 0

    def policy_for(self, policy: TreePolicy) -> TreePolicy:
        """Return what to draft for a round of a policy, however the round is verified and accepted."""
        return drafting(policy)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the trees drawn behind the committed text; row i is slot i."""
        raise NotImplementedError

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        """Return states of the last draft's nodes, with room for `fed` per sequence; None where no layer ran."""
        return None

    def growth_for(self, sequences: Many[Sequence], policy: TreePolicy) -> CapturedGrowth | None:
        """Return the capture of whole drafts of a policy over the drafter's cache; None where there is none."""
        return None

    def unread(self, sequences: Many[Sequence]) -> list[list[int]]:
        """Return the tokens of every sequence that the next draft has to read first; at least one each."""
        return [s.tokens for s in sequences]

    def read_up(self, sequences: Many[Sequence]) -> None:
        """Read all unread tokens of the sequences but the newest of each, as prompts are read."""

    def note_drafted(self, sequences: Many[Sequence], forwards: int) -> None:
        """Note captured work of so many forwards that has read all of the sequences."""
