"""Optuna studies that live as long as the process."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from .options import Studies

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import TPESampler

APART = " | "  # in the name of a study: between its place and what is searched, so that equal places search alike
AT_RANDOM = 4  # trials before a sampler learns from them, those of known knobs included


def studies_in_memory(seed: int) -> Studies:
    """Return what opens a fresh study per name; its sampler's seed is that of `study_seed`."""
    return _InMemory(seed)


class _InMemory:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, name: str) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(study_name=name, direction="maximize", sampler=sampler_of(name, self._seed))


def sampler_of(name: str, seed: int) -> TPESampler:
    """Return the sampler of a study of few trials: the known fastest come first, so it learns early.

    Source: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization.
    """
    from optuna.samplers import TPESampler

    return TPESampler(seed=study_seed(name, seed), n_startup_trials=AT_RANDOM)


def study_seed(name: str, seed: int) -> int:
    """Return the seed of a study's sampler, by what its name says behind the place that it is for, see `APART`."""
    return zlib.crc32(f"{seed} {name.rpartition(APART)[2]}".encode())
