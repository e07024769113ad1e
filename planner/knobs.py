"""Knobs of tree policies, searched by Optuna on replayed speed; the study is opened by the floor above.

A study holds numbers alone, so one that was stored goes on where it stopped: its finished trials are not run again, the
best of them are replayed to be candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

Knobs = Mapping[str, float]
Trial = Callable[[Knobs], float]  # knobs -> tokens per second on the texts searched on, 0 where they have no price
REVISITED = 3  # best trials of an earlier run that compete again


def search(study: optuna.Study, space: Mapping[str, Range], starts: Sequence[Knobs], trials: int, run: Trial) -> None:
    """Let a study reach so many trials.

    Args:
        study: maximises; may hold trials of an earlier run.
        space: of the knobs.
        starts: tried first by a fresh study; values outside the space are moved to its edge.
        trials: in all, those of earlier runs included.
        run: prices a policy with such knobs and keeps it as a candidate.
    """
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    for known in sorted(finished, key=lambda trial: -(trial.value or 0.0))[:REVISITED]:
        run(known.params)
    if not study.get_trials(deepcopy=False):
        for start in starts[:trials]:
            study.enqueue_trial({name: space[name].nearest(value) for name, value in start.items()})
    for _ in range(trials - len(finished)):
        trial = study.ask()
        study.tell(trial, run({name: range_.suggest(trial, name) for name, range_ in space.items()}))


class Range:
    """The values a knob may take: low to high; even in logarithm where it is positive and real, else whole numbers."""

    __slots__ = ("high", "is_whole", "low")

    def __init__(self, low: float, high: float, *, is_whole: bool = False) -> None:
        """Take the ends, both included."""
        self.low, self.high, self.is_whole = low, high, is_whole

    def nearest(self, value: float) -> float:
        """Return the value, or the end it lies beyond."""
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.is_whole else inside

    def suggest(self, trial: optuna.Trial, name: str) -> float:
        """Return what a trial takes."""
        if self.is_whole:
            return trial.suggest_int(name, round(self.low), round(self.high))
        return trial.suggest_float(name, self.low, self.high, log=True)
