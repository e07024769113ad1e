"""The rounds of one setting on recorded texts, each text by itself: what an engine's counters will show.

As in engines, a round drafts fewer tokens than are still to come. An engine's texts run side by side but do not depend
on each other, so each is walked alone at every concurrency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ..records.recording import Rows
from ..records.results import PositionResults
from ..search.estimate import of_few, relative_error
from .costs import RoundShape

RESAMPLINGS = 200  # of the texts
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """What a setting does on each text, (texts,) each."""

    tokens: Floats  # emitted behind each first one
    rounds: Floats
    drafts: Floats  # rounds that drafted
    drafted: Floats  # their tokens

    @property
    def tokens_per_round(self) -> float:
        """Tokens a sequence gains in a round, over all texts."""
        return float(self.tokens.sum() / self.rounds.sum())

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that is accepted; None where nothing is drafted."""
        drafted = float(self.drafted.sum())
        return float((self.tokens - self.rounds).sum()) / drafted if drafted else None

    def shape(self, source: str, is_model: bool, length: int) -> RoundShape:
        """Return what its rounds look like on average."""
        rounds = float(self.rounds.sum())
        share, drafted = float(self.drafts.sum()) / rounds, float(self.drafted.sum()) / rounds
        return RoundShape(source=source, is_model=is_model, length=length, share=share, drafted=drafted)


def walk(results: PositionResults, rows: Rows) -> Walk:
    """Return the walk of a policy that depends on the committed text alone; PlanError for a censored position."""
    if results.censored.any():
        raise PlanError(
            f"{int(results.censored.sum())} positions leave open what is accepted; record the drafter again"
        )
    found = np.zeros((4, len(rows.starts)))
    for text, start in enumerate(rows.starts):
        row = int(start)
        while (left := int(rows.left[row])) > 0:
            drafted = min(int(results.sizes[row]) - 1, left - 1)
            kept = 1 + min(int(results.accepted[row]), drafted)
            found[:, text] += (kept, 1, drafted > 0, drafted)
            row += kept
    return Walk(tokens=found[0], rounds=found[1], drafts=found[2], drafted=found[3])


def acceptance_error(found: Walk, seed: int) -> float:
    """Return the relative standard error of the tokens per round of as many other texts as were recorded."""
    texts = len(found.rounds)
    drawn = np.random.default_rng(seed).integers(0, texts, size=(RESAMPLINGS, texts))
    rates = found.tokens[drawn].sum(axis=1) / found.rounds[drawn].sum(axis=1)
    return of_few(math.sqrt(2.0) * relative_error(rates, texts), texts)
