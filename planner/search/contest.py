"""All candidates of one cell: priced, pruned because they cannot win, or left out because they cannot be priced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ...errors import PlanError
from ..inputs import PlanInputs, resumes_of
from ..lockstep import Replay
from ..lossy.quality import Quality
from ..plans.objective import LatencyBound
from ..plans.provenance import LeftOut
from ..pricing.bounds import Bound
from ..pricing.cells import Cell
from ..pricing.cost import CellCosts, cell_costs
from ..pricing.reading import ReadingCosts, reading_costs
from ..pricing.round import RoundCosts, RoundTimes
from ..records.crossfit import EVERYWHERE, HALVES, texts_of_half
from ..strategies import TreePolicy
from ..strategies.stack import model_of
from .candidate import Candidate, candidate_of, times_of

MOST_CENSORED = 0.02  # share of visited positions that may lack an expansion before a policy is left out
REACH = 0.90  # candidates that cannot come so near to the cell's best are not replayed
TAIL = 0.90  # share of rounds that keep a bound on the tail
Rival = tuple[str, str | None]  # kind and drafter
Staged = tuple[TreePolicy, str | None]
NeedsBytes = Callable[[TreePolicy, str | None], int | None]  # of a policy with a drafter; None where it is not known


@dataclass(slots=True, eq=False)
class CellSearch:
    """The candidates of one cell; one that breaks the bound is priced, but no other is measured against it."""

    costs: CellCosts
    texts: int  # recorded
    needs_bytes: NeedsBytes  # the memory of a policy; `unknown_bytes` between processes
    most_bytes: int | None = None  # of memory; None is no limit
    reading: ReadingCosts = field(default_factory=ReadingCosts)
    bound: LatencyBound | None = None
    priced: list[Candidate] = field(default_factory=list)  # in order of entry; once each, but for lossy ones
    searched_on: list[int] = field(default_factory=list)  # half of the folds for its knobs; EVERYWHERE: grid, both
    latencies_ms: list[float] = field(default_factory=list)  # where there is a bound, by its metric
    pruned: int = 0  # not replayed because they cannot win
    untried: int = 0  # not replayed because others are expected to be faster, though they might win
    clipped_share: float = 0.0  # of plain decoding's rounds, those priced at the nearest measured context
    _places: dict[Staged, int] = field(default_factory=dict)
    _best: dict[Rival | None, float] = field(default_factory=dict)
    _least: dict[Rival, RoundCosts] = field(default_factory=dict)
    _refused: dict[Rival, list[tuple[str, str]]] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Sequences of the cell."""
        return self.costs.cell.batch

    @property
    def best_rate(self) -> float:
        """Most tokens per second so far, of those that keep the bound."""
        return self._best.get(None, 0.0)

    def best_with(self, drafter: str) -> float:
        """Return the most tokens per second with a drafter so far, 0 where none was priced."""
        return max((speed for rival, speed in self._best.items() if rival and rival[1] == drafter), default=0.0)

    def keeps_bound(self, place: int) -> bool:
        """Return whether a priced candidate keeps the bound; all do where there is none."""
        return self.bound is None or self.latencies_ms[place] <= self.bound.most_ms

    def best_of(self, kind: str, drafter: str | None) -> float:
        """Return the most tokens per second of a kind with a drafter so far, 0 where none was priced."""
        return self._best.get((kind, drafter), 0.0)

    def lacks_times(self, policy: TreePolicy, drafter: str | None) -> bool:
        """Return whether a policy is refused without a replay, for lack of host or verify times, or of its drafter."""
        model = model_of(drafter)
        try:
            self.costs.host_of(policy.kind, model)
            self.costs.require_verified(policy, drafter)
            if model is not None:
                self.costs.drafting(model)
        except PlanError as error:
            self.refuse(policy, drafter, str(error))
            return True
        return False

    def can_matter(self, policy: TreePolicy, drafter: str | None, bound: Bound) -> bool:
        """Return whether a policy may come near the best, or be the best of its kind and drafter; count it if not."""
        if bound.censored_share > MOST_CENSORED:
            return True
        least_ms = bound.least_ms(self._least_costs(policy, drafter))
        most_rate = 1000.0 * self.batch * bound.most_tokens / least_ms if np.isfinite(least_ms) else np.inf
        matters = most_rate >= min(REACH * self.best_rate, self.best_of(policy.kind, drafter))
        self.pruned += not matters
        return bool(matters)

    def enter(
        self,
        policy: TreePolicy,
        drafter: str | None,
        replay: Replay,
        searched_on: int = EVERYWHERE,
        *,
        times: RoundTimes | None = None,
        quality: Quality | None = None,
    ) -> Candidate | None:
        """Price a replay and return the candidate, an earlier one if there is; else note why not and return None.

        `searched_on` is the half of the folds its knobs were searched on. `times` of the rounds are given where several
        models draft, the measured `quality` of a lossy policy always, else it is refused.
        """
        before = self.place_of(policy, drafter)
        if before is not None:
            if self.searched_on[before] != searched_on:
                self.searched_on[before] = EVERYWHERE
            return self.priced[before]
        refusal = self._lacking(policy, drafter) or self._refusal(policy, drafter, replay)
        if policy.is_lossy and quality is None:
            refusal = "it is lossy, and what it costs in quality was not measured"
        if refusal is None:
            try:
                known = times or times_of(policy, drafter, replay, self.costs)
                share_ms = self.reading.share_ms(policy, drafter)
                made = candidate_of(policy, drafter, replay, known, self.costs, self.texts, share_ms)
                found = made if quality is None else replace(made, quality=quality)
            except PlanError as error:
                refusal = str(error)
        if refusal is not None:
            self.refuse(policy, drafter, refusal)
            return None
        if quality is None:  # runs of a lossy way are several measurements of it
            self._places[policy, drafter] = len(self.priced)
        self.priced.append(found)
        self.searched_on.append(searched_on)
        if self.bound is not None:
            self.latencies_ms.append(self._latency_ms(found, replay, known, self.bound))
        if self.keeps_bound(-1):
            for rival in (None, (policy.kind, drafter)):
                self._best[rival] = max(self._best.get(rival, 0.0), found.tokens_per_s)
        return found

    def refuse(self, policy: TreePolicy, drafter: str | None, reason: str) -> None:
        """Note a policy that cannot be priced."""
        self._refused.setdefault((policy.kind, drafter), []).append((policy.code, reason))

    def find(self, policy: TreePolicy, drafter: str | None) -> Candidate | None:
        """Return a candidate that was priced, None where this policy was not."""
        place = self.place_of(policy, drafter)
        return None if place is None else self.priced[place]

    def place_of(self, policy: TreePolicy, drafter: str | None) -> int | None:
        """Return the place of a policy among the priced, None where it has none."""
        return self._places.get((policy, drafter))

    def fastest_by_half(self, kind: str, drafter: str | None = None) -> dict[TreePolicy, int]:
        """Return the fastest policy of a kind on each half of the texts, and that half; EVERYWHERE if it is one policy.

        Policies searched on the other half, and halves without texts, are left out. `drafter` None is any.
        """
        found: dict[TreePolicy, int] = {}
        for half in range(HALVES):
            texts, seen = texts_of_half(self.texts, half), (EVERYWHERE, half)
            able = [
                one
                for one, searched_on in zip(self.priced, self.searched_on, strict=True)
                if one.policy.kind == kind and drafter in (None, one.drafter) and searched_on in seen
            ]
            best = max(able, key=lambda one: one.tokens_per_s_on(texts), default=None)
            if best is not None and best.tokens_per_s_on(texts) > 0.0:
                found[best.policy] = EVERYWHERE if best.policy in found else half
        return found

    def reason(self, policy: TreePolicy, drafter: str | None) -> str:
        """Return why a policy has no price."""
        reasons = self._refused.get((policy.kind, drafter), [])
        return next(reason for code, reason in reasons if code == policy.code)

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what could not be priced, one line per kind and drafter, the first of each as its reason."""
        cell = self.costs.cell
        return tuple(
            LeftOut(
                batch=cell.batch,
                context=cell.context,
                drafter=drafter,
                label=reasons[0][0] if len(reasons) == 1 else f"{len(reasons)} of kind {kind}",
                reason=reasons[0][1] if len(reasons) == 1 else f"for example {': '.join(reasons[0])}",
            )
            for (kind, drafter), reasons in self._refused.items()
        )

    def _least_costs(self, policy: TreePolicy, drafter: str | None) -> RoundCosts:
        model = model_of(drafter)
        rounds = self.costs.kind_of(policy, model), model
        if rounds not in self._least:
            self._least[rounds] = self.costs.at_least(*rounds)
        return self._least[rounds]

    def _lacking(self, policy: TreePolicy, drafter: str | None) -> str | None:
        try:
            self.costs.require_verified(policy, drafter)
        except PlanError as error:
            return str(error)
        return None

    def _refusal(self, policy: TreePolicy, drafter: str | None, replay: Replay) -> str | None:
        if replay.censored_share > MOST_CENSORED:
            lacking = f"{replay.censored_share:.1%} of the visited positions lack a recorded expansion"
            return f"{lacking}; record wider or deeper"
        if self.most_bytes is None or policy.source == "none":
            return None
        needed = self.needs_bytes(policy, drafter)
        if needed is not None and needed > self.most_bytes:
            return f"it takes {needed / 2**30:.2f} GiB of memory, at most {self.most_bytes / 2**30:.2f} GiB are allowed"
        return None

    def _latency_ms(self, found: Candidate, replay: Replay, times: RoundTimes, bound: LatencyBound) -> float:
        if bound.metric == "itl":
            return 1000.0 * self.batch / found.decoding.tokens_per_s
        return _tail_ms(replay, times)


def contest_of(
    inputs: PlanInputs,
    cell: Cell,
    bound: LatencyBound | None = None,
    new_tokens: int | None = None,
    cached_share: float = 0.0,
) -> CellSearch:
    """Return the contest of a cell before anything has entered; memory is not set.

    With `new_tokens` of an answer whole requests are priced, with None decoding alone. `cached_share` of a prompt is
    not read again. MeasurementError: the batch was not measured.
    """
    drafts, kind = {drafter.name: drafter.surface for drafter in inputs.drafters}, inputs.device.kind
    return CellSearch(
        costs=cell_costs(cell, inputs.verify, drafts, inputs.overhead, resumes_of(inputs), kind, inputs.knots),
        texts=len(inputs.texts),
        needs_bytes=unknown_bytes,
        reading=reading_costs(inputs, cell, new_tokens, cached_share),
        bound=bound,
    )


def unknown_bytes(policy: TreePolicy, drafter: str | None) -> None:
    """Return None: memory is known where the inputs are."""


def _tail_ms(replay: Replay, times: RoundTimes) -> float:
    """Return the milliseconds per token that nine of ten rounds of a sequence keep."""
    return float(np.quantile((times.total_ms[:, None] / replay.kept)[replay.counts], TAIL))
