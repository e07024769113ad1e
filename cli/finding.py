"""One thing `spectune doctor` looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was seen and what to do; a note is worth knowing, what is broken keeps spectune from working."""

    name: str
    seen: str
    verdict: Verdict = "ok"
    advice: str = ""
    in_brief: str = ""  # what is printed for `seen`, unless more is asked for; the same where empty
    command: str = ""  # of the vendor or the system, that shows the same
