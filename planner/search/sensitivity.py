"""What would change a cell's answer, computed from the candidates that were priced in it.

For a policy of one cell: t tokens per sequence and round; d, v, h milliseconds of drafting, verification and host per
round; b sequences; r milliseconds of drafters' reading of prompts per token, where it counts.

    rate = b * t / (d + v + h + b * t * r)
    accepted drafts = t - 1

A scenario scales one of d, v, h or t - 1 for every policy alike; no policy accepts more drafts than its trees are deep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ...profiler.records.host_line import CHAIN
from ..inputs import LOOKUP
from ..plans.outlook import Challenger, Change, Neighbour, Outlook, Scenario, Step
from ..pricing.cost import RESUMED, CellCosts, Floats
from ..strategies import drafting
from ..strategies.base import Bounds
from ..strategies.stack import StackPolicy, model_of
from .candidate import Candidate

CHANGES: tuple[Change, ...] = ("verify", "draft", "host", "acceptance")
FACTORS = (0.9, 1.1)
PERCENT = 0.01
AXES: tuple[tuple[str, Step, Step], ...] = (
    ("depth", "shallower", "deeper"),
    ("width", "narrower", "wider"),
    ("tokens", "smaller", "larger"),
)

_MEANS = attrgetter("tokens_per_round", "draft_ms", "verify_ms", "host_ms", "reading_ms")


def outlook_of(
    candidates: Sequence[Candidate],
    chosen: int,
    plain: int,
    costs: CellCosts,
    layers: Mapping[str, int] | None = None,
    *,
    optimism: float = 0.0,
) -> Outlook:
    """Return what would change the answer of a cell; O(candidates).

    `candidates` keep the plan's bound; `chosen` and `plain` are places, PlanError if `plain` has another policy.
    `layers` of block drafters are the most tokens of a chain. `optimism` is the relative gain by choosing on the
    recorded texts: against plain decoding the choice has fewer tokens by that share.
    """
    if candidates[plain].drafter is not None:
        raise PlanError(f"candidate {plain} is a {candidates[plain].policy.label}; pass the place of plain decoding")
    field = _Field(candidates=candidates, rounds=_rounds(candidates, costs.cell.batch), batch=costs.cell.batch)
    is_plain = chosen == plain
    perfect = _perfect_chain(costs, candidates[chosen], layers or {})
    return Outlook(
        scenarios=tuple(
            field.scenario(change, factor, chosen, plain, optimism) for change in CHANGES for factor in FACTORS
        ),
        break_even=None if is_plain else field.break_even(chosen, plain, optimism),
        needed=field.challenger(plain) if is_plain else None,
        worth_per_percent=field.worth_per_percent(chosen),
        perfect_tokens_per_s=None if perfect is None else perfect.tokens_per_s,
        perfect_length=None if perfect is None else perfect.length,
        neighbours=tuple(field.neighbours(chosen)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rounds:
    """Means of the rounds of all candidates: (candidates,) each."""

    tokens: Floats
    draft_ms: Floats
    verify_ms: Floats
    host_ms: Floats
    reading_ms: Floats  # of every token, times the sequences of a batch

    @property
    def ms(self) -> Floats:
        return self.draft_ms + self.verify_ms + self.host_ms

    @property
    def rates(self) -> Floats:
        """Tokens per sequence and millisecond."""
        return self.tokens / (self.ms + self.tokens * self.reading_ms)

    def needed(self, rate: float) -> Floats:
        """Return the tokens per round at which rounds would reach a rate; infinity where reading alone takes longer."""
        left = 1.0 - rate * self.reading_ms
        return np.divide(rate * self.ms, left, out=np.full_like(left, np.inf), where=left > 0.0)

    def scaled(self, change: Change, factor: float) -> _Rounds:
        match change:
            case "verify":
                return replace(self, verify_ms=factor * self.verify_ms)
            case "draft":
                return replace(self, draft_ms=factor * self.draft_ms)
            case "host":
                return replace(self, host_ms=factor * self.host_ms)
            case "acceptance":
                return replace(self, tokens=1.0 + factor * (self.tokens - 1.0))


def _rounds(candidates: Sequence[Candidate], batch: int) -> _Rounds:
    every = np.fromiter(chain.from_iterable(map(_MEANS, candidates)), np.float64, 5 * len(candidates))
    tokens, draft_ms, verify_ms, host_ms, reading_ms = every.reshape(-1, 5).T
    return _Rounds(
        tokens=tokens, draft_ms=draft_ms, verify_ms=verify_ms, host_ms=host_ms, reading_ms=batch * reading_ms
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Field:
    candidates: Sequence[Candidate]
    rounds: _Rounds
    batch: int

    def scenario(self, change: Change, factor: float, chosen: int, plain: int, optimism: float) -> Scenario:
        then = self.rounds.scaled(change, factor)
        fastest, rate = self._fastest(then)
        own = min(then.rates[chosen], self._most(chosen, then))
        return Scenario(
            change=change,
            factor=factor,
            label=self.candidates[fastest].policy.code,
            drafter=self.candidates[fastest].drafter,
            loss=float(max(1.0 - own / rate, 0.0)),
            speedup=float(own * (1.0 - optimism) / then.rates[plain]),
        )

    def break_even(self, chosen: int, plain: int, optimism: float) -> float:
        """Return 1 - (tokens of plain decoding in the planned round's time - 1) / (own tokens - 1), within 0..1."""
        accepted = self.rounds.tokens[chosen] * (1.0 - optimism) - 1.0
        needed = self.rounds.needed(self.rounds.rates[plain])[chosen] - 1.0
        return float(np.clip(1.0 - needed / accepted, 0.0, 1.0)) if accepted > 0.0 else 0.0

    def challenger(self, plain: int) -> Challenger | None:
        """Return who needs the smallest factor on its accepted drafts, of those that can accept so many."""
        accepted = self.rounds.tokens - 1.0
        needed = self.rounds.needed(self.rounds.rates[plain]) - 1.0
        places = np.flatnonzero(accepted > 0.0)
        factors = np.maximum(needed[places], 0.0) / accepted[places]
        for nearest in np.argsort(factors, kind="stable"):
            place = int(places[nearest])
            found = self.candidates[place]
            if needed[place] <= found.policy.bounds.depth:
                return Challenger(label=found.policy.code, drafter=found.drafter, factor=float(factors[nearest]))
        return None

    def worth_per_percent(self, chosen: int) -> float:
        tokens = self.rounds.tokens[chosen]
        return float(PERCENT * (tokens - 1.0) / tokens)

    def neighbours(self, chosen: int) -> Iterator[Neighbour]:
        """Yield the fastest by every other drafter, of every other kind, and in every direction of the shape."""
        own = self.candidates[chosen]
        drafters = np.array([candidate.drafter for candidate in self.candidates], dtype=object)
        kinds = np.array([candidate.policy.kind for candidate in self.candidates], dtype=object)
        for drafter in sorted(set(drafters) - {None, own.drafter}):
            yield self._neighbour("drafter", np.flatnonzero(drafters == drafter))
        if own.drafter is None:
            return
        is_own = drafters == own.drafter
        for kind in sorted(set(kinds[is_own]) - {own.policy.kind}):
            yield self._neighbour("kind", np.flatnonzero(is_own & (kinds == kind)))
        yield from self._shapes(own, np.flatnonzero(is_own & (kinds == own.policy.kind)))

    def _shapes(self, own: Candidate, places: NDArray[np.intp]) -> Iterator[Neighbour]:
        extents = [self.candidates[place].policy.bounds for place in places]
        center = own.policy.bounds
        seen = set()
        for axis, less, more in AXES:
            sizes = np.array([_along(extent, axis) for extent in extents])
            for step, there in ((less, sizes < _along(center, axis)), (more, sizes > _along(center, axis))):
                key = there.tobytes()  # depth and tokens of a chain say the same
                if there.any() and key not in seen:
                    yield self._neighbour(step, places[there])
                seen.add(key)

    def _neighbour(self, step: Step, places: NDArray[np.intp]) -> Neighbour:
        place = int(places[self.rounds.rates[places].argmax()])
        found, rounds = self.candidates[place], self.rounds
        return Neighbour(
            step=step,
            label=found.policy.code,
            drafter=found.drafter,
            tokens_per_s=float(1000.0 * self.batch * rounds.rates[place]),
            tokens_per_round=found.tokens_per_round,
            draft_ms=found.draft_ms,
            verify_ms=found.verify_ms,
            host_ms=found.host_ms,
        )

    def _fastest(self, then: _Rounds) -> tuple[int, float]:
        """Return the fastest and its rate; a candidate above its upper bound `_most` is lowered to it until none is."""
        rates = then.rates
        while True:
            place = int(rates.argmax())
            most = self._most(place, then)
            if rates[place] <= most:
                return place, float(rates[place])
            rates[place] = most

    def _most(self, place: int, then: _Rounds) -> float:
        """Return the rate of a candidate whose deepest path is accepted in every round."""
        tokens = 1.0 + self.candidates[place].policy.bounds.depth
        return float(tokens / (then.ms[place] + tokens * then.reading_ms[place]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Perfect:
    tokens_per_s: float
    length: int


def _next_to_target(candidate: Candidate) -> str | None:
    """Return who drafts what the target verifies: of a stack its first model."""
    drafts = drafting(candidate.policy)
    return drafts.models[0] if isinstance(drafts, StackPolicy) else candidate.drafter


def _perfect_chain(costs: CellCosts, chosen: Candidate, layers: Mapping[str, int]) -> _Perfect | None:
    """Return the fastest chain of a candidate's drafter that is always right; of any known drafter where none drafts.

    A chain of n emits n + 1 tokens, all of which the drafter's first forward catches up with; an exit of the target
    reads 1:

        rate = b * (n + 1) / (draft(n + 1) + (n - 1) * draft(1) + verify(n + 1) + host of n forwards and n + 1 nodes)

    A lookup has no forwards, a block drafter the first alone, for at most as many tokens as it has layers. The chain is
    verified as the candidate's is; where none drafts, in every way there is.
    """
    drafter = _next_to_target(chosen)
    names = list(costs.drafts) if drafter is None else [drafter]
    found = [
        perfect
        for name in names
        for kind in _chain_kinds(costs, chosen, name)
        if costs.has_host(kind, name) and (perfect := _perfect_by(costs, kind, name, layers.get(name))) is not None
    ]
    return max(found, key=lambda perfect: perfect.tokens_per_s, default=None)


def _chain_kinds(costs: CellCosts, chosen: Candidate, drafter: str) -> tuple[str, ...]:
    if drafter == LOOKUP:
        return ("lookup",)
    if chosen.drafter is None:
        return (CHAIN, RESUMED) if drafter in costs.resumed else (CHAIN,)
    return (RESUMED,) if chosen.policy.kind == RESUMED else (CHAIN,)


def _perfect_by(costs: CellCosts, kind: str, drafter: str, layers: int | None) -> _Perfect | None:
    rounds = costs.at_context(kind, model_of(drafter))
    most = rounds.verify.most_tokens
    lengths = np.arange(1, most if layers is None else min(most, layers + 1))
    if not len(lengths):
        return None
    rates = 1000.0 * costs.cell.batch * (lengths + 1) / rounds.chains_ms(lengths, lengths + 1)
    best = int(rates.argmax())
    return _Perfect(tokens_per_s=float(rates[best]), length=int(lengths[best]))


def _along(extent: Bounds, axis: str) -> int:
    size: int = getattr(extent, axis)
    return size
