"""Draft from the text where its end occurred before at length, else with a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .chain import ChainPolicy, IndependentPolicy
from .text import SuffixPolicy, SuffixTreePolicy
from .tree import Eagle2Policy, StaticPolicy

ElsePolicy: TypeAlias = ChainPolicy | StaticPolicy | Eagle2Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPolicy(IndependentPolicy):
    """Copy behind a match of `text.min_match` tokens or more; where there is none let the model draft.

    The model is asked where any sequence of the batch needs it, and then reads what was committed since it last ran.
    Where rounds run ahead of the host nobody knows that beforehand, and it is asked in each.

    Attributes:
        text: what is copied, and from which match on: a chain, or a tree of the likeliest copies.
        model: what the model drafts else; its forwards are as wide at every position.

    Source: Hu et al. 2024, SAM decoding, arXiv:2411.10666: a match of 5 tokens is the published threshold. Oliaro et
        al. 2024, SuffixDecoding, arXiv:2411.04975, Sec. 4: a threshold for the tree's score.
    """

    text: SuffixPolicy | SuffixTreePolicy
    model: ElsePolicy
    kind: Literal["hybrid"] = "hybrid"

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"{self.text.code}, else {self.model.code}"

    @property
    def draft_forwards(self) -> int:
        """Most drafter forwards per round: the model's."""
        return self.model.draft_forwards

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return max(self.text.max_verify_tokens, self.model.max_verify_tokens)
