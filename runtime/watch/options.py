"""How closely a decoder watches itself."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """What watching may cost, and how often it may be wrong.

    Attributes:
        false_alarms: probability of ever reporting drift of a plan whose cells all stay in their intervals; and,
            separately, of ever switching a cell though no other way saves it time on average.
        probe_share: share of a cell's time that may be lost to measuring plain decoding; in a switched cell, the
            planned way.
        rival_share: share of a cell's time that may be lost to all other ways to draft together; 0 tries none.
        block_rounds, block_texts: rounds, and texts that end meanwhile, of a block, whose speed counts once.
    """

    false_alarms: float = 0.01
    probe_share: float = 0.01
    rival_share: float = 0.01
    block_rounds: int = 64
    block_texts: int = 4
    longest_block: int = 1024  # rounds after which a block ends without them, for texts that never end
    flush_rounds: int = 8192  # rounds after which the writer gets observations

    def __post_init__(self) -> None:
        if not 0.0 < self.false_alarms < 1.0:
            raise RequestError(f"false_alarms is a probability, got {self.false_alarms}; 0.01 is usual")
        if not 0.0 < self.probe_share <= 0.5:
            raise RequestError(f"probe_share must be in (0, 0.5], got {self.probe_share}; 0.01 is usual")
        if not 0.0 <= self.rival_share <= 0.5:
            raise RequestError(f"rival_share must be in [0, 0.5], got {self.rival_share}; 0.01 is usual, 0 tries none")
        counts = (self.block_rounds, self.block_texts, self.longest_block, self.flush_rounds)
        if min(counts) < 1 or self.longest_block < self.block_rounds:
            raise RequestError(f"counts must be at least 1, and a longest block no shorter than a block, got {counts}")
