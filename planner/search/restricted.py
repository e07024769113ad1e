"""Prices of chosen policies in every cell of a plan, on the plan's inputs: for a choice among less than a plan's all.

An engine expresses some policies and not others. What it can express is priced here as candidates of a plan are, by
replay on the recorded texts and the measured surfaces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import PlanError
from ..inputs import LOOKUP, PlanInputs
from ..plans.schedule import Place
from ..pricing.cells import Cell
from ..replay.acceptance import PositionResults, confident_chain_results, eagle2_results
from ..replay.rehearsal import Rehearsal
from ..replay.replay import replay_results
from ..replay.shortened import shortened
from ..stacks.search import StackSearch
from ..strategies import TreePolicy
from ..strategies.cast import CastPolicy
from ..strategies.confident_chain import ConfidentChainPolicy
from ..strategies.eagle2 import Eagle2Policy
from ..strategies.lookup import LookupPolicy
from ..strategies.stack import StackPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from ..text.lookup import Occurrence
from ..text.results import lookup_results, suffix_tree_results
from .contest import Contest, contest_of
from .objective import LatencyBound

Staged = tuple[TreePolicy, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a policy yields in a cell.

    Attributes:
        tokens_per_s: of all sequences, nothing taken off for optimism.
        keeps_bound: whether it keeps the latency bound; True where there is none.
    """

    tokens_per_s: float
    keeps_bound: bool


def prices(
    inputs: PlanInputs,
    cells: Sequence[Cell],
    staged: Sequence[Staged],
    bound: LatencyBound | None = None,
    new_tokens: int | None = None,
    *,
    cached_share: float = 0.0,
    is_padded: bool = False,
) -> dict[Staged, dict[Place, Price]]:
    """Return the prices of policies by cell; none where a policy cannot be priced there, with the reason unsaid.

    Args:
        inputs: what was measured and recorded.
        cells: from `cells_of`.
        staged: policies with their drafters: None for plain decoding, LOOKUP where the text drafts.
        bound: of the latency.
        new_tokens: of an answer, where whole requests are priced; None for decoding alone.
        cached_share: of a prompt, not read anew.
        is_padded: whether every round verifies the full size of a policy, as some engines do, instead of what it
            drafted. Not for CAST and stacks, which no engine has.

    Raises:
        PlanError: the inputs have no such drafter, or fewer texts than slots.
        MeasurementError: a batch was not measured.
    """
    rehearsal = Rehearsal(shortened(inputs, new_tokens))
    contests = {
        (cell.batch, cell.context): contest_of(rehearsal.inputs, cell, bound, new_tokens, cached_share)
        for cell in cells
    }
    found: dict[Staged, dict[Place, Price]] = {one: {} for one in staged}
    for one, drafted in _results(rehearsal, staged):
        results = _padded(one[0], drafted) if is_padded else drafted
        replays = {batch: replay_results(results, rehearsal.rows, batch) for batch in {cell.batch for cell in cells}}
        for place, contest in contests.items():
            contest.enter(*one, replays[place[0]])
            _note(found[one], place, contest, one)
    stacks = StackSearch(rehearsal, seed=0)
    for policy, drafter in staged:
        for place, contest in contests.items():
            if isinstance(policy, CastPolicy):
                contest.enter(policy, drafter, rehearsal.replay(policy, drafter, place[0]))
                _note(found[policy, drafter], place, contest, (policy, drafter))
            elif isinstance(policy, StackPolicy):
                stacks.enter(contest, policy)
                _note(found[policy, drafter], place, contest, (policy, drafter))
    return found


