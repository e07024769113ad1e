"""One policy with one drafter, replayed and priced in one cell."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..kernels.rounds import sum_by_text
from ..lockstep import Replay
from ..lossy.quality import Quality
from ..pricing.cost import CellCosts, Floats
from ..pricing.round import RoundTimes
from ..records.draft import Bools, Ints
from ..records.room import READ_TOGETHER
from ..strategies import TreePolicy
from ..strategies.base import widths_on_gpu
from ..strategies.hybrid import HybridPolicy
from ..strategies.stack import model_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """What a policy yields in the steady state of one cell; times are means per round of a sequence.

    The slots of a round share its time equally. Where answers are of known length, `ms` includes the drafters' reading
    of prompts, `reading_ms` for every token.
    """

    policy: TreePolicy
    drafter: str | None  # name of what drafts, None for plain decoding
    tokens: Ints  # (texts,), tokens each recorded text emitted in the rounds counted
    ms: Floats  # (texts,), time spent on each
    tokens_per_round: float  # per sequence
    draft_ms: float
    verify_ms: float
    host_ms: float
    censored_share: float  # share of the visited positions whose result the trace leaves open
    run_tokens: tuple[int, ...]  # the padding it was priced with: index = tokens in the tree, value = tokens fed
    quality: Quality | None = None  # measured cost of a lossy policy; None for lossless ones
    reading_ms: float = 0.0

    @property
    def decoding(self) -> Candidate:
        """The same without the reading of prompts: what decoding alone takes."""
        if not self.reading_ms:
            return self
        return replace(self, ms=self.ms - self.reading_ms * self.tokens, reading_ms=0.0)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all slots per second."""
        return float(self.tokens.sum() / self.ms.sum() * 1000.0)

    def tokens_per_s_on(self, texts: Bools) -> float:
        """Return tokens of all slots per second on some of the texts, 0 where there are none."""
        spent = float(self.ms[texts].sum())
        return 1000.0 * float(self.tokens[texts].sum()) / spent if spent > 0.0 else 0.0

    @property
    def round_ms(self) -> float:
        """Mean milliseconds of one round."""
        return self.draft_ms + self.verify_ms + self.host_ms


def times_of(policy: TreePolicy, drafter: str | None, replay: Replay, costs: CellCosts) -> RoundTimes:
    """Return the cost of each round of a replay; `drafter` is a model, LOOKUP, or None; errors as `CellCosts.times`."""
    model = model_of(drafter)
    return costs.times(_as_run(policy, model, replay, costs), costs.kind_of(policy, model), model)


def _as_run(policy: TreePolicy, model: str | None, replay: Replay, costs: CellCosts) -> Replay:
    """Return rounds with the forwards that the device runs: a GPU's depend on no score, as the host would wait."""
    if costs.device_kind == "cpu":
        return replay
    is_captured = costs.captures(model)
    if not is_captured or policy.copied_on_gpu is None:
        return replace(replay, widths=widths_on_gpu(policy, replay.widths, is_captured=is_captured))
    largest = np.full_like(replay.nodes, policy.max_verify_tokens)
    if not isinstance(policy, HybridPolicy):
        return replace(replay, nodes=largest)
    widths = np.tile(np.array(policy.model.widths, dtype=np.int64), (replay.rounds, 1))
    together = min(1 + policy.bounds.depth, READ_TOGETHER)  # whatever was kept; more would count as read one by one
    read = np.full_like(replay.catch_up, together)
    return replace(replay, nodes=largest, widths=widths, catch_up=read)


def candidate_of(
    policy: TreePolicy,
    drafter: str | None,
    replay: Replay,
    times: RoundTimes,
    costs: CellCosts,
    texts: int,
    reading_ms: float = 0.0,
) -> Candidate:
    """Return the candidate of a replay whose rounds take these times; `drafter` is LOOKUP for a LookupPolicy."""
    tokens, ms = np.zeros(texts, dtype=np.int64), np.zeros(texts)
    sum_by_text(replay.arrays, times.by_part, tokens, ms)
    draft_ms, verify_ms, host_ms = np.average(times.by_part, axis=1, weights=replay.counts.sum(axis=1)).tolist()
    less_ms = min(host_ms, 0.0)  # what forwards take less in a draft than alone is the draft's
    return Candidate(
        policy=policy,
        drafter=drafter,
        tokens=tokens,
        ms=ms + reading_ms * tokens,
        tokens_per_round=replay.tokens_per_round,
        draft_ms=draft_ms + less_ms,
        verify_ms=verify_ms,
        host_ms=host_ms - less_ms,
        censored_share=replay.censored_share,
        run_tokens=costs.verifying(policy.kind, drafter).run_tokens[: policy.max_verify_tokens + 1],
        reading_ms=reading_ms,
    )
