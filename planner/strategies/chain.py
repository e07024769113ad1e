"""A chain: the drafter's most likely token, `length` times. Source: Leviathan et al. 2023, arXiv:2211.17192."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..records.costs import PlannedCosts
from ..records.draft import Asked, Growth, Ints
from ..records.ops import Ops
from ..records.recording import Recorded, Recording
from ..records.results import PositionResults, of_one_size
from ..records.tree import TokenTree
from .base import Strategy, Trees, require_at_least
from .grown import grown_results
from .naming import name_by
from .offers import Graded, Level, Limits, Published

LENGTHS = (*range(1, 9), 10, 12, 16, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPolicy(Strategy):
    """Draft the drafter's most likely token `length` times."""

    length: int
    kind: Literal["chain"] = "chain"

    complexity: ClassVar = 0
    in_hybrids: ClassVar = True
    grid_place: ClassVar = 5
    names: ClassVar = {
        r"chain of (?P<length>\d+)": lambda found, drafter: name_by(f"chain of {found['length']}", drafter)
    }

    def __post_init__(self) -> None:
        require_at_least("chain length", self.length, 1)

    @property
    def code(self) -> str:
        return f"chain of {self.length}"

    @property
    def widths(self) -> tuple[int, ...]:
        return (1,) * self.length

    @property
    def max_verify_tokens(self) -> int:
        return self.length + 1

    @property
    def fixed_tree(self) -> TokenTree:
        return TokenTree(parents=tuple(range(-1, self.length)), ranks=(0,) * (self.length + 1))

    @property
    def written(self) -> str:
        return f"ChainPolicy(length={self.length!r}, kind='chain')"

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        below, first = (yield Asked(1)), ops.rows((0,))  # the first slot, or child, of every row
        tokens = [below.tokens[:, 0]]
        while len(tokens) < self.length:
            below = yield Asked(1, first, first)
            tokens.append(below.tokens[:, 0])
        return ops.fixed(tokens, range(-1, self.length), range(self.length + 1), self.widths)

    def results(self, recorded: Recorded) -> PositionResults:
        return chain_results(self, recorded.drafted)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        for chain in chains(limits.most_tokens):
            yield Graded(chain, chain_results(chain, recorded.drafted))

    @classmethod
    def recorded_at(cls, level: Level) -> list[ChainPolicy]:
        return [cls(length=20 if level == "full" else 8)]  # 20 is transformers'

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        return [] if drafter is None else PUBLISHED

    @classmethod
    def probes(cls, most_tokens: int) -> list[ChainPolicy]:
        return [cls(length=length) for length in (1, min(8, most_tokens - 1))]


def chains(most_tokens: int) -> list[ChainPolicy]:
    """Return the chains that compete where one verify can feed so many tokens."""
    return [ChainPolicy(length=length) for length in LENGTHS if length < most_tokens]


def chain_results(policy: ChainPolicy, recording: Recording) -> PositionResults:
    """Return min(length, tokens from here on that the drafter ranks first), at every position.

    Without a prefix-exact trace chains are grown; a position is censored where an expansion was not recorded.
    """
    if not recording.is_prefix_exact:
        return grown_results(policy, recording)
    accepted = np.minimum(right_run(recording.next_rank), policy.length)
    return of_one_size(accepted, policy.length + 1, policy.widths)


def right_run(next_rank: Ints) -> Ints:
    """Return (rows,): how many tokens from each row on the drafter ranks first; an end stops the run."""
    wrong = np.where(next_rank != 0, np.arange(len(next_rank)), len(next_rank))
    return np.minimum.accumulate(wrong[::-1])[::-1] - np.arange(len(next_rank))


TRANSFORMERS_BEFORE = ChainPolicy(length=5)
VLLM_DRAFT_MODEL, VLLM_EAGLE = ChainPolicy(length=5), ChainPolicy(length=3)
SGLANG_STANDALONE = ChainPolicy(length=3)  # 3 steps, top 1, 4 tokens: 3 forwards, one of them behind the prompt
PUBLISHED = (
    Published(
        name="transformers' earlier chain of 5",
        source="transformers before 4.45, num_assistant_tokens 5; its heuristic schedule of +2 and -1 is left out",
        make=lambda: TRANSFORMERS_BEFORE,
        place=2,
    ),
    Published(
        name="vLLM's chain of 5",
        source="vLLM documentation, speculating with a draft model",
        make=lambda: VLLM_DRAFT_MODEL,
        place=2,
    ),
    Published(
        name="vLLM's chain of 3",
        source="speculators documentation, serving an EAGLE-3 head in vLLM",
        make=lambda: VLLM_EAGLE,
        place=2,
    ),
    Published(
        name="SGLang 3/1/4",
        source="SGLang, _auto_choose_speculative_params: a drafter of its own",
        make=lambda: SGLANG_STANDALONE,
        place=2,
    ),
)
