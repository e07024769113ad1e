"""Prompt lookup: the text itself as drafter. Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import PlanError
from ..text.lookup import AnyOccurrence, Occurrence
from .base import require_at_least
from .text import TextPolicy, named_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPolicy(TextPolicy):
    """Copy up to `length` tokens that followed the same n-gram earlier in the text.

    Attributes:
        length: most tokens to copy.
        max_ngram, min_ngram: the longest n-gram of these sizes that occurred before decides.
        occurrence: which earlier one of it is copied behind. The first is what transformers (to 5.23) and vLLM take;
            transformers also ends a copy before a stop token, which changes no text and no count of rounds. "mapped" is
            what llama.cpp's `ngram-map-k` remembers of all that it decoded (`planner/engines/mapped_ngrams.py`): only
            that engine decodes so.

    Source: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers' PromptLookupCandidateGenerator.
    """

    length: int
    max_ngram: int = 3
    min_ngram: int = 1
    occurrence: AnyOccurrence = "last"
    kind: Literal["lookup"] = "lookup"

    complexity: ClassVar = 0
    names: ClassVar = {r"lookup of (?P<length>\d+) after .*": named_copy(" (prompt lookup)")}

    def __post_init__(self) -> None:
        require_at_least("lookup length", self.length, 1)
        require_at_least("lookup min_ngram", self.min_ngram, 1)
        require_at_least("lookup max_ngram", self.max_ngram, self.min_ngram)

    @property
    def code(self) -> str:
        """Every setting in one line."""
        which = "" if self.occurrence == "last" else f" ({self.occurrence})"
        return f"lookup of {self.length} after {self.max_ngram}..{self.min_ngram}-grams{which}"

    @property
    def occurrence_in_text(self) -> Occurrence:
        """Which occurrence is copied behind, for whoever has nothing but the text.

        Raises:
            PlanError: an engine's memory tells.
        """
        if self.occurrence == "mapped":
            raise PlanError(f"{self.label} is llama.cpp's own search, which remembers other texts; decode there")
        return self.occurrence

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included, when the lookup finds enough."""
        return self.length + 1

    @property
    def copied_on_gpu(self) -> LookupPolicy | None:
        """Itself, but for what an engine remembers."""
        return self if self.occurrence != "mapped" else None
