"""Replay every candidate of all grids and price it in every cell, or one of them in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...errors import PlanError
from ..inputs import LOOKUP, PlanInputs
from ..lockstep import Replay, replay_results
from ..memory.peak import memory_bytes
from ..pricing.bounds import bound_of
from ..pricing.cells import Cell
from ..pricing.cost import CellCosts
from ..records.crossfit import EVERYWHERE
from ..records.recording import Recorded, Recording, Rows
from ..records.results import PositionResults
from ..replay.rehearsal import Rehearsal
from ..strategies import REGISTRY, TreePolicy
from ..strategies.chain import ChainPolicy
from ..strategies.hybrid import hybrids
from ..strategies.offers import Graded, Limits
from ..strategies.stack import StackPolicy
from .candidate import Candidate
from .contest import CellSearch, NeedsBytes, contest_of
from .options import SearchOptions
from .stack_search import StackSearch

ELSE_LENGTHS = (1, 2, 3)  # of chains that are among these whatever is the fastest alone
ELSE_KINDS = [kind for kind, one in REGISTRY.items() if one.in_hybrids and one.source == "model"]


def price(inputs: PlanInputs, cell: Cell, policy: TreePolicy, drafter: str | None = None) -> Candidate:
    """Return one policy's speed in a cell, whether or not it would be chosen.

    `drafter` is ignored for plain decoding and drafts from the text. PlanError: no such drafter, a forward larger than
    measured, or too few recorded expansions.
    """
    contest, rehearsal = _contest(inputs, cell, SearchOptions()), Rehearsal(inputs)
    if isinstance(policy, StackPolicy):
        return StackSearch(rehearsal, SearchOptions().seed).price(contest, policy)
    source = _text_or_none(policy) if policy.source in ("none", "text") else drafter
    found = contest.enter(policy, source, rehearsal.replay(policy, source, cell.batch))
    if found is None:
        raise PlanError(f"{policy.label} cannot be priced: {contest.left_out()[0].reason}")
    return found


def price_all(rehearsal: Rehearsal, cells: Sequence[Cell], options: SearchOptions) -> list[CellSearch]:
    """Return every cell with the candidates of all grids priced in it, pruned, or left out.

    PlanError: fewer texts than slots, or plain decoding has no price.
    """
    inputs = rehearsal.inputs
    contests = [_contest(inputs, cell, options) for cell in cells]
    most_tokens = max(contest.costs.verify.most_tokens for contest in contests)
    bare, limits = (
        Recorded(texts=inputs.texts, rows=rehearsal.rows),
        Limits(most_tokens=most_tokens, tables=options.tables),
    )
    for graded in textual(bare, limits):
        _enter(contests, graded, _text_or_none(graded.policy), rehearsal.rows)
    for contest in contests:
        if not any(candidate.policy.source == "none" for candidate in contest.priced):
            raise PlanError(f"plain decoding has no price: {contest.left_out()[0].reason}")
    for drafter in inputs.drafters:
        recording = rehearsal.recording(drafter.name)
        for graded in drafted(Recorded.by(recording), replace(limits, resumes=drafter.resume is not None)):
            _enter(contests, graded, drafter.name, recording.rows)
        _enter_hybrids(contests, drafter.name, recording, most_tokens)
        for contest in contests:
            for wide in (one for strategy in GRIDS for one in strategy.unrecorded(recording.children)):
                contest.refuse(wide, drafter.name, f"the trace records {recording.children} children per node")
    return contests


def _enter_hybrids(contests: Sequence[CellSearch], drafter: str, recording: Recording, most_tokens: int) -> None:
    """Enter into every cell the hybrids of a drafter's fastest policies there."""
    own = {contest: _else_policies(contest, drafter) for contest in contests}
    models = sorted(
        {model for found in own.values() for model in found}, key=lambda model: model.written
    )  # of any cell
    over_trees = all(contest.costs.captures(drafter) for contest in contests if contest.costs.captures_drafts)
    for policy, results in hybrids(recording, models, most_tokens, over_trees=over_trees):
        halves = {contest: found[policy.model] for contest, found in own.items() if policy.model in found}
        _enter_by_half(halves, policy, results, drafter, recording.rows)


def _else_policies(contest: CellSearch, drafter: str) -> dict[TreePolicy, int]:
    """Return what a drafter's hybrids draft where the text does not, and the half of the texts that chose it.

    Short chains are always in: where the text has no copy a drafter is right less often than elsewhere.
    """
    found: dict[TreePolicy, int] = {}
    for kind in ELSE_KINDS:
        found |= contest.fastest_by_half(kind, drafter)
    if any(isinstance(policy, ChainPolicy) for policy in found):
        found |= {ChainPolicy(length=length): EVERYWHERE for length in ELSE_LENGTHS}
    return found


def _text_or_none(policy: TreePolicy) -> str | None:
    return None if policy.source == "none" else LOOKUP


def _enter(contests: Sequence[CellSearch], graded: Graded, drafter: str | None, rows: Rows) -> None:
    _enter_by_half(dict.fromkeys(contests, graded.searched_on), graded.policy, graded.results, drafter, rows)


def _enter_by_half(
    halves: Mapping[CellSearch, int], policy: TreePolicy, results: PositionResults, drafter: str | None, rows: Rows
) -> None:
    """Replay once per batch size; price in every cell that can verify and has timed the policy, where it may matter."""
    able = [contest for contest in halves if policy.max_verify_tokens <= contest.costs.verify.most_tokens]
    if not able:
        return
    bound, replays = bound_of(results, rows), dict[int, Replay]()
    for contest in able:
        batch = contest.batch
        if contest.lacks_times(policy, drafter) or not contest.can_matter(policy, drafter, bound):
            continue
        if batch not in replays:
            replays[batch] = replay_results(results, rows, batch)
        contest.enter(policy, drafter, replays[batch], halves[contest])
        if policy.source == "none":
            contest.clipped_share = contest.costs.clipped_share(replays[batch])


def needs_bytes_of(inputs: PlanInputs, costs: CellCosts) -> NeedsBytes:
    """Return what computes the memory of a policy with a drafter in a cell."""

    def needs_bytes(policy: TreePolicy, drafter: str | None) -> int | None:
        return memory_bytes(costs.cell, policy, drafter, inputs, costs.verifying(policy.kind, drafter).run_tokens)

    return needs_bytes


def _contest(inputs: PlanInputs, cell: Cell, options: SearchOptions) -> CellSearch:
    contest = contest_of(inputs, cell, options.bound, options.new_tokens, options.cached_share)
    contest.needs_bytes, contest.most_bytes = needs_bytes_of(inputs, contest.costs), options.max_memory_bytes
    return contest


GRIDS = sorted((one for one in REGISTRY.values() if one.grid_place is not None), key=lambda one: one.grid_place or 0)


def textual(recorded: Recorded, limits: Limits) -> Iterator[Graded]:
    """Yield plain decoding, then all that drafts from the text and needs no model."""
    for strategy in GRIDS:
        if not strategy.is_recorded:
            yield from strategy.grid(recorded, limits)


def drafted(recorded: Recorded, limits: Limits) -> Iterator[Graded]:
    """Yield what one drafter, which `recorded` holds, drafts within the limits of the grids; cheap ones first."""
    for strategy in GRIDS:
        if strategy.is_recorded:
            yield from strategy.grid(recorded, limits)
