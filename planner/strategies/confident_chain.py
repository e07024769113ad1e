"""A chain that ends where the drafter doubts. Source: Mamou et al. 2024, arXiv:2405.04304."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import PlanError
from .base import Strategy, name_by, require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentChainPolicy(Strategy):
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

    complexity: ClassVar = 2
    hangs_on_scores: ClassVar = True
    names: ClassVar = {
        r"chain of up to (?P<length>\d+) while surer than \S+": lambda found, drafter: name_by(
            f"chain of up to {found['length']}", drafter
        )
    }

    def __post_init__(self) -> None:
        require_at_least("chain length", self.length, 1)
        if not 0.0 <= self.confidence <= 1.0:
            raise PlanError(f"a chain's confidence is a probability, got {self.confidence}; pass 0 never to stop early")

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"chain of up to {self.length} while surer than {self.confidence:.3g}"

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes of every drafter forward that can run: one per drafted token."""
        return (1,) * self.length

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.length + 1

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""
        return 1
