"""Optuna studies that live as long as the process."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from .options import Studies

if TYPE_CHECKING:
    import optuna


def studies_in_memory(seed: int) -> Studies:
    """Return what opens a fresh study per name; its sampler's seed is a function of the name and the seed."""
    return _InMemory(seed)


class _InMemory:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, name: str) -> optuna.Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=study_seed(name, self._seed))
        return optuna.create_study(study_name=name, direction="maximize", sampler=sampler)


def study_seed(name: str, seed: int) -> int:
    """Return the seed of a study's sampler."""
    return zlib.crc32(f"{seed} {name}".encode())
