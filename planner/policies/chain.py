"""Policies that draft no tree or a chain; and what all policies share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...errors import PlanError
from ..text.lookup import AnyOccurrence, Occurrence
from .labels import LabelledPolicy


class IndependentPolicy(LabelledPolicy):
    """A policy whose tree for one sequence never depends on the others of the batch."""

    __slots__ = ()

    def is_coupled(self, batch: int) -> bool:
        """Say whether sequences of such a batch influence each other's trees: never."""
        return False


def require_at_least(name: str, value: int, least: int) -> None:
    """Raise PlanError where a number of a policy is too small."""
    if value < least:
        raise PlanError(f"{name} must be at least {least}, got {value}; raise it")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPolicy(IndependentPolicy):
    """Decode one token at a time; nothing is drafted."""

    kind: Literal["plain"] = "plain"

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return "plain"

    @property
    def draft_forwards(self) -> int:
        """Drafter forwards per round: none."""
        return 0

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence: the last committed one."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPolicy(IndependentPolicy):
    """Draft the drafter's most likely token `length` times."""

    length: int
    kind: Literal["chain"] = "chain"

    def __post_init__(self) -> None:
        require_at_least("chain length", self.length, 1)

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"chain of {self.length}"

    @property
    def draft_forwards(self) -> int:
        """Drafter forwards per round: one per drafted token."""
        return self.length

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included."""
        return self.length + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentChainPolicy(IndependentPolicy):
    """Draft a chain of up to `length` tokens, and stop behind the first one the drafter doubts.

    A token is doubted where its conditional probability is below `confidence`; it is still verified.

    Defaults are those of transformers 5.23 (since 4.45), whose assisted generation drafts for one sequence:
    num_assistant_tokens = 20, num_assistant_tokens_schedule = "constant", assistant_confidence_threshold = 0.4. Its
    ConfidenceCriteria asks the probability of the token just drafted, as here. Where scikit-learn is installed,
    transformers moves the threshold while it decodes: after each round it takes the one that would have been best
    for the tokens drafted so far, a missed acceptance counting three times a needless draft. That is not done here,
    because a tree has to be a function of the committed text. Schedules "heuristic" and "heuristic_transient", which
    draft 2 tokens more after a round that was taken whole and else 1 less, are left out for the same reason.

    Source: Mamou et al. 2024, arXiv:2405.04304; transformers' AssistedCandidateGenerator, ConfidenceCriteria.
    """

    length: int = 20
    confidence: float = 0.4
    kind: Literal["confident-chain"] = "confident-chain"

    def __post_init__(self) -> None:
        require_at_least("chain length", self.length, 1)
        if not 0.0 <= self.confidence <= 1.0:
            raise PlanError(f"a chain's confidence is a probability, got {self.confidence}; pass 0 never to stop early")

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"chain of up to {self.length} while surer than {self.confidence:.3g}"

    @property
    def draft_forwards(self) -> int:
        """Most drafter forwards per round: one per drafted token."""
        return self.length

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.length + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPolicy(IndependentPolicy):
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
    def draft_forwards(self) -> int:
        """Drafter forwards per round: none, the text is the drafter."""
        return 0

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included, when the lookup finds enough."""
        return self.length + 1
