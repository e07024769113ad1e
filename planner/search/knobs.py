"""Knobs of strategies, searched by Optuna on replayed speed; the floor above opens the study.

A study holds numbers; a stored one resumes: finished trials are replayed as candidates, at no trial's cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..records.knobs import Knobs, Range

if TYPE_CHECKING:
    import optuna

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
