"""The tree of EAGLE-2 and EAGLE-3: a beam of fixed width, then the best of all it saw. Source: arXiv:2406.16858."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ...errors import PlanError
from ..records.candidates import Candidates
from ..records.costs import PlannedCosts
from ..records.draft import Growth
from ..records.ops import Ops
from ..records.recording import Recorded, Recording
from ..records.results import PositionResults, same_everywhere
from .base import Strategy, Trees, require_at_least
from .eagle2_sweep import eagle2_sweep
from .grown import grown_results
from .naming import name_by
from .offers import Graded, Level, Limits, Published


def _named(found: re.Match[str], drafter: str | None) -> str:
    nodes, depth, top_k = (int(found[name]) for name in ("nodes", "depth", "top_k"))
    return name_by(f"tree of {min(nodes, top_k + depth * top_k**2 + 1)} nodes", drafter) + " (EAGLE-2)"


CODE = "SafeAILab/EAGLE, EaModel.from_pretrained"
WIDTHS = (2, 3, 4, 5, 6, 8, 10)
DEPTHS = range(8)
SIZES = (*range(3, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8))
EAGLE_SIZES = {40: 1.0, 48: 1.05, 50: 1.07, 56: 1.1, 60: 1.13}  # tokens, and what a verify of them is said to be worth
ENGINE_WIDTHS = (2, 3, 4, 6, 8, 10)
ENGINE_DEPTHS = range(1, 8)
ENGINE_SIZES = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle2Policy(Strategy):
    """Grow a beam of `top_k` nodes `depth` times below the first layer, verify the best `verify_tokens`, root included.

    Defaults are those of EAGLE-3's published loader.
    """

    verify_tokens: int = 60
    depth: int = 7
    top_k: int = 10
    kind: Literal["eagle2"] = "eagle2"

    complexity: ClassVar = 3
    in_hybrids: ClassVar = True
    sweeps_together: ClassVar = True
    grid_place: ClassVar = 8
    names: ClassVar = {r"EAGLE-2 (?P<nodes>\d+)/(?P<depth>\d+)/(?P<top_k>\d+)": _named}

    def __post_init__(self) -> None:
        require_at_least("EAGLE-2 verify_tokens", self.verify_tokens, 2)
        require_at_least("EAGLE-2 depth", self.depth, 0)
        require_at_least("EAGLE-2 top_k", self.top_k, 1)

    @property
    def code(self) -> str:
        return f"EAGLE-2 {self.verify_tokens}/{self.depth}/{self.top_k}"

    @property
    def max_verify_tokens(self) -> int:
        candidates = self.top_k + self.depth * self.top_k**2
        return min(self.verify_tokens, candidates + 1)

    @property
    def widths(self) -> tuple[int, ...]:
        return (1,) + (self.top_k,) * self.depth

    @property
    def widest_layer(self) -> int:
        return self.top_k

    @property
    def children(self) -> int:
        return self.top_k

    @property
    def sure_width(self) -> int:
        return self.top_k if self.depth else 1

    @property
    def written(self) -> str:
        return (
            f"Eagle2Policy(verify_tokens={self.verify_tokens!r}, depth={self.depth!r}, top_k={self.top_k!r}, "
            "kind='eagle2')"
        )

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        """Return the best `verify_tokens - 1` candidates of a beam search, and the root.

        layer 1 = top_k children of the root
        layer i = top_k children of the top_k best of layer i - 1 by path score; all top_k^2 recorded
        tree    = the best of all recorded candidates; all of them if there are fewer

        Source: Li et al. 2024, arXiv:2406.16858, Sec. 4 (expansion, reranking); same in arXiv:2503.01840.
        """
        tree = yield from Candidates.below_root(ops, self.top_k)
        for _ in range(self.depth):
            yield from tree.expand(ops.best(tree.scores, self.top_k))
        return tree.best_tree(self.verify_tokens - 1)

    def results(self, recorded: Recorded) -> PositionResults:
        ((_, results),) = eagle2_results(recorded.drafted, self.top_k, [self.depth], [self.verify_tokens])
        return results

    @classmethod
    def sweep(cls, recorded: Recorded, variants: Sequence[Eagle2Policy]) -> Iterator[Graded]:
        recording, wanted = recorded.drafted, {*variants}
        for top_k in sorted({one.top_k for one in variants if one.top_k <= recording.children}):
            own = [one for one in variants if one.top_k == top_k]
            depths, sizes = sorted({one.depth for one in own}), sorted({one.verify_tokens for one in own})
            for policy, results in eagle2_results(recording, top_k, depths, sizes):
                if policy in wanted:
                    yield Graded(policy, results)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        """Yield the trees of every recorded width; sizes that hold every candidate appear once."""
        sizes = [size for size in SIZES if size <= limits.most_tokens]
        for top_k in WIDTHS if sizes else ():
            if top_k <= recorded.drafted.children:
                for policy, results in eagle2_results(recorded.drafted, top_k, DEPTHS, sizes):
                    if policy.max_verify_tokens == policy.verify_tokens:
                        yield Graded(policy, results)

    @classmethod
    def recorded_at(cls, level: Level) -> list[Eagle2Policy]:
        """Return narrow beams or every width up to EAGLE's own; these as deep as its default, or its deepest."""
        if level in ("chains", "quick"):
            depths = {2: 5, 3: 4, 4: 3} if level == "quick" else {}
        else:
            deepest = EAGLE_OF_TALON if level == "full" else EAGLE
            depths = dict.fromkeys(range(2, EAGLE.top_k), EAGLE.depth) | {deepest.top_k: deepest.depth}
        return [cls(top_k=width, depth=depth) for width, depth in depths.items()]

    @classmethod
    def unrecorded(cls, children: int) -> list[Eagle2Policy]:
        return [cls(top_k=top_k) for top_k in WIDTHS if top_k > children]

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        if drafter is None:
            return []
        size = "EAGLE's own choice of size"
        auto = Published(name=size, source=f"{CODE}, total_token=-1", make=lambda: eagle_auto(costs), place=3)
        return [*PUBLISHED, auto]

    @classmethod
    def engine_grid(cls) -> list[Eagle2Policy]:
        return [
            cls(verify_tokens=size, depth=depth, top_k=width)
            for width in ENGINE_WIDTHS
            for depth in ENGINE_DEPTHS
            for size in ENGINE_SIZES
            if size > depth + 2 and size - 1 <= width + depth * width**2
        ]

    @classmethod
    def probes(cls, most_tokens: int) -> list[Eagle2Policy]:
        return [cls(verify_tokens=6, depth=1, top_k=2), cls(verify_tokens=min(24, most_tokens), depth=4, top_k=6)]

    @classmethod
    def smallest(cls) -> list[Eagle2Policy]:
        return [cls(verify_tokens=3, depth=1, top_k=1)]


