"""How long recording takes, foretold from a few timed forwards, and how many texts it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...runtime.batch.sequence import Request
from ...runtime.models.block import RoundHead
from ...runtime.models.forward import CausalModel
from ...runtime.models.tapped import reads_of
from ..measuring.trial import ForwardTrial
from .continuations import SLOTS
from .effort import FED, LEAST_AT_ONCE, TRIED_POSITIONS, RecordingBudget
from .recipe import LEVELS

WIDE = 512  # tokens that are read at once of a text
COMPARED_TEXTS = 2  # along which all models are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """What a trial of forwards says of recording: of the target (surface 0) and the drafters behind it."""

    trial: ForwardTrial
    drafters: Sequence[CausalModel]

    def effort(self, limit_s: float, fewest_texts: int, workloads: Sequence[Sequence[Request]]) -> RecordingBudget:
        """Return the effort for each of some workloads: its groups are smaller where a full one exceeds the limit."""
        whole = RecordingBudget(limit_s=limit_s, fewest_texts=fewest_texts)
        if not self.trial.cells or all(self.least_s(requests, whole) <= limit_s for requests in workloads):
            return whole
        least = min(max(fewest_texts, LEAST_AT_ONCE), SLOTS)
        return RecordingBudget(limit_s=limit_s, fewest_texts=fewest_texts, at_once=least)

    def least_s(self, requests: Sequence[Request], effort: RecordingBudget) -> float:
        """Return the seconds of the texts that are recorded in any case, with the poorest trees."""
        upto = next(upto for upto in effort.groups(len(requests)) if upto >= min(effort.fewest_texts, len(requests)))
        groups = self._groups(requests[:upto], effort)
        trees_s = sum(self._drafted_s(drafter, requests[:upto], FED[LEVELS[-1]]) for drafter in self._drafters)
        return sum(map(self._decoded_s, groups)) + trees_s + self._around_s(requests)

    def seconds(self, requests: Sequence[Request], effort: RecordingBudget) -> float:
        """Return the seconds of recording: until all texts are recorded, or time is up; narrow intervals end it before.

        0 without a trial.
        """
        if not self.trial.cells:
            return 0.0
        groups = self._groups(requests, effort)
        spent_s, texts = self._around_s(requests), 0
        left_s = effort.limit_s - sum(map(self._decoded_s, groups))
        fed = [self._fed(drafter, requests, left_s / len(self.drafters)) for drafter in self._drafters]
        for group in groups:
            trees_s = sum(
                self._drafted_s(drafter, group, nodes) for drafter, nodes in zip(self._drafters, fed, strict=True)
            )
            own_s = self._decoded_s(group) + trees_s
            if texts >= effort.fewest_texts and spent_s + own_s > effort.limit_s:
                break
            spent_s, texts = spent_s + own_s, texts + len(group)
        return spent_s

    @property
    def _drafters(self) -> range:
        return range(1, 1 + len(self.drafters))

    def _groups(self, requests: Sequence[Request], effort: RecordingBudget) -> list[Sequence[Request]]:
        ends = list(effort.groups(len(requests)))
        return [requests[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _row_s(self, surface: int) -> float:
        return self.trial.ms(surface, WIDE) / WIDE / 1000.0

    def _decoded_s(self, group: Sequence[Request]) -> float:
        """Return the seconds of the target's own texts, decoded together."""
        read = sum(len(request.prompt) for request in group)
        rounds = max(request.max_new_tokens for request in group)
        return read * self._row_s(0) + rounds * self.trial.ms(0, len(group)) / 1000.0

    def _along_s(self, model: int, requests: Sequence[Request]) -> float:
        """Return the seconds of one model along texts, the target's where a drafter reads its states included."""
        tokens = sum(len(request.prompt) + request.max_new_tokens for request in requests)
        has_target_read = model > 0 and reads_of(self.drafters[model - 1])
        return tokens * (self._row_s(model) + (self._row_s(0) if has_target_read else 0.0))

    def _node_s(self, drafter: int) -> float:
        """Return the seconds of a fed node; blocks and recycled tokens answer it without a forward."""
        return 0.0 if isinstance(self.drafters[drafter - 1], RoundHead) else self._row_s(drafter)

    def _drafted_s(self, drafter: int, requests: Sequence[Request], nodes: float) -> float:
        """Return the seconds of one drafter along texts, with so many nodes fed at every position."""
        fed = nodes * sum(request.max_new_tokens for request in requests)
        return self._along_s(drafter, requests) + fed * self._node_s(drafter)

    def _fed(self, drafter: int, requests: Sequence[Request], left_s: float) -> float:
        """Return the nodes fed at a position by the richest level whose trees fit."""
        trees = sum(request.max_new_tokens for request in requests) * self._node_s(drafter)
        return next((FED[level] for level in LEVELS if FED[level] * trees <= left_s), FED[LEVELS[-1]])

    def _around_s(self, requests: Sequence[Request]) -> float:
        """Return the seconds of choosing which trees to record, and of comparing all models."""
        if not self.drafters:
            return 0.0
        first, compared = requests[:1], requests[:COMPARED_TEXTS]
        tried = TRIED_POSITIONS * FED[LEVELS[0]]
        choosing = sum(
            3.0 * self._along_s(drafter, first) + tried * self._node_s(drafter) for drafter in self._drafters
        )
        return choosing + sum(self._along_s(model, compared) for model in range(1 + len(self.drafters)))
