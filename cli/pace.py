"""How fast a text came, beside what its plan promises."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime.choice import Choice
    from ..runtime.generation import Completion, GenerationSettings
    from ..runtime.round import Round
    from ..runtime.watch.protocol import RoundObserver

STRAY = 3.0  # times the middle round: what takes longer meets a capture, a compiler or another process


class Pace:
    """Notes what the rounds of one text take, and tells whoever else watches."""

    def __init__(self, watch: RoundObserver | None) -> None:
        """Stand before a watch."""
        self._watch = watch
        self._ms: list[float] = []
        self._contexts: list[int] = []

    def note(self, done: Round, /) -> None:
        """Note a round that is over."""
        self._ms.append(done.round_ms)
        self._contexts.append(done.context)
        if self._watch is not None:
            self._watch.note(done)

    def told(self, done: Completion, wanted: GenerationSettings, choice: Choice) -> str:
        """Return in how many rounds a text came, how fast, and what was promised for texts like the plan's."""
        behind = len(done.tokens) - 1
        if not done.rounds or not self._ms or behind < 1:
            return ""
        rounds = "1 round" if done.rounds == 1 else f"{done.rounds} rounds"
        most = STRAY * statistics.median(self._ms)
        speed = 1000.0 * behind / sum(min(ms, most) for ms in self._ms)
        words = f"{len(done.tokens)} tokens in {rounds}, {behind / done.rounds:.2f} a round behind the first"
        return f"{words}: about {speed:,.0f} tokens/s{self._promise(wanted, choice)}"

    def _promise(self, wanted: GenerationSettings, choice: Choice) -> str:
        """Return the plan's promise, if any: for one text of its own temperature, run as planned."""
        plan = choice.plan
        is_near = choice.match is not None and choice.match.grade == "same"
        if plan is None or not is_near or not choice.is_in_planned_dtype or plan.temperature != wanted.temperature:
            return ""
        cell = plan.cell(1, int(statistics.median(self._contexts)))
        if cell.batch != 1 or (cell.batch, cell.context) in dict(choice.substitutes):
            return ""
        promise = cell.prediction
        interval = f"{promise.low:,.0f} to {promise.high:,.0f}"
        return f"; planned are {promise.tokens_per_s:,.0f} ({interval}) over all texts of workload {plan.workload}"
