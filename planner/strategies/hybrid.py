"""Draft from the text where its end occurred before at length, else with a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from ..records.room import READ_TOGETHER
from .base import Bounds, Source, Strategy, name_of
from .chain import ChainPolicy
from .eagle2 import Eagle2Policy
from .static import StaticPolicy
from .suffix import SuffixPolicy
from .suffix_tree import SuffixTreePolicy
from .text import TextPolicy

ElsePolicy: TypeAlias = ChainPolicy | StaticPolicy | Eagle2Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPolicy(Strategy):
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

    source: ClassVar[Source] = "both"
    complexity: ClassVar = 4
    names: ClassVar = {
        r"(?P<text>(?!LOSSY ).*?), else (?P<model>.*)": lambda found, drafter: (
            f"{name_of(found['text'])}, else {name_of(found['model'], drafter)}"
        )
    }

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"{self.text.code}, else {self.model.code}"

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes of every drafter forward: the model's."""
        return self.model.widths

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return max(self.text.max_verify_tokens, self.model.max_verify_tokens)

    @property
    def bounds(self) -> Bounds:
        """How deep, wide and large its trees can become."""
        text, model = self.text.bounds, self.model.bounds
        return Bounds(depth=max(text.depth, model.depth), width=model.width, tokens=self.max_verify_tokens)

    @property
    def widest_layer(self) -> int:
        """Most tokens per sequence that one forward of the model has logits for."""
        return self.model.widest_layer

    @property
    def most_unread(self) -> int:
        """Most committed tokens that the model reads at once: those of all rounds since it last ran, which copied."""
        return max(1 + self.bounds.depth, READ_TOGETHER)

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""
        return self.model.children

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards has for sure."""
        return self.model.sure_width

    @property
    def copied_on_gpu(self) -> TextPolicy | None:
        """What a GPU copies out of the text; rounds run ahead of the host then, and the model drafts in each."""
        return self.text.copied_on_gpu