def _results(rehearsal: Rehearsal, staged: Sequence[Staged]) -> Iterator[tuple[Staged, PositionResults]]:
    """Yield what each policy does at every position; grids of one kind come out of one pass."""
    wanted = dict.fromkeys(staged)  # in the order asked for, which no hash decides
    beams = {(policy.top_k, drafter) for policy, drafter in wanted if isinstance(policy, Eagle2Policy)}
    for top_k, drafter in sorted(beams, key=str):
        yield from _beam(rehearsal, wanted, top_k, drafter)
    doubting = {drafter for policy, drafter in wanted if isinstance(policy, ConfidentChainPolicy)}
    for drafter in sorted(doubting, key=str):
        yield from _confident(rehearsal, wanted, drafter)
    yield from _lookups(rehearsal, wanted)
    yield from _suffix_trees(rehearsal, wanted)
    together = (Eagle2Policy, ConfidentChainPolicy, LookupPolicy, SuffixTreePolicy, CastPolicy, StackPolicy)
    for policy, drafter in staged:
        if not isinstance(policy, together):
            yield from _alone(rehearsal, policy, drafter)


def _padded(policy: TreePolicy, results: PositionResults) -> PositionResults:
    """Return results whose every tree is as large as the policy allows; what was added is never accepted."""
    return replace(results, sizes=np.full_like(results.sizes, policy.max_verify_tokens))


def _beam(
    rehearsal: Rehearsal, wanted: Collection[Staged], top_k: int, drafter: str | None
) -> Iterator[tuple[Staged, PositionResults]]:
    recording = rehearsal.recording(drafter or "")
    own = [p for p, by in wanted if isinstance(p, Eagle2Policy) and (p.top_k, by) == (top_k, drafter)]
    if top_k > recording.children:
        return
    depths, sizes = sorted({p.depth for p in own}), sorted({p.verify_tokens for p in own})
    for policy, results in eagle2_results(recording, top_k, depths, sizes):
        if (policy, drafter) in wanted:
            yield (policy, drafter), results


def _confident(
    rehearsal: Rehearsal, wanted: Collection[Staged], drafter: str | None
) -> Iterator[tuple[Staged, PositionResults]]:
    own = [p for p, by in wanted if isinstance(p, ConfidentChainPolicy) and by == drafter]
    lengths, confidences = sorted({p.length for p in own}), sorted({p.confidence for p in own})
    for policy, results in confident_chain_results(rehearsal.recording(drafter or ""), lengths, confidences):
        if (policy, drafter) in wanted:
            yield (policy, drafter), results


def _lookups(rehearsal: Rehearsal, wanted: Collection[Staged]) -> Iterator[tuple[Staged, PositionResults]]:
    own = [(policy, drafter) for policy, drafter in wanted if isinstance(policy, LookupPolicy)]
    by_search: dict[tuple[int, int, Occurrence], set[int]] = {}
    for asked, _ in own:
        by_search.setdefault((asked.max_ngram, asked.min_ngram, asked.occurrence_in_text), set()).add(asked.length)
    for (longest, shortest, which), lengths in sorted(by_search.items()):
        for policy, results in lookup_results(rehearsal.inputs.texts, longest, shortest, sorted(lengths), which):
            if (policy, LOOKUP) in wanted:
                yield (policy, LOOKUP), results


def _suffix_trees(rehearsal: Rehearsal, wanted: Collection[Staged]) -> Iterator[tuple[Staged, PositionResults]]:
    own = [policy for policy, _ in wanted if isinstance(policy, SuffixTreePolicy)]
    for policy, results in suffix_tree_results(rehearsal.inputs.texts, own) if own else ():
        yield (policy, LOOKUP), results


def _alone(rehearsal: Rehearsal, policy: TreePolicy, drafter: str | None) -> Iterator[tuple[Staged, PositionResults]]:
    """Yield one policy's results; nothing where the recording does not tell them."""
    try:
        yield (policy, drafter), rehearsal.results(policy, drafter)
    except PlanError:
        return


def _note(found: dict[Place, Price], place: Place, contest: Contest, staged: Staged) -> None:
    priced = contest.place_of(*staged)
    if priced is not None:
        found[place] = Price(tokens_per_s=contest.priced[priced].tokens_per_s, keeps_bound=contest.keeps_bound(priced))
