"""Acceptance of chains by a lossy policy, whatever its rule: `fly.py`, `pad.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Many

from torch import Tensor

from ...planner.lossy.run import LossyWay
from ...planner.strategies.lossy import LossyPolicy
from ..batch.faults import Fault
from ..batch.step_config import StepConfig
from ..models.kv_cache import FeatureCache, KeyValueCache
from ..sampling.acceptance import Acceptance, Gates
from .fly import accept_loosely
from .pad import PivotJudge, Verified, accept_by_pivots, states_of

REFUSED = "lossy decoding was not allowed; allow it with allow_lossy or --allow-lossy"


class LossyRules:
    """What an engine needs to accept by lossy policies; a fault where it may not, and the round is lossless."""

    def __init__(
        self, judges: Mapping[str, PivotJudge], cache: KeyValueCache, faults: list[Fault], *, is_allowed: bool
    ) -> None:
        self._judges, self._cache, self._faults, self._is_allowed = judges, cache, faults, is_allowed

    def rule_of(self, config: StepConfig, contexts: Many[int]) -> Callable[[Tensor, Tensor], LossyRound] | None:
        """Return what makes the rule of a round of its logits and scores; None where it is lossless or has to be.

        `contexts` are the cached tokens of each sequence.
        """
        policy = self._policy_of(config)
        if policy is None:
            return None
        return lambda logits, scores: LossyRound(
            policy, self._judges, logits=logits, scores=scores, cache=self._cache, contexts=contexts
        )

    def _policy_of(self, config: StepConfig) -> LossyWay | None:
        policy = config.policy
        if not isinstance(policy, LossyPolicy):
            return None
        reason = refusal(policy, self._judges, self._cache, is_allowed=self._is_allowed)
        if reason is not None:
            self._faults.append(Fault(drafter=None, reason=f"{policy.label} is verified without loss: {reason}"))
            return None
        return policy


class LossyRound:
    """The rule of one round that `refusal` did not refuse, with the results of the target's forward."""

    def __init__(
        self,
        policy: LossyWay,
        judges: Mapping[str, PivotJudge],
        *,
        logits: Tensor,
        scores: Tensor,
        cache: KeyValueCache,
        contexts: Many[int],
    ) -> None:
        """Use a verify forward's logits and processed scores, (batch, n, vocabulary), before any commit."""
        self._policy, self._judges = policy, judges
        self._logits, self._scores = logits, scores
        self._cache, self._contexts = cache, contexts

    def accept(
        self,
        slot: int,
        tokens: Many[int],
        parents: Many[int],
        size: int,
        draws: Many[int],
        stop: Collection[int],
    ) -> tuple[Acceptance, Gates]:
        """Return the accepted part of one sequence's chain, and the gates it met; see `accept_loosely`."""
        policy, scores = self._policy, self._scores[slot]
        if policy.kind == "lossy-fly":
            return accept_loosely(tokens, parents, size, draws, rule=policy.rule, scores=scores, stop=stop)
        assert policy.kind == "lossy-pad", f"no rule is known for {policy}"
        judge = self._judges[policy.classifier.name]
        assert isinstance(self._cache, FeatureCache), "a policy without its hidden states was refused"
        states = states_of(self._cache, judge.reads, slot, self._contexts[slot], len(scores))
        verified = Verified(states=states, logits=self._logits[slot], scores=scores)
        return accept_by_pivots(
            tokens, parents, size, draws, rule=policy.rule, judge=judge, verified=verified, stop=stop
        )


def refusal(
    policy: LossyWay, judges: Mapping[str, PivotJudge], cache: KeyValueCache, *, is_allowed: bool
) -> str | None:
    """Return why a lossy policy's rounds must be verified losslessly; None where they need not."""
    if not is_allowed:
        return REFUSED
    if policy.kind != "lossy-pad":
        return None
    judge = judges.get(policy.classifier.name)
    if judge is None:
        return f"there is no classifier called {policy.classifier.name} here"
    kept = cache.after if isinstance(cache, FeatureCache) else ()
    if judge.reads not in kept:
        return f"the classifier reads hidden states after {judge.reads} layers, and the target keeps those after {kept}"
    return None
