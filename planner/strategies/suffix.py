"""Copying behind the longest end of the text that occurred before. Source: SAM decoding, arXiv:2411.10666."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..text.lookup import Occurrence
from .base import require_at_least
from .text import TextPolicy, named_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixPolicy(TextPolicy):
    """Copy what followed an earlier occurrence of the text's longest end that occurred before.

    Behind m tokens that agree stand min(length, factor * m + offset) copied ones. A copy that reaches the text's end
    goes on with what it has copied, as a text that goes round in circles does; the published code ends there.

    Attributes:
        length: most tokens to copy.
        factor, offset: of the bound by the length m of the match.
        min_match: shortest match that is copied from.
        occurrence: which earlier occurrence of the match; the published code takes the first.

    Source: Hu et al. 2024, SAM decoding, arXiv:2411.10666: min(40, 4 m + 1) tokens behind the first occurrence.
    """

    length: int = 40
    factor: int = 4
    offset: int = 1
    min_match: int = 1
    occurrence: Occurrence = "first"
    kind: Literal["suffix"] = "suffix"

    complexity: ClassVar = 1
    names: ClassVar = {r"suffix of m >= \d+ \(\w+\), \d+m\+\d+ up to (?P<length>\d+)": named_copy()}

    def __post_init__(self) -> None:
        require_at_least("suffix length", self.length, 1)
        require_at_least("suffix factor", self.factor, 0)
        require_at_least("suffix offset", self.offset, 0)
        require_at_least("suffix factor + offset", self.factor + self.offset, 1)
        require_at_least("suffix min_match", self.min_match, 1)

    @property
    def code(self) -> str:
        """Every setting in one line."""
        bound = f"{self.factor}m+{self.offset} up to {self.length}"
        return f"suffix of m >= {self.min_match} ({self.occurrence}), {bound}"

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.length + 1

    @property
    def copied_on_gpu(self) -> SuffixPolicy:
        """Itself."""
        return self
