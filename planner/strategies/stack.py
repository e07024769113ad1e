"""A stack of drafters: each verifies the chain of the one below it, and the target that of the first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from ...errors import PlanError
from ..records.draft import Growth
from ..records.ops import Ops
from ..records.recording import Recorded
from ..records.results import PositionResults
from .base import Bounds, Source, Strategy, Trees, require_at_least
from .lookup import LookupPolicy
from .naming import LOOKUP as LOOKUP  # the text itself as the lowest drafter

STACK = "stack"  # the kind
JOINT = "+"  # between the names of a stack's drafters


def _named(found: re.Match[str], drafter: str | None) -> str:
    """Return the name of the first drafter's chain, and what each drafter below it proposes."""
    del drafter  # the code names all drafters
    levels = re.findall(r"(.+?) (\d+)(?: over |$)", found["levels"])
    name, length = levels[0]
    parts = [f"chain of {length} by {name}" + (f" with {found['siblings']} siblings" if found["siblings"] else "")]
    for name, length in levels[1:]:
        parts.append(f"copies of {length} from the text" if name == LOOKUP else f"chains of {length} by {name}")
    return ", checked ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPolicy(Strategy):
    """Draft the first drafter's own chain, found with the help of the drafters below it.

    A level verifies a chain of the level below in one forward, and adds what it would have said itself and its own next
    token. It repeats this until it holds `lengths[level]` tokens or more, and hands up all of them. The lowest drafts
    exactly its length, token by token; a lookup copies up to its length with `max_ngram` and `min_ngram`.

    Attributes:
        drafters: names, the one next to the target first; only the last may be "lookup".
        siblings: next-best tokens verified as leaves beside each token of the chain; the first drafter has them anyway.

    Source: Globerson et al. 2025, arXiv:2510.19705; here tokens drafted beyond a length stay.
    """

    drafters: tuple[str, ...]
    lengths: tuple[int, ...]
    max_ngram: int = 3
    min_ngram: int = 1
    siblings: int = 0
    kind: Literal["stack"] = "stack"

    source: ClassVar[Source] = "models"
    is_recorded: ClassVar = False
    has_shape: ClassVar = False
    complexity: ClassVar = 5
    names: ClassVar = {
        r"stack of (?P<levels>.+? \d+)(?: after \d+\.\.\d+-grams)?(?:, (?P<siblings>\d+) siblings)?": _named
    }

    def __post_init__(self) -> None:
        if not self.models or LOOKUP in self.models or len(set(self.models)) < len(self.models):
            raise PlanError(
                f"a stack needs one or more different models, and only then {LOOKUP!r}, got {list(self.drafters)}"
            )
        if any(JOINT in name or not name for name in self.drafters):
            raise PlanError(f"names in a stack are joined by {JOINT!r}, got {list(self.drafters)}; rename the drafter")
        if len(self.lengths) != len(self.drafters):
            raise PlanError(f"a stack needs a length per drafter, got {self.lengths} for {list(self.drafters)}")
        require_at_least("lengths in a stack", min(self.lengths), 1)
        require_at_least("siblings in a stack", self.siblings, 0)
        require_at_least("lookup min_ngram", self.min_ngram, 1)
        require_at_least("lookup max_ngram", self.max_ngram, self.min_ngram)

    @property
    def has_lookup(self) -> bool:
        return self.drafters[-1:] == (LOOKUP,)

    @property
    def models(self) -> tuple[str, ...]:
        return self.drafters[:-1] if self.has_lookup else self.drafters

    @property
    def lookup(self) -> LookupPolicy:
        return LookupPolicy(length=self.lengths[-1], max_ngram=self.max_ngram, min_ngram=self.min_ngram)

    @property
    def code(self) -> str:
        levels = " over ".join(f"{name} {length}" for name, length in zip(self.drafters, self.lengths, strict=True))
        ngrams = f" after {self.max_ngram}..{self.min_ngram}-grams" if self.has_lookup else ""
        return f"stack of {levels}{ngrams}{f', {self.siblings} siblings' if self.siblings else ''}"

    @property
    def draft_forwards(self) -> int:
        """Most forwards of all drafters in a round: a verification by a level yields one token or more."""
        return sum(prod(self.lengths[: level + 1]) for level in range(len(self.models)))

    @property
    def max_chain(self) -> int:
        """Most tokens the first drafter hands up: one below its length, then a whole draft and one more."""
        return sum(self.lengths)

    @property
    def max_verify_tokens(self) -> int:
        return 1 + self.max_chain * (1 + self.siblings)

    @property
    def bounds(self) -> Bounds:
        return Bounds(depth=self.max_chain, width=1 + sum(self.lengths[1:]), tokens=self.max_verify_tokens)

    def draft_room(self, batch: int | None = None) -> int:
        """Return the cache positions behind the text that its models need.

        A forward over several sequences is as wide as the widest needs, and also writes behind those that wait.
        """
        return self.max_chain if batch == 1 else 2 * self.max_chain + len(self.lengths)

    @property
    def widest_layer(self) -> int:
        return 1 + 2 * self.max_chain  # what was committed is read again before what is drafted

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        raise PlanError(f"a {self.label} is drafted by several models and not by one scorer; ask the runtime's drafter")

    def results(self, recorded: Recorded) -> PositionResults:
        raise PlanError(f"a {self.label} has several drafters; replay it with stack_replay")

    @property
    def children(self) -> int:
        return 1 + self.siblings


def model_of(drafter: str | None) -> str | None:
    """Return the model that drafts; None where none does, or the text."""
    return None if drafter == LOOKUP else drafter


def stack_name(policy: StackPolicy) -> str:
    """Return a stack's drafter name in a decoder; it does not depend on the lengths."""
    return JOINT.join(policy.drafters)
