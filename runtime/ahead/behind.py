"""Drafts of a hybrid's model, begun on the device before the host knows the text behind which they stand.

Where the host finds what a hybrid copies, as it does of trees, its rounds cannot run ahead. But what its model drafts
does not hang on that: it is launched right behind a verification, and begins when the device knows what is accepted.
While the model drafts, the host reads and commits the round and searches the texts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from ...planner.growth.draft import ROOT_TOKEN, DraftBatch
from ...planner.growth.room import deepest
from ...planner.kernels.arrays import Ints
from ...planner.policies import HybridPolicy
from ..cache import KeyValueCache
from ..drafters.protocol import BeginsBehind, Begun
from ..faults import Fault, is_out_of_memory, reason_of
from ..growth.captured import CapturedGrowth, RecordedDraft
from ..growth.draft import batch_of
from ..models.forward import ForwardInput
from ..models.graphed import GraphedModel, Replayed
from ..models.kernels.best_tokens import best_of
from ..models.static_input import StaticInput
from ..requests import Sequence
from ..setup import RoundSetup
from ..stopwatch import Moment
from ..transfer import Landing, host_memory
from .acceptance import end_round
from .state import BatchState


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verification:
    """A recorded verification of trees that come from the host."""

    input: StaticInput
    trees: Ints  # on the host, (2, batch, fed), tokens and parents, that every replay reads
    placed: Tensor  # the same on the device, which the graph uses and nobody else may
    graph: Replayed
    best: Ints  # on the host, (batch, fed), written by every replay


class _Behind:
    """The drafts of one policy's model behind so many sequences."""

    def __init__(
        self, policy: HybridPolicy, batch: int, target: GraphedModel, cache: KeyValueCache, growth: CapturedGrowth
    ) -> None:
        self._policy, self._target, self._cache, self._growth = policy, target, cache, growth
        self.deepest = deepest(policy)  # tokens of a draft that one round may accept
        self._state = BatchState(batch, self.deepest + 1, target.device)
        self._verifications: dict[tuple[int, ...], _Verification] = {}
        self._drafts: dict[int, RecordedDraft] = {}  # by positions in sight
        self._verified, self._drafted = Moment(target.device), Moment(target.device)

    def seen_by_model(self, context: int) -> int | None:
        """Return the model's cache positions in sight; None where there are too few."""
        return self._growth.seen_behind(context + 1, self.deepest + 1, self._policy.model)

    def verified(
        self, batch: Many[Sequence], draft: DraftBatch, step: ForwardInput, context: int, seen: int
    ) -> tuple[Ints, Begun]:
        """Verify trees and let the model draft behind them; wait for what the target says alone."""
        verification = self._verification(step)
        if seen not in self._drafts:
            self._state.put([s.context for s in batch], [s.tokens[-1:] for s in batch])  # what recording may read
            self._drafts[seen] = self._recorded_draft(context, seen)
        recorded = self._drafts[seen]
        nodes = min(draft.tokens.shape[1], verification.trees.shape[2])
        verification.trees[0, :, nodes:], verification.trees[1, :, nodes:] = ROOT_TOKEN, 0
        verification.trees[0, :, :nodes] = draft.tokens[:, :nodes]
        verification.trees[1, :, :nodes] = draft.parents[:, :nodes]
        verification.input.load(step)
        verification.graph.replay()
        self._verified.mark()
        recorded.graph.replay()
        self._drafted.mark()
        self._verified.wait()
        return verification.best, Begun(
            widths=recorded.widths,
            read=lambda: self._read(recorded),
            known_ns=time.perf_counter_ns(),
            took_ms=self._took_ms if self._target.device.type != "cpu" else None,
        )

    def _read(self, recorded: RecordedDraft) -> DraftBatch:
        self._drafted.wait()
        return batch_of(recorded.numbers.numpy(), recorded.widths)

    def _took_ms(self) -> float:
        return self._verified.ms_until(self._drafted)

    def _verification(self, step: ForwardInput) -> _Verification:
        key = step.signature
        if key not in self._verifications:
            with self._state.at_rest():
                self._verifications[key] = self._recorded(step)
        return self._verifications[key]

    def _recorded(self, step: ForwardInput) -> _Verification:
        placed, landing = StaticInput(step, self._target.device), Landing(host_memory)
        trees = torch.full((2, *step.tokens.shape), ROOT_TOKEN, dtype=torch.int64, device=self._target.device)
        sent = host_memory(trees).fill_(ROOT_TOKEN)

        def run() -> Tensor:
            placed.arrive()
            trees.copy_(sent, non_blocking=True)
            assert placed.step.tree is not None
            starts = placed.step.tree.starts
            best = best_of(self._target.model.forward(placed.step, self._cache))
            end_round(
                (trees[0], trees[1]), best, starts,
                state=self._state, cache=self._cache, reach=min(self.deepest, trees.shape[2] - 1),
            )  # fmt: skip
            return landing(best)

        graph, best = self._target.record(run)
        return _Verification(input=placed, trees=sent.numpy(), placed=trees, graph=graph, best=best.numpy())

    def _recorded_draft(self, context: int, seen: int) -> RecordedDraft:
        return self._growth.record(
            lambda: self._state.reading(self._growth.vocabulary, seen),
            Landing(host_memory),
            longest=context + 1,
            policy=self._policy.model,
            seen=seen,
        )


class DraftsBehind:
    """What the drafters of one decoder begin behind verifications of its captured target."""

    def __init__(self, target: GraphedModel, cache: KeyValueCache, *, faults: list[Fault]) -> None:
        """Record nothing yet.

        Args:
            target: that verifies.
            cache: the target's.
            faults: where what goes wrong is told.
        """
        self._target, self._cache, self._faults = target, cache, faults
        self._works: dict[tuple[RoundSetup, int], _Behind] = {}
        self._refused: list[tuple[RoundSetup, int]] = []  # that failed once, over so many sequences

    @torch.inference_mode()
    def verified(
        self, batch: Many[Sequence], draft: DraftBatch, step: ForwardInput, setup: RoundSetup, drafter: BeginsBehind
    ) -> tuple[Ints, Begun] | None:
        """Return the target's token behind each node, (batch, fed), and the model's next draft, which is under way.

        The keys of what is accepted are moved already. None where nothing is begun: then the round is verified as any.

        Args:
            batch: greedy sequences in their slots.
            draft: their trees.
            step: the forward that reads these.
            setup: of the round, a hybrid's.
            drafter: who drafts by it.
        """
        policy, key = setup.policy, (setup, len(batch))
        assert isinstance(policy, HybridPolicy), "others' rounds run ahead as a whole, or have no model"
        if key in self._refused or all(s.left == 1 for s in batch):
            return None
        growth = drafter.growth_behind(batch, policy)
        if growth is None:
            return None
        try:
            work = self._works.get(key)
            if work is None:
                work = self._works[key] = _Behind(policy, len(batch), self._target, self._cache, growth)
            context = max(s.context for s in batch) + work.deepest + 1  # where all that is drafted is accepted
            seen = work.seen_by_model(context)
            return None if seen is None else work.verified(batch, draft, step, context, seen)
        except Exception as error:  # whatever is wrong with it, nothing is committed: the round is verified as any
            self._works.pop(key, None)
            self._refused.append(key)
            what = f"drafts of {policy.label} behind {len(batch)} sequences"
            reason = f"{what} wait for the host from now on: {reason_of(error)}"
            self._faults.append(Fault(drafter=None, reason=reason, is_memory=is_out_of_memory(error)))
        return None