def eagle2_results(
    recording: Recording, top_k: int, depths: Iterable[int], verify_tokens: Sequence[int]
) -> Iterator[tuple[Eagle2Policy, PositionResults]]:
    """Yield the results of every depth and size of one width, all from one beam.

    A shallower beam begins a deeper one, and a smaller tree begins a larger one's ranking. Sizes beyond the number of
    candidates are clipped as `grow` does. A position is censored where an unrecorded expansion could push the deepest
    accepted node out of the tree, or hang another one below it. PlanError if the trace has too few children.
    """
    wanted, sizes = sorted(set(depths)), sorted(set(verify_tokens))
    policies = [
        Eagle2Policy(verify_tokens=size, depth=depth, top_k=top_k) for depth in wanted for size in verify_tokens
    ]
    if not recording.is_ordered:
        yield from ((policy, grown_results(policy, recording)) for policy in policies)
        return
    recording.require_children(top_k)
    shape = (len(recording.roots), len(wanted), len(sizes))
    accepted, is_censored = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.bool_)
    eagle2_sweep(recording.expansions, top_k, np.array(wanted), np.array(sizes) - 1, accepted, is_censored)
    for policy in policies:
        place = (slice(None), wanted.index(policy.depth), sizes.index(policy.verify_tokens))
        yield (
            policy,
            PositionResults(
                accepted=accepted[place].astype(np.int64),
                sizes=np.full(shape[0], policy.max_verify_tokens, dtype=np.int64),
                censored=is_censored[place].copy(),
                widths=same_everywhere((1,) + (top_k,) * policy.depth),
            ),
        )


def eagle_total_tokens(verify_ms: Sequence[float]) -> int:
    """Return the tree size that EAGLE's loader chooses for `total_token=-1`; PlanError below 60 measured tokens.

    It times forwards of 40, 48, 50, 56 and 60 tokens of one sequence without context. It takes the least time per
    hard-coded worth: 1, 1.05, 1.07, 1.1 and 1.13; of equal ones the smallest. `verify_ms` is indexed by tokens.

    Source: SafeAILab/EAGLE, EaModel.from_pretrained.
    """
    if len(verify_ms) <= max(EAGLE_SIZES):
        raise PlanError(
            f"EAGLE's own choice times up to {max(EAGLE_SIZES)} tokens, got {len(verify_ms) - 1}; measure them"
        )
    return min(EAGLE_SIZES, key=lambda tokens: verify_ms[tokens] / EAGLE_SIZES[tokens])


def eagle_auto(costs: PlannedCosts) -> Eagle2Policy:
    """Return EAGLE's default tree at its loader's size for this cell's verify times; see `eagle_total_tokens`."""
    tokens = eagle_total_tokens(costs.verify.row(costs.cell.context).tolist())
    return Eagle2Policy(verify_tokens=tokens, depth=EAGLE.depth, top_k=EAGLE.top_k)


EAGLE = Eagle2Policy(verify_tokens=60, depth=7, top_k=10)
EAGLE_OF_TALON = Eagle2Policy(verify_tokens=60, depth=8, top_k=10)  # by their cost identity it runs D + 1 forwards
SGLANG_LLAMA = Eagle2Policy(verify_tokens=8, depth=4, top_k=4)  # 5 steps: 5 forwards, the deepest node at depth 5
PUBLISHED = (
    Published(
        name="SGLang 5/4/8",
        source="SGLang, _auto_choose_speculative_params: a head for Llama",
        make=lambda: SGLANG_LLAMA,
        place=3,
    ),
    Published(name="EAGLE 60/7/10", source=CODE, make=lambda: EAGLE, place=3),
    Published(
        name="EAGLE-3 as TALON sets it",
        source="Liu et al. 2026, arXiv:2601.07353, defaults of Sec. 4: K = 10, D = 8",
        make=lambda: EAGLE_OF_TALON,
        place=3,
    ),
)
