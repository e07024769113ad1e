"""Counters of a server of drafts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals of a server since it began."""

    sessions: int = 0
    rounds: int = 0
    drafts: int = 0  # verified
    drafted: int = 0  # tokens of them
    accepted: int = 0  # of these
    emitted: int = 0  # tokens
    waited_s: float = 0.0  # drafts, before they were verified
    verify_s: float = 0.0
    read_s: float = 0.0  # prompts
    failed: int = 0  # drafts that could not be verified, for want of memory mostly
