"""Verify drafts in one forward of the target: lay them out, draw, and commit the accepted tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many

from torch import Tensor

from ...errors import ModelError
from ...planner.lossy.run import LossyWay
from ...planner.records.draft import DraftBatch
from ...planner.strategies.lossy import LossyPolicy
from ...planner.strategies.naming import name_of
from ..batch.captured_sampler import DeviceDraws, DrawKind, TreeDraws, draws_ahead, kind_of
from ..batch.faults import Fault, is_out_of_memory, reason_of
from ..batch.sampler import best_tokens, drawn_from, draws_of, scored
from ..batch.sequence import Sequence, shared_temperature
from ..batch.step_config import RoundSetup
from ..batch.stopwatch import LAID_OUT, VERIFIED, Stopwatch
from ..batch.tree_input import FedTrees
from ..drafters.lookup import roots_of
from ..drafters.protocol import Drafter, LeavesStates
from ..models.bits import bits_for_kernels
from ..models.forward import CausalModel, ForwardInput, LeftStates, Resuming
from ..models.graphed import GraphedModel
from ..models.kv_cache import KeyValueCache
from ..models.layout import Masks
from .lossy_rule import LossyRound, refusal
from .pad import PivotJudge
from .step_output import Accepted, Committed, accepted, accepted_by, accepted_of, commit


class Verifying:
    """A decoder's target, which verifies drafts."""

    def __init__(
        self,
        target: CausalModel,
        cache: KeyValueCache,
        masks: Masks,
        seen_in: Callable[[int], int] | None,
        drafters: Mapping[str, Drafter],
        *,
        judges: Mapping[str, PivotJudge],
        allow_lossy: bool,
        faults: list[Fault],
        watch: Stopwatch,
    ) -> None:
        """Use a decoder's parts; exits among `drafters` leave states from which a verification continues."""
        self.forwards = 0  # of the target
        self._target, self._cache, self._masks, self._seen_in = target, cache, masks, seen_in
        self._is_here = target.device.type == "cpu"  # so that a forward has ended when its call comes back
        self._drafters, self._judges, self._allow_lossy = drafters, judges, allow_lossy
        self._faults, self._watch = faults, watch
        self._drawings: dict[tuple[DrawKind, int, int], TreeDraws] = {}  # by depth and sequences

    def verify(self, batch: Many[Sequence], draft: DraftBatch, setup: RoundSetup) -> Committed:
        """Return what was emitted; where a tree does not fit into memory, only its root is verified."""
        fed = setup.padded(max(draft.sizes.tolist()))
        lossy = self._loosely(setup)
        try:
            return self._verify_tree(batch, draft, fed, setup, lossy)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or fed == 1:
                raise
            self._faults.append(Fault(drafter=None, reason=reason_of(error), is_memory=True))
        return self._verify_tree(batch, roots_of(len(batch)), 1, setup)

    def _loosely(self, setup: RoundSetup) -> LossyWay | None:
        """Return the lossy policy of a round, None where it is lossless or has to be."""
        policy = setup.policy
        if not isinstance(policy, LossyPolicy):
            return None
        reason = refusal(policy, self._judges, self._cache, is_allowed=self._allow_lossy)
        if reason is not None:
            self._faults.append(Fault(drafter=None, reason=f"{policy.label} is verified without loss: {reason}"))
            return None
        return policy

    def _left(self, batch: Many[Sequence], draft: DraftBatch, fed: int, setup: RoundSetup) -> LeftStates | None:
        """Return the states from which a verification continues; None where all layers read all nodes."""
        if setup.policy.kind != "resumed" or not draft.widths:
            return None
        try:
            return states_left(self._target, self._drafters[setup.drafter or ""], batch, draft, fed)
        except Exception as error:  # whatever is wrong with an exit, the target reads its drafts by itself
            reason = f"{name_of(setup.policy.code, setup.drafter)} is verified by all layers: {reason_of(error)}"
            self._faults.append(Fault(drafter=setup.drafter, reason=reason, is_memory=is_out_of_memory(error)))
        return None

    def _verify_tree(
        self,
        batch: Many[Sequence],
        draft: DraftBatch,
        fed: int,
        setup: RoundSetup,
        lossy: LossyWay | None = None,
    ) -> Committed:
        trees = FedTrees(batch, draft, fed)
        self._cache.require(max(trees.contexts) + fed)
        is_greedy = shared_temperature(batch) == 0.0
        may_draw = is_greedy or draws_ahead([s.request for s in batch])  # which nothing but scores and places tell
        step = trees.laid_out(self._masks, self._seen_in)
        self._watch.mark(LAID_OUT)
        self.forwards += 1
        left = self._left(batch, draft, fed, setup)
        may_draw = may_draw and lossy is None
        if may_draw and isinstance(self._target, GraphedModel):  # whose verification goes on from no states
            return self._verify_captured(self._target, batch, draft, step, setup)
        logits = logits_of(self._target, step, self._cache, left)
        if self._is_here:
            self._watch.mark(VERIFIED)
        numbers = bits_for_kernels(logits) if may_draw else None
        if numbers is not None:
            return self._kept(batch, draft, accepted_by(numbers, draws_of(batch), draft), fed)
        scores = logits if is_greedy else scored(logits, batch, trees.paths)
        draws = best_tokens(scores) if is_greedy else drawn_from(scores, batch, trees.depths)
        if not self._is_here:  # a GPU's forward ends behind its call; the draws tell that it has
            self._watch.mark(VERIFIED)
        loosely = None
        if lossy is not None:
            both = {"logits": logits, "scores": scores}
            loosely = LossyRound(lossy, self._judges, **both, cache=self._cache, contexts=trees.contexts)
        return self._kept(batch, draft, accepted(batch, draft, draws, loosely), fed)

    def _verify_captured(
        self, target: GraphedModel, batch: Many[Sequence], draft: DraftBatch, step: ForwardInput, setup: RoundSetup
    ) -> Committed:
        fed = step.tokens.shape[1]
        best = target.best(step, self._cache, self._drawing(batch, draft, fed, setup))
        self._watch.mark(VERIFIED)
        return self._kept(batch, draft, accepted_of(best, draft), fed)

    def _drawing(self, batch: Many[Sequence], draft: DraftBatch, fed: int, setup: RoundSetup) -> TreeDraws | None:
        """Return how captured work draws a batch's tokens; None where all are greedy."""
        requests = [s.request for s in batch]
        kind = kind_of(requests)
        if kind is None:
            return None
        most = min(max(setup.policy.bounds.depth, 1), fed - 1)  # 1: of padding
        if draft.depths.max() > most:  # of trees that come from elsewhere
            most = fed - 1
        key = kind, most, len(batch)
        if key not in self._drawings:
            draws = DeviceDraws(kind, len(batch), self._target.device)
            self._drawings[key] = TreeDraws(draws=draws, most=most)
        self._drawings[key].draws.put(requests)
        return self._drawings[key]

    def _kept(self, batch: Many[Sequence], draft: DraftBatch, stands: Accepted, fed: int) -> Committed:
        """Move accepted keys together, then commit: where memory fails, nothing is committed yet."""
        self._cache.keep(stands.moves(batch))
        return commit(batch, draft, stands, fed)


def states_left(
    target: CausalModel, drafter: Drafter, sequences: Many[Sequence], draft: DraftBatch, fed: int
) -> LeftStates:
    """Return the states from which a verification continues; ModelError unless the drafter is this target's exit."""
    if not isinstance(target, Resuming):
        raise ModelError(f"a target that runs as {target.regime} reads by all its layers; run it as eager")
    left = drafter.left(sequences, draft, fed) if isinstance(drafter, LeavesStates) else None
    if left is None:
        raise ModelError("the drafter is no exit of its target; draft with one")
    if not target.can_resume(left):
        raise ModelError(
            f"the {left.layers} layers of the exit are not this target's first; draft with an exit of this target"
        )
    return left


def logits_of(target: CausalModel, step: ForwardInput, cache: KeyValueCache, left: LeftStates | None) -> Tensor:
    """Return a target's logits (batch, n, vocabulary) behind the nodes of a tree; by all its layers without `left`."""
    if left is None:
        return target.forward(step, cache)
    assert isinstance(target, Resuming), "states_left has refused every other"
    return target.resume(step, cache, left)
