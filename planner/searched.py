"""The knobs that grids cannot hold, searched per cell: CAST's thresholds and caps, TALON's gate, budget and depth.

Only drafters that come near a cell's best are searched for. Every study sees one half of the texts alone, so that what
it finds can be judged on the other (crossfit.py); CAST's survival curves are fitted on the same half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..profiler.confidence import fit_calibration
from ..profiler.records.calibration import SurvivalCurve
from .candidate import Candidate
from .contest import Contest
from .crossfit import HALVES, folds_of, half_of
from .inputs import PlanInputs
from .knobs import Knobs, Range, search
from .options import SearchOptions, Studies
from .policy import Eagle2Policy, PlainPolicy, TalonPolicy, TreePolicy
from .rehearsal import Rehearsal
from .solved_cast import cast_policy, cast_space, fixed_point, like_eagle2, uniform

WORTH_SEARCHING = 0.85  # of the cell's best, that a drafter's own best must reach
HAND_SET = (1.0, 2.0, 3.0)  # uniform CAST thresholds that always compete, on the drafter's own confidence
STARTS = 2  # of a grid's fastest, that a study begins with
MOST_DRAFTERS = 1  # searched for per cell, the fastest first
Bools = NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Searcher:
    """Searches cells one by one; survival curves are fitted once per drafter and half."""

    inputs: PlanInputs
    options: SearchOptions
    studies: Studies
    rehearsal: Rehearsal
    _digest: str = ""
    _survivals: dict[tuple[str, int], tuple[SurvivalCurve, ...]] = field(default_factory=dict)

    def search(self, contest: Contest) -> None:
        """Enter searched policies of the drafters that come near the best of a cell."""
        promising = sorted(
            (drafter.name for drafter in self.inputs.drafters if _best_with(contest, drafter.name) > 0.0),
            key=lambda name: -_best_with(contest, name),
        )
        for drafter in promising[:MOST_DRAFTERS]:
            if _best_with(contest, drafter) >= WORTH_SEARCHING * contest.best_rate:
                for threshold in HAND_SET:
                    self._enter(contest, drafter, self._cast(contest, drafter, uniform(threshold), ()), None)
                for half in range(HALVES):
                    self._search_cast(contest, drafter, half)
                    self._search_talon(contest, drafter, half)

    def _search_cast(self, contest: Contest, drafter: str, half: int) -> None:
        survival = self._survival(drafter, half)

        def run(knobs: Knobs) -> float:
            return self._enter(contest, drafter, self._cast(contest, drafter, knobs, survival), half)

        plain = next(one for one in contest.priced if isinstance(one.policy, PlainPolicy))
        on_half = _speed_on(plain, self._texts_of(half))
        start = contest.best_rate / plain.tokens_per_s
        children = self.rehearsal.recording(drafter).children
        space = cast_space(children, contest.costs.verify.most_tokens)
        widest = {name: range_.high for name, range_ in space.items() if range_.is_whole}
        starts = [knobs | widest for knobs in fixed_point(run, on_half, start)[:2]]
        starts += [like_eagle2(policy) for policy in self._best_beams(contest, drafter, half)]
        self._study(contest, drafter, "cast", half, space, starts, run)

    def _best_beams(self, contest: Contest, drafter: str, half: int) -> list[Eagle2Policy]:
        """Return the fastest EAGLE-2 trees on the texts of a half."""
        known = [one for one in contest.priced if isinstance(one.policy, Eagle2Policy) and one.drafter == drafter]
        ranked = sorted(known, key=lambda one: -_speed_on(one, self._texts_of(half)))[:STARTS]
        return [one.policy for one in ranked if isinstance(one.policy, Eagle2Policy)]

    def _search_talon(self, contest: Contest, drafter: str, half: int) -> None:
        children = min(10, self.rehearsal.recording(drafter).children)
        texts = self._texts_of(half)

        def run(knobs: Knobs) -> float:
            return self._enter(contest, drafter, _talon(knobs, children), half)

        known = [one for one in contest.priced if isinstance(one.policy, TalonPolicy) and one.drafter == drafter]
        ranked = sorted(known, key=lambda one: -_speed_on(one, texts))[:STARTS]
        starts = [_knobs_of(one.policy) for one in ranked if isinstance(one.policy, TalonPolicy)]
        most = min(60, contest.costs.verify.most_tokens)
        space = {
            "nodes": Range(3, most, is_whole=True),
            "gate": Range(0.003, 1.0),
            "top_k": Range(1, children, is_whole=True),
            "max_depth": Range(1, 10, is_whole=True),
        }
        self._study(contest, drafter, "talon", half, space, starts, run)

    def _study(
        self,
        contest: Contest,
        drafter: str,
        kind: str,
        half: int,
        space: Mapping[str, Range],
        starts: list[dict[str, float]],
        run: Callable[[Knobs], float],
    ) -> None:
        trials = self.options.trials // HALVES
        if trials and kind in contest.costs.host:
            cell = contest.costs.cell
            name = f"{self._inputs_digest()} {drafter} {kind} {cell.batch}x{cell.context} half {half}"
            search(self.studies(name), space, starts, trials, run)

    def _cast(
        self, contest: Contest, drafter: str, knobs: Knobs, survival: tuple[SurvivalCurve, ...]
    ) -> TreePolicy | None:
        if contest.costs.verify.most_tokens < 2 or "cast" not in contest.costs.host:
            return None
        return cast_policy(contest.costs, drafter, self.rehearsal.recording(drafter).children, knobs, survival)

    def _enter(self, contest: Contest, drafter: str, policy: TreePolicy | None, half: int | None) -> float:
        """Price a policy; return its speed on the texts of the half, on all where there is none, 0 without a price."""
        if policy is None:
            return 0.0
        replay = self.rehearsal.replay(policy, drafter, contest.costs.cell.batch)
        found = contest.enter(policy, drafter, replay) if half is None else contest.enter(policy, drafter, replay, half)
        if found is None:
            return 0.0
        return found.tokens_per_s if half is None else _speed_on(found, self._texts_of(half))

    def _texts_of(self, half: int) -> Bools:
        is_of_half: Bools = half_of(folds_of(len(self.inputs.texts))) == half
        return is_of_half

    def _survival(self, drafter: str, half: int) -> tuple[SurvivalCurve, ...]:
        if (drafter, half) not in self._survivals:
            places = np.flatnonzero(self._texts_of(half)).tolist()
            calibration = fit_calibration(self.inputs.drafter(drafter).trace, places)
            self._survivals[drafter, half] = calibration.curves
        return self._survivals[drafter, half]

    def _inputs_digest(self) -> str:
        """Return a name for everything prices follow from: trials of other inputs must not be taken for these."""
        if not self._digest:
            self._digest = _digest(self.inputs)
        return self._digest


def _talon(knobs: Knobs, children: int) -> TalonPolicy:
    return TalonPolicy(
        nodes=int(knobs["nodes"]),
        gate=knobs["gate"],
        top_k=int(knobs["top_k"]),
        children=children,
        max_depth=int(knobs["max_depth"]),
    )


def _knobs_of(policy: TalonPolicy) -> dict[str, float]:
    return {"nodes": policy.nodes, "gate": policy.gate, "top_k": policy.top_k, "max_depth": policy.max_depth}


def _best_with(contest: Contest, drafter: str) -> float:
    return max((one.tokens_per_s for one in contest.priced if one.drafter == drafter), default=0.0)


def _speed_on(candidate: Candidate, texts: Bools) -> float:
    """Return the tokens per second on some of the texts, 0 where none of their rounds is steady."""
    spent = float(candidate.ms[texts].sum())
    return 1000.0 * float(candidate.tokens[texts].sum()) / spent if spent > 0.0 else 0.0


def _digest(inputs: PlanInputs) -> str:
    found = hashlib.sha256(f"{inputs.device.fingerprint} {inputs.target.key} {inputs.dtype}".encode())
    for surface in (inputs.verify, *(drafter.surface for drafter in inputs.drafters)):
        found.update(repr([(c.batch, c.context_tokens, c.tokens, c.repeats_ms) for c in surface.measurements]).encode())
    found.update(repr(inputs.overhead.samples).encode())
    for drafter in inputs.drafters:
        for prompt in drafter.trace.prompts:
            found.update(repr((prompt.prompt, prompt.continuation)).encode())
            found.update(prompt.log_probs.tobytes())
    return found.hexdigest()[:16]
