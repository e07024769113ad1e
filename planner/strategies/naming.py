"""Names for people of ways of drafting: "chain of 3 by small", "copy from the text, up to 40 tokens".

A name is read off a strategy's `code`, which documents store and which never changes. So documents without the strategy
itself, and of older versions, have one too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

LOOKUP = "lookup"  # the drafter that is the text itself
Namer: TypeAlias = Callable[[re.Match[str], str | None], str]  # a code's parts, and who drafts -> what people read
NAMERS: dict[str, Namer] = {}  # by the pattern of codes, of every strategy that is imported


def name_of(code: str, drafter: str | None = None) -> str:
    """Return a readable name of a strategy's code, and who drafts unless that is None; other text is unchanged."""
    for pattern, namer in NAMERS.items():
        found = re.fullmatch(pattern, code)
        if found is not None:
            return namer(found, drafter)
    return name_by(code, drafter)


def name_by(name: str, drafter: str | None) -> str:
    """Return a name that is no code, such as a published default's, and who drafts."""
    return name if drafter in (None, LOOKUP) else f"{name} by {drafter}"


def named_tree(of: str) -> Namer:
    """Return what names a model's trees, whose code contains their nodes."""
    return lambda found, drafter: name_by(f"tree of {found['nodes']} nodes", drafter) + f" ({of})"


def counted(number: int, thing: str) -> str:
    """Return "1 token", "2 tokens"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
