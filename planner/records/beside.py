"""What a drafter beside its target takes of memory that a model by itself does not: what `peak.py` adds up."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMemory:
    """What one forward of a block drafter says behind a text; trees are then read from it, layer by layer."""

    places: int  # tokens, or frames, behind each text
    row_bytes: int  # alive at once inside its layers, per place
    made_bytes: int  # alive at once where its scores come about, per place
    kept_bytes: int  # of its scores while trees grow, per place
    pair_bytes: int = 0  # of its own mask, per place and cache position in its sight
    asked_bytes: int = 0  # while it is asked what follows a node, per node; 0: nodes of one depth are answered as one

    def __post_init__(self) -> None:
        if self.places < 1:
            raise PlanError(f"a block drafter says something in 1 place or more, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """What a drafter has alive that looks successors up: reading takes logits piece by piece, a lookup the text."""

    piece_tokens: int  # whose logits are held at once
    logit_bytes: int  # alive at once where successors are chosen, per token of a piece
    row_bytes: int  # of the features that are read, per token read
    kept_bytes: int  # of the chosen successors until all pieces are read, per token read
    found_bytes: int  # of what a lookup returns, per node

    def __post_init__(self) -> None:
        if self.piece_tokens < 1:
            raise PlanError(f"successors are chosen for 1 token or more at once, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """How a drafter works beside its target; what is 0 is not counted."""

    tapped_bytes: int = 0  # of hidden states that the target keeps for it, per cache position
    waiting_bytes: int = 0  # of those, alive beside what the target's last layer works on, per token fed to it
    answering_bytes: int = 0  # of those, alive beside what the target's logits are made of, per token fed to it
    read_bytes: int = 0  # alive at once where it reads committed text, per token
    carried_bytes: int = 0  # of that, alive until the forward ends, per token
    state_bytes: int = 0  # that an exit keeps for the verification to go on from, per token of that
    sight_bytes: int = 0  # alive while it finds out which token each one follows, per token asked and cache position
    further_positions: int = 0  # of its cache, per sequence, behind the text and the tree
    has_own_text: bool = True  # it reads prompts into a cache of its own; an exit's is its target's
    said: BlockMemory | None = None  # None: every layer of a tree is a forward, or looked up
    looked_up: LookedUp | None = None  # None: nothing is
