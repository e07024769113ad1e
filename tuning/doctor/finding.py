"""What the doctor finds about a target and a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "note", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFinding:
    """One thing that was checked; a note costs tokens per round, what is broken cannot be loaded."""

    check: str  # the kind of check: "format", "layers", ...
    seen: str
    severity: Severity = "ok"
    advice: str = ""
