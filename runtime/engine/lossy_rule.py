"""Acceptance of one round's chains by a lossy policy, whatever its rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Many

from torch import Tensor

from ...planner.lossy.run import LossyWay
from ..models.kv_cache import FeatureCache, KeyValueCache
from .acceptance import Acceptance
from .fly import Gates, accept_loosely
from .pad import PivotJudge, Verified, accept_by_pivots, states_of

REFUSED = "lossy decoding was not allowed; allow it with allow_lossy or --allow-lossy"


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
