"""The knobs that grids cannot hold, searched per cell: CAST's thresholds and caps, and points between grid points.

The search covers every drafter that comes near a cell's best, and every kind whose grid does. Each study, and CAST's
survival curves, see one half of the texts, so that the other can judge (crossfit.py).

Knobs of strategies, searched by Optuna on replayed speed; the floor above opens the study.

A study holds numbers; a stored one resumes: finished trials are replayed as candidates, at no trial's cost.

Texts that outlive the records they describe: names of studies, and the order of hybrids.

They never change, whatever records and fields are called: else stored trials are lost, found by name, and equally fast
candidates, ordered by these texts, give other plans. They are what `repr` gave when they were fixed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...profiler.confidence import fit_calibration
from ...profiler.records.calibration import SurvivalCurve
from ...profiler.records.overhead import OverheadSample
from ..inputs import PlanInputs
from ..plans.objective import LatencyBound
from ..pricing.cost import CellCosts
from ..records.crossfit import EVERYWHERE, HALVES, texts_of_half
from ..records.knobs import Knobs, Range
from ..replay.rehearsal import Rehearsal
from ..strategies import REGISTRY, TreePolicy
from ..strategies.base import MOST_CHILDREN, Strategy
from ..strategies.offers import Space
from .candidate import Candidate
from .contest import CellSearch
from .options import SearchOptions, Studies
from .studies import APART

if TYPE_CHECKING:
    import optuna


DRAFTER_REACH = 0.85  # of the cell's best, that a drafter's own best must come to
KIND_REACH = 0.95  # of the same, that the best of a kind's grid must come to
STARTS = 2  # of a grid's fastest, that a study begins with
STUDY_VERSION = 3  # of what a trial's knobs and value mean
SEARCHED: list[type[Strategy]] = sorted(
    (one for one in REGISTRY.values() if one.search_place is not None), key=lambda one: one.search_place or 0
)


@dataclass(slots=True, eq=False)
class Searcher:
    """Searches cells one by one; survival curves are fitted once per drafter and half."""

    options: SearchOptions
    studies: Studies
    rehearsal: Rehearsal
    _digest: str = ""
    _survivals: dict[tuple[str, int], tuple[SurvivalCurve, ...]] = field(default_factory=dict)

    def search(self, contest: CellSearch) -> None:
        """Enter searched policies of the drafters and kinds that come near the best of a cell."""
        for drafter in self.rehearsal.inputs.drafters:
            runs = drafter.name in contest.costs.drafts
            if runs and contest.best_with(drafter.name) >= DRAFTER_REACH * contest.best_rate:
                hunts = [
                    CellHalf(contest=contest, drafter=drafter.name, half=half, searcher=self) for half in range(HALVES)
                ]
                for strategy in SEARCHED:
                    strategy.search(hunts)

    def study(self, hunt: CellHalf, space: Space, starts: list[dict[str, float]]) -> None:
        """Search a space on one half of the texts from some knobs on."""
        trials = (self.options.trials + hunt.half) // HALVES  # an odd one goes to the second half
        if trials:
            cell, limits = hunt.contest.costs.cell, limits_text(self.options.bound, self.options.max_memory_bytes)
            answers = "" if self.options.new_tokens is None else f", answers of {self.options.new_tokens}"
            answers += f" behind {self.options.cached_share:g} cached" if self.options.cached_share else ""
            place = f"{cell.batch}x{cell.context} in {cell.low:g}..{cell.high:g}, {limits}{answers}"
            what = f"v{STUDY_VERSION} {hunt.drafter} {space.kind} half {hunt.half}"
            search(
                self.studies(f"{self._inputs_digest()} {place}{APART}{what}"),
                space.ranges,
                starts,
                trials,
                lambda knobs: hunt.price(space.policy(knobs)),
            )

    def survival(self, drafter: str, half: int) -> tuple[SurvivalCurve, ...]:
        """Return a drafter's survival curves on a half of the texts."""
        if (drafter, half) not in self._survivals:
            trace = self.rehearsal.inputs.drafter(drafter).trace
            places = np.flatnonzero(texts_of_half(len(trace.prompts), half)).tolist()
            self._survivals[drafter, half] = fit_calibration(trace, places).curves
        return self._survivals[drafter, half]

    def _inputs_digest(self) -> str:
        """Return a name for all that prices follow from: trials of other inputs must not be reused."""
        if not self._digest:
            self._digest = _digest(self.rehearsal.inputs)
        return self._digest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellHalf:
    """One cell and drafter, searched on one half of the texts."""

    contest: CellSearch
    drafter: str
    half: int
    searcher: Searcher

    @property
    def costs(self) -> CellCosts:
        """Of the cell."""
        return self.contest.costs

    @property
    def children(self) -> int:
        """Best next tokens of a node that policies look at."""
        return min(MOST_CHILDREN, self.searcher.rehearsal.recording(self.drafter).children)

    @property
    def best_rate(self) -> float:
        """Most tokens per second in the cell so far."""
        return self.contest.best_rate

    @property
    def survival(self) -> tuple[SurvivalCurve, ...]:
        """The drafter's survival curves on the half."""
        return self.searcher.survival(self.drafter, self.half)

    def is_near(self, kind: str) -> bool:
        """Return whether the best of a kind comes near the cell's best."""
        return self.contest.best_of(kind, self.drafter) >= KIND_REACH * self.contest.best_rate

    def enter(self, policy: TreePolicy) -> None:
        """Price a policy that saw no half more than the other."""
        replay = self.searcher.rehearsal.replay(policy, self.drafter, self.contest.batch)
        self.contest.enter(policy, self.drafter, replay)

    def price(self, policy: TreePolicy) -> float:
        """Enter a policy; return its tokens/s on the half's texts, 0 where it has no price or breaks the bound."""
        replay = self.searcher.rehearsal.replay(policy, self.drafter, self.contest.batch, is_kept=False)
        self.contest.enter(policy, self.drafter, replay, self.half)
        place = self.contest.place_of(policy, self.drafter)
        if place is None or not self.contest.keeps_bound(place):
            return 0.0
        return self._speed(self.contest.priced[place])

    def fastest(self, kind: str) -> list[TreePolicy]:
        """Return the fastest policies of a kind on the half's texts, of those that saw no other ones."""
        seen = (EVERYWHERE, self.half)
        priced = zip(self.contest.priced, self.contest.searched_on, strict=True)
        known = [one for one, half in priced if half in seen and (one.policy.kind, one.drafter) == (kind, self.drafter)]
        return [one.policy for one in sorted(known, key=lambda one: -self._speed(one))[:STARTS]]

    def study(self, space: Space, starts: list[dict[str, float]]) -> None:
        """Search a space from some knobs on."""
        self.searcher.study(self, space, starts)

    def _speed(self, candidate: Candidate) -> float:
        return candidate.tokens_per_s_on(texts_of_half(len(candidate.ms), self.half))


