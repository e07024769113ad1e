"""Draft from the text where its end occurred before at length, else with a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias, cast

import numpy as np

from ...profiler.records.host_line import TEXT_TREE
from ..records.recording import Recorded, Recording
from ..records.results import PositionResults
from ..records.room import READ_TOGETHER
from .base import Bounds, Registered, Source, Strategy, known, made
from .chain import ChainPolicy
from .naming import name_of
from .text import TextPolicy

if TYPE_CHECKING:
    from . import TreePolicy
    from .eagle2 import Eagle2Policy
    from .static import StaticPolicy
    from .suffix import SuffixPolicy
    from .suffix_tree import SuffixTreePolicy

    CopiedPolicy: TypeAlias = SuffixPolicy | SuffixTreePolicy
    ElsePolicy: TypeAlias = ChainPolicy | StaticPolicy | Eagle2Policy
else:
    CopiedPolicy = Annotated[TextPolicy, Registered(lambda one: one.in_hybrids and one.source == "text")]
    ElsePolicy = Annotated[Strategy, Registered(lambda one: one.in_hybrids and one.source == "model")]


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPolicy(Strategy):
    """Copy behind a match of `text.min_match` tokens or more; elsewhere let the model draft.

    The model runs where any sequence of the batch needs it, after reading what was committed since it last ran. Where
    rounds run ahead of the host the need is not known beforehand, and it runs in each. `text` is a chain or a tree of
    the likeliest copies; `model` is equally wide at every position.

    Source: Hu et al. 2024, SAM decoding, arXiv:2411.10666: a match of 5 tokens is the published threshold. Oliaro et
        al. 2024, SuffixDecoding, arXiv:2411.04975, Sec. 4: a threshold for the tree's score.
    """

    text: CopiedPolicy
    model: ElsePolicy
    kind: Literal["hybrid"] = "hybrid"

    source: ClassVar[Source] = "both"
    has_shape: ClassVar = False
    complexity: ClassVar = 4
    names: ClassVar = {
        r"(?P<text>(?!LOSSY ).*?), else (?P<model>.*)": lambda found, drafter: (
            f"{name_of(found['text'])}, else {name_of(found['model'], drafter)}"
        )
    }

    @property
    def code(self) -> str:
        return f"{self.text.code}, else {self.model.code}"

    @property
    def widths(self) -> tuple[int, ...]:
        return self.model.widths

    @property
    def max_verify_tokens(self) -> int:
        return max(self.text.max_verify_tokens, self.model.max_verify_tokens)

    @property
    def bounds(self) -> Bounds:
        text, model = self.text.bounds, self.model.bounds
        return Bounds(depth=max(text.depth, model.depth), width=model.width, tokens=self.max_verify_tokens)

    @property
    def widest_layer(self) -> int:
        return self.model.widest_layer

    @property
    def most_unread(self) -> int:
        """Most committed tokens that the model reads at once: those of all copying rounds since it last ran."""
        return max(1 + self.bounds.depth, READ_TOGETHER)

    @property
    def children(self) -> int:
        return self.model.children

    @property
    def sure_width(self) -> int:
        return self.model.sure_width

    @property
    def copied_on_gpu(self) -> TreePolicy | None:
        """What a GPU copies out of the text; rounds run ahead of the host then, and the model drafts in each."""
        return self.text.copied_on_gpu

    @classmethod
    def probes(cls, most_tokens: int) -> list[HybridPolicy]:
        if "suffix" not in known():
            return []
        texts = (made("suffix", length=length, min_match=2) for length in (2, min(8, most_tokens - 1)))
        return [
            cls(text=cast("CopiedPolicy", text), model=ChainPolicy(length=length))
            for text, length in zip(texts, (1, 4), strict=True)
        ]

    def results(self, recorded: Recorded) -> PositionResults:
        return hybrid_results(self.text.results(recorded), self.model.results(recorded))


def hybrid_results(text: PositionResults, model: PositionResults) -> PositionResults:
    """Return the text's results where it drafts anything, running no forward there, else the model's."""
    copies = text.sizes > 1
    return PositionResults(
        accepted=np.where(copies, text.accepted, model.accepted),
        sizes=np.where(copies, text.sizes, model.sizes),
        censored=model.censored & ~copies,
        widths=np.where(copies[:, None], 0, model.widths),
    )


def hybrids(
    recording: Recording, models: Sequence[Strategy], most_tokens: int, *, over_trees: bool = True
) -> Iterator[tuple[HybridPolicy, PositionResults]]:
    """Yield every hybrid of some drafted strategies with the chains, and optionally trees, that hybrids copy."""
    if not models:
        return
    recorded = Recorded.by(recording)
    drafted = {model: model.results(recorded) for model in models}
    strategies: Mapping[str, type[Strategy]] = known()
    for kind, strategy in strategies.items():
        if issubclass(strategy, TextPolicy) and strategy.in_hybrids and (over_trees or kind != TEXT_TREE):
            for text in strategy.sweep(recorded, strategy.beside_models(most_tokens)):
                for model, own in drafted.items():
                    both = HybridPolicy(text=cast("CopiedPolicy", text.policy), model=cast("ElsePolicy", model))
                    yield both, hybrid_results(text.results, own)
