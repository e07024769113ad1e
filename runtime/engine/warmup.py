"""Rounds of throwaway texts, so that first uses capture, compile and set up before any request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from ...planner.records.draft import ROOT_TOKEN, DraftBatch
from ...planner.records.room import READ_TOGETHER
from ...planner.strategies import drafting
from ...planner.strategies.hybrid import HybridPolicy
from ..batch.faults import Fault
from ..batch.sequence import Request
from ..batch.step_config import StepConfig
from .engine import Engine

SETTLED = 3  # rounds of one kind: behind another one, behind its own, and one that was launched ahead
TEXT = (0, 1, 2, 3) * 9  # token ids that every vocabulary has, with copies to be found; more than is read together


class WarmUp:
    """Decodes throwaway texts with an idle engine, and leaves it idle."""

    def __init__(self, engine: Engine, *, longest: int, temperature: float = 0.0) -> None:
        """Run nothing yet; sampled rounds, of a `temperature` above 0, are captured apart from greedy ones."""
        self.rounds = 0
        self._engine, self._texts = engine, 0
        prompt = TEXT[: max(longest // 2, 1)]
        self._request: Request | None = None
        if longest - len(prompt) > 1:  # one token ends a text before any round
            self._request = Request(prompt=prompt, max_new_tokens=longest - len(prompt), temperature=temperature)
        self._faults: dict[tuple[str | None, str], Fault] = {}  # by whose they are and what they say

    def run(self, setups_at: Callable[[int], Iterable[StepConfig]], batches: Iterable[int], *, captured: bool) -> int:
        """Run every setup at every batch; return the number of rounds.

        The engine's next round reports the faults; drafters that failed stay in use. `captured`: run forwards at every
        number of tokens, each of which is captured by itself. MemoryError where the target cannot verify even the
        newest token of every sequence.
        """
        if self._request is None:
            return 0
        try:
            for batch in batches:
                for setup in setups_at(batch):
                    if self._run_settled(setup, batch) and captured:
                        self._draft_sizes(setup, batch)
                        self._verify_sizes(setup, batch)
        finally:
            for sequence in list(self._engine.running):
                self._engine.cancel(sequence)
            self._engine.tell_again(self._faults.values())
        return self.rounds

    def _run_settled(self, setup: StepConfig, batch: int) -> bool:
        for _ in range(SETTLED):
            self._fill(batch)
            faults = self._engine.step(setup).faults
            self.rounds += 1
            self._note(faults)
            if faults:
                return False
        return True

    def _note(self, faults: Iterable[Fault]) -> None:
        for fault in (*faults, *self._engine.forgiven()):
            self._faults[fault.drafter, fault.reason] = fault

    def _draft_sizes(self, setup: StepConfig, batch: int) -> None:
        """Let a drafter read every possible number of unread tokens at once, and draft behind them."""
        asked = drafting(setup.policy)
        alone = replace(setup, policy=asked.model) if isinstance(asked, HybridPolicy) else setup
        fresh = 1
        while setup.drafter is not None and fresh <= READ_TOGETHER:
            self._fill(batch)
            if fresh < min(len(sequence.tokens) for sequence in self._engine.running):
                self._engine.draft(alone, fresh)
                self._note(())
            fresh *= 2

    def _verify_sizes(self, setup: StepConfig, batch: int) -> None:
        most = setup.policy.max_verify_tokens
        sizes = (most,) if setup.policy.source == "none" or setup.policy.is_of_one_size else range(1, most + 1)
        for tokens in {setup.padded(tokens): tokens for tokens in sizes}.values():
            self._fill(batch)
            self._verify(tokens, batch, setup)

    def _verify(self, tokens: int, batch: int, setup: StepConfig) -> None:
        """Verify trees of so many tokens, no deeper than a setup's: deeper ones draw more."""
        self._engine.verify(_trees(tokens, max(setup.policy.bounds.depth, 1), batch), setup)
        self._note(())
        self.rounds += 1

    def _fill(self, batch: int) -> None:
        assert self._request is not None
        while len(self._engine.running) > batch:
            self._engine.cancel(self._engine.running[-1])
        while len(self._engine.running) < batch:
            self._engine.admit(self._request, self._texts)
            self._texts += 1


def _trees(nodes: int, most: int, batch: int) -> DraftBatch:
    """Return trees of so many nodes: a chain of the greatest depth, and the rest below the root."""
    place = np.arange(nodes)
    is_deep = place <= most
    row = (
        np.where(place > 0, 0, ROOT_TOKEN),
        np.where(is_deep, place - 1, 0),
        np.where(is_deep, place, 1),
    )
    tokens, parents, depths = (np.tile(part, (batch, 1)) for part in row)
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=np.full(batch, nodes), widths=())
