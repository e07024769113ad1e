"""The round: schedule, draft, verify, accept, commit.

Each token is the target's own (see sampling/sampler.py), so drafts only decide how many a forward gives. A failing
drafter costs only its drafts (see drafting.py). The one exception is `allow_lossy` (see lossy_rule.py).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

from ...planner.records.draft import DraftBatch
from ..backends.base import Backend, VerifyCall
from ..backends.tree_input import TreeInput
from ..batch.faults import Fault, is_out_of_memory, reason_of
from ..batch.sequence import Sequence, shared_temperature
from ..batch.step_config import PLAIN, Schedule, StepConfig
from ..batch.stopwatch import BEGUN, DONE, DRAFTED, LAID_OUT, VERIFIED, Stopwatch
from ..drafters.lookup import roots_of
from ..models.kv_cache import KeyValueCache
from ..models.layout import Masks
from .cache_slots import CacheSlots, Committed
from .drafting import Drafting
from .exit_states import ExitStates
from .lossy_rule import LossyRules
from .overlap import Overlap
from .step_output import RoundResult, StepOutput


class RoundRunner:
    """The rounds of an engine, made of its parts; see `Engine`."""

    def __init__(
        self,
        slots: CacheSlots,
        drafting: Drafting,
        verification: TargetVerifier,
        plan: Schedule,
        overlap: Overlap,
        *,
        faults: list[Fault],
        watch: Stopwatch,
    ) -> None:
        self._slots, self._drafting, self._verification = slots, drafting, verification
        self._plan, self._overlap, self._faults, self._watch = plan, overlap, faults, watch

    def step(self, config: StepConfig | None = None) -> StepOutput:
        """Run one round over the whole batch and let finished sequences leave; `config` None: as planned.

        MemoryError where the target cannot verify even the newest token of every sequence.
        """
        self._watch.mark(BEGUN)
        batch = self._slots.schedule()
        context = max(s.context for s in batch)
        planned = self._plan(len(batch), context) if config is None else config
        config = self._drafting.usable(planned)
        result = self._overlap.take(batch, config) or self._round(batch, config)
        committed = self._slots.commit(batch, result.accepted)
        return self._output(batch, context, planned, config, result, committed)

    def _round(self, batch: Many[Sequence], config: StepConfig) -> RoundResult:
        uncached, draft = self._drafting.draft(batch, config)
        self._watch.mark(DRAFTED)
        result = self._verification.verify(batch, draft, config)
        result.widths, result.levels, result.uncached = draft.widths, draft.levels, uncached
        result.draft_ms, result.verify_ms = self._watch.ms(BEGUN, DRAFTED), self._watch.ms(LAID_OUT, VERIFIED)
        return result

    def _output(
        self,
        batch: Many[Sequence],
        context: int,
        planned: StepConfig,
        config: StepConfig,
        result: RoundResult,
        committed: Committed,
    ) -> StepOutput:
        faults = tuple(self._faults)
        self._faults.clear()
        is_behind = self._drafting.has_read_late(config, result.widths) or committed.is_behind
        self._watch.mark(DONE)
        round_ms = self._watch.ms(BEGUN, DONE)
        draft_ms = min(result.draft_ms, round_ms)
        return StepOutput(
            setup=config,
            instead_of=None if config is planned else planned,
            context=context,
            sequences=[s.index for s in batch],
            kept=committed.kept,
            verify_tokens=result.num_tokens,
            widths=result.widths,
            uncached=result.uncached,
            finished=committed.finished,
            joined=committed.joined,
            left=committed.left,
            temperature=shared_temperature(batch),
            levels=result.levels,
            faults=faults,
            lossy=committed.lossy,
            gates=tuple(result.accepted.gates),
            is_ahead=result.is_ahead,
            is_behind=is_behind,
            draft_ms=draft_ms,
            verify_ms=min(result.verify_ms, round_ms - draft_ms),
            round_ms=round_ms,
        )


class TargetVerifier:
    """Verifies drafted trees in one forward of a target over its cache; `forwards` counts these."""

    def __init__(
        self,
        backend: Backend,
        cache: KeyValueCache,
        masks: Masks,
        seen_in: Callable[[int], int] | None,
        *,
        exits: ExitStates,
        rules: LossyRules,
        faults: list[Fault],
        watch: Stopwatch,
    ) -> None:
        self.forwards = 0
        self._backend, self._cache, self._masks, self._seen_in = backend, cache, masks, seen_in
        self._exits, self._rules, self._faults, self._watch = exits, rules, faults, watch

    def verify(self, batch: Many[Sequence], draft: DraftBatch, config: StepConfig) -> RoundResult:
        """Return what the target accepts of the trees; where they do not fit into memory, of their roots alone."""
        try:
            return self._verify(batch, draft, config)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or config.padded(max(draft.sizes.tolist())) == 1:
                raise
            self._faults.append(Fault(drafter=None, reason=reason_of(error), is_memory=True))
        return self._verify(batch, roots_of(len(batch)), PLAIN)

    def _verify(self, batch: Many[Sequence], draft: DraftBatch, config: StepConfig) -> RoundResult:
        """Verify, and move the rows of accepted nodes together; where memory fails, nothing is committed yet."""
        trees = TreeInput(batch, draft, config.padded(max(draft.sizes.tolist())))
        self._cache.require(max(trees.contexts) + trees.num_tokens)
        inputs = trees.laid_out(self._masks, self._seen_in)
        self._watch.mark(LAID_OUT)
        self.forwards += 1
        accepted = self._backend.verify(
            VerifyCall(
                batch=batch,
                draft=draft,
                trees=trees,
                inputs=inputs,
                depth=config.policy.bounds.depth,
                left=self._exits.left(batch, draft, trees.num_tokens, config),
                rule=self._rules.rule_of(config, trees.contexts),
            )
        )
        self._cache.keep(accepted.moves(batch))
        return RoundResult(accepted=accepted, num_tokens=trees.num_tokens)