def _digest(inputs: PlanInputs) -> str:
    found = hashlib.sha256(f"{inputs.device.fingerprint} {inputs.target.key} {inputs.dtype}".encode())
    forwards = (inputs.verify, *(surface for drafter in inputs.drafters for surface in drafter.surfaces))
    for surface in (*forwards, *inputs.readings.values()):
        found.update(repr([(c.batch, c.context_tokens, c.tokens, c.repeats_ms) for c in surface.measurements]).encode())
    found.update(samples_text(inputs.overhead.samples).encode())
    for drafter in inputs.drafters:
        for prompt in drafter.trace.prompts:
            found.update(repr((prompt.prompt, prompt.continuation)).encode())
            found.update(prompt.log_probs.tobytes())
    return found.hexdigest()[:16]


Trial = Callable[[Knobs], float]  # knobs -> tokens per second on the texts searched on, 0 where they have no price


def search(study: optuna.Study, space: Mapping[str, Range], starts: Sequence[Knobs], trials: int, run: Trial) -> None:
    """Run trials in a maximising study until it has `trials`, those of earlier runs included.

    A fresh study tries `starts` first; values outside `space` move to its edge. `run` prices a policy with such knobs
    and enters it as a candidate.
    """
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    for params in {tuple(sorted(trial.params.items())): trial.params for trial in finished}.values():
        run(params)
    if not study.get_trials(deepcopy=False):
        for start in starts[:trials]:
            study.enqueue_trial({name: space[name].nearest(value) for name, value in start.items()})
    for _ in range(trials - len(finished)):
        trial = study.ask()
        study.tell(trial, run({name: range_.suggest(trial, name) for name, range_ in space.items()}))


def samples_text(samples: Sequence[OverheadSample]) -> str:
    """Return timed host times as the name of a study holds them."""
    written = ", ".join(map(_sample_text, samples))
    return f"({written},)" if len(samples) == 1 else f"({written})"


def _sample_text(sample: OverheadSample) -> str:
    return (
        f"OverheadSample(kind={sample.kind!r}, batch={sample.batch!r}, draft_forwards={sample.draft_forwards!r}, "
        f"nodes={sample.nodes!r}, host_ms={sample.host_ms!r}, is_sampled={sample.is_sampled!r}, "
        f"role={sample.role!r}, drafter={sample.drafter!r}, is_ahead={sample.is_ahead!r})"
    )


def limits_text(bound: LatencyBound | None, max_memory_bytes: int | None) -> str:
    """Return the limits of a search as the name of a study holds them."""
    written = None if bound is None else f"LatencyBound(metric={bound.metric!r}, most_ms={bound.most_ms!r})"
    return f"({written}, {max_memory_bytes!r})"
