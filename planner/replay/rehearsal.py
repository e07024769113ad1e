"""Policies replayed on the inputs' texts, with every drafter's recording laid out once and every replay made once."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import PlanError
from ..inputs import PlanInputs
from ..lockstep import Replay, replay_results
from ..records.recording import Recorded, Recording, Rows, recording_of, rows_of
from ..records.results import PositionResults
from ..records.shape import ShapeFacts
from ..strategies.base import Strategy
from ..strategies.stack import model_of
from .visited import shape_of

Staged = tuple[Strategy, str | None]


@dataclass(slots=True, eq=False)
class Rehearsal:
    """Replays and caches policies by name, but not CAST, whose cost tables belong to one cell."""

    inputs: PlanInputs
    _recordings: dict[str, Recording] = field(default_factory=dict)
    _results: dict[Staged, PositionResults] = field(default_factory=dict)
    _replays: dict[tuple[Staged, int], Replay] = field(default_factory=dict)
    _shapes: dict[tuple[Staged, int], ShapeFacts] = field(default_factory=dict)
    _rows: Rows | None = None

    @property
    def rows(self) -> Rows:
        """The numbering of the texts' positions."""
        if self._rows is None:
            self._rows = rows_of(self.inputs.texts)
        return self._rows

    def recording(self, drafter: str) -> Recording:
        """Return a drafter's recording; PlanError where the inputs have no such drafter."""
        if drafter not in self._recordings:
            self._recordings[drafter] = recording_of(self.inputs.drafter(drafter).trace)
        return self._recordings[drafter]

    def replay(self, policy: Strategy, drafter: str | None, batch: int, *, is_kept: bool = True) -> Replay:
        """Return the rounds of a policy, cached if `is_kept`; `drafter` may be LOOKUP, and None where no model drafts.

        PlanError if there is no such drafter, slots outnumber texts, or too few children were recorded.
        """
        if not is_kept or policy.is_of_one_cell:
            return policy.replay(self.recorded(policy, drafter), batch)
        staged = (policy, drafter)
        if (staged, batch) not in self._replays:
            self._replays[staged, batch] = replay_results(self.results(policy, drafter), self.rows, batch)
        return self._replays[staged, batch]

    def shape(self, policy: Strategy, drafter: str | None, batch: int) -> ShapeFacts | None:
        """Return the shape of a policy's trees on the texts: verified and accepted nodes by depth.

        None for a stack, whose chains depend on its lower models, for a hybrid, which drafts two ways, and for lossy
        ways, whose texts differ.
        """
        if not policy.has_shape:
            return None
        model = model_of(drafter)
        recording = None if model is None else self.recording(model)
        staged = (policy, drafter)
        if (staged, batch) not in self._shapes:
            self._shapes[staged, batch] = shape_of(policy, batch, texts=self.inputs.texts, recording=recording)
        return self._shapes[staged, batch]

    def results(self, policy: Strategy, drafter: str | None) -> PositionResults:
        """Return what a policy does at every position of the texts.

        PlanError if it is coupled or a stack, there is no such drafter, or too few children were recorded.
        """
        if (policy, drafter) not in self._results:
            self._results[policy, drafter] = policy.results(self.recorded(policy, drafter))
        return self._results[policy, drafter]

    def recorded(self, policy: Strategy, drafter: str | None) -> Recorded:
        """Return what a policy replays from."""
        recording = self.recording(_named(policy, drafter)) if policy.is_recorded else None
        return Recorded(texts=self.inputs.texts, rows=self.rows, recording=recording)


def _named(policy: Strategy, drafter: str | None) -> str:
    model = model_of(drafter)
    if model is None:
        raise PlanError(f"a {policy.label} needs a drafter; name one of the inputs' drafters")
    return model
