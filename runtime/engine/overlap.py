"""Rounds that a device has run ahead of the host (`backends/rounds_ahead.py`), taken over by an engine."""

from __future__ import annotations

from collections.abc import Sequence as Many

from ..backends.rounds_ahead import RoundsAhead
from ..batch.sequence import Sequence
from ..batch.step_config import StepConfig
from ..sampling.acceptance import accepted_ahead, accepted_of
from .drafting import Drafting
from .step_output import RoundResult


class Overlap:
    """Takes rounds over from a device; `rounds` None: no device runs any ahead. `forwards` counts the taken ones."""

    def __init__(self, rounds: RoundsAhead | None, drafting: Drafting, vocabulary: int) -> None:
        self.forwards = 0
        self._rounds, self._drafting, self._vocabulary = rounds, drafting, vocabulary

    def note_joined(self, batch: Many[Sequence]) -> None:
        """Note that sequences have joined the batch."""
        if self._rounds is not None:
            self._rounds.note_joined(batch)

    def take(self, batch: Many[Sequence], config: StepConfig) -> RoundResult | None:
        """Return a round's result, its rows moved and the next round launched; None where it must run here."""
        if self._rounds is None:
            return None
        drafter = self._drafting.drafter_of(config)
        if drafter is not None and drafter.overlap == "none":
            return None
        model = drafter if drafter is not None and drafter.overlap == "model" else None
        uncached = 0 if model is None else model.uncached(batch)
        told = self._rounds.told(batch, config, model)
        if told is None:
            return None
        self.forwards += 1
        if model is not None:
            model.note_drafted(batch, len(told.widths))
        num_tokens = told.best.shape[1]
        drawn = told.standing(config.policy.max_verify_tokens, self._vocabulary)
        if drawn is not None:
            if drafter is not None:
                self._drafting.note_sound(config)
            result = RoundResult(accepted=accepted_ahead(drawn), num_tokens=num_tokens, widths=told.widths)
        else:
            uncached, draft = self._drafting.sound(batch, config, uncached, told.draft)
            accepted = accepted_of(told.best, draft)
            result = RoundResult(accepted=accepted, num_tokens=num_tokens, widths=draft.widths, levels=draft.levels)
        result.uncached, result.is_ahead = uncached, True
        result.draft_ms, result.verify_ms = told.draft_ms, told.verify_ms
        return result
