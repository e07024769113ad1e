"""What all lossy strategies share: a chain is drafted, and a rule decides which of its tokens stay."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ...errors import PlanError
from .base import name_of
from .delegating import DelegatingPolicy
from .stack import StackPolicy


def _named(found: re.Match[str], drafter: str | None) -> str:
    name = name_of(found["draft"], drafter)
    return f"LOSSY {name} ({found['rule']})" if found["rule"] else f"LOSSY {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossyPolicy(DelegatingPolicy):
    """Draft a chain, and let a rule decide which of its tokens stay: the output is not the target's own.

    Attributes:
        draft: what is drafted, a model's own chain, or that of a stack without siblings.
    """

    complexity: ClassVar = 6
    is_lossy: ClassVar = True
    names: ClassVar = {r"LOSSY (?P<draft>.*?)(?: by (?P<rule>[^,]*).*)?": _named}

    def __post_init__(self) -> None:
        if isinstance(self.draft, StackPolicy) and self.draft.siblings:
            raise PlanError(f"lossy rules accept chains, and a {self.draft.label} is a tree; take one without siblings")
