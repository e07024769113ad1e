"""The round: schedule, draft, verify, accept, commit.

Each token is the target's own (see sampling/sampler.py), so drafts only decide how many a forward gives. A failing
drafter costs only its drafts (see drafting.py). The one exception is `allow_lossy` (see lossy_rule.py).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

from ...planner.records.draft import DraftBatch
from ..batch.faults import Fault, is_out_of_memory, reason_of
from ..batch.sequence import Sequence, shared_temperature
from ..batch.step_config import PLAIN, Schedule, StepConfig
from ..batch.stopwatch import BEGUN, DONE, DRAFTED, LAID_OUT, VERIFIED, Stopwatch
from ..drafters.lookup import roots_of
from ..models.bits import bits_for_kernels
from ..models.forward import CausalModel
from ..models.graphed import GraphedModel
from ..models.kv_cache import KeyValueCache
from ..models.layout import Masks
from ..sampling.captured_sampler import TreeSamplers, draws_ahead
from ..sampling.sampler import best_tokens, drawn_from, draws_of, scored
from .acceptance import Accepted, accepted, accepted_by, accepted_of
from .cache_slots import CacheSlots, Committed
from .drafting import Drafting
from .exit_states import ExitStates, logits_of
from .lossy_rule import LossyRules
from .overlap import Overlap
from .step_output import RoundResult, StepOutput
from .tree_input import FedTrees


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
            verify_tokens=result.fed,
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
    """A target that verifies drafted trees in one forward over its cache; `forwards` counts these."""

    def __init__(
        self,
        target: CausalModel,
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
        self._target, self._cache, self._masks, self._seen_in = target, cache, masks, seen_in
        self._is_here = target.device.type == "cpu"  # so that a forward has ended when its call comes back
        self._samplers, self._exits, self._rules = TreeSamplers(target.device), exits, rules
        self._faults, self._watch = faults, watch

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
        trees = FedTrees(batch, draft, config.padded(max(draft.sizes.tolist())))
        self._cache.require(max(trees.contexts) + trees.fed)
        step = trees.laid_out(self._masks, self._seen_in)
        self._watch.mark(LAID_OUT)
        self.forwards += 1
        lossy, left = self._rules.policy_of(config), self._exits.left(batch, draft, trees.fed, config)
        is_greedy = shared_temperature(batch) == 0.0
        is_fused = lossy is None and (is_greedy or draws_ahead([s.request for s in batch]))  # scores tell the rest
        if is_fused and isinstance(self._target, GraphedModel):  # one launch forwards and draws
            sampler = self._samplers.of([s.request for s in batch], draft, trees.fed, config.policy.bounds.depth)
            drawn = self._target.best(step, self._cache, sampler)
            self._watch.mark(VERIFIED)
            return self._kept(batch, trees.fed, accepted_of(drawn, draft))
        logits = logits_of(self._target, step, self._cache, left)
        if self._is_here:
            self._watch.mark(VERIFIED)
        numbers = bits_for_kernels(logits) if is_fused else None
        if numbers is not None:  # one call draws and accepts
            return self._kept(batch, trees.fed, accepted_by(numbers, draws_of(batch), draft))
        scores = logits if is_greedy else scored(logits, batch, trees.paths)
        draws = best_tokens(scores) if is_greedy else drawn_from(scores, batch, trees.depths)
        if not self._is_here:  # a GPU's forward ends behind its call; the draws tell that it has
            self._watch.mark(VERIFIED)
        rule = None if lossy is None else self._rules.rule(lossy, logits, scores, trees.contexts)
        return self._kept(batch, trees.fed, accepted(batch, draft, draws, rule))

    def _kept(self, batch: Many[Sequence], fed: int, paths: Accepted) -> RoundResult:
        """Move the rows of accepted nodes together; where memory fails, nothing is committed yet."""
        self._cache.keep(paths.moves(batch))
        return RoundResult(accepted=paths, fed=fed)
