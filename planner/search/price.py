"""Replay every candidate of all grids and price it in every cell, or one of them in one."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import PlanError
from ..inputs import LOOKUP, PlanInputs, resumes_of
from ..memory.peak import memory_bytes
from ..policies import PlainPolicy, StackPolicy, TextPolicy, TreePolicy
from ..policies.hybrid import ElsePolicy
from ..pricing.bounds import most_tokens_per_round
from ..pricing.cost import Cell, cell_costs
from ..replay.recorded import Rows
from ..replay.rehearsal import Rehearsal
from ..replay.replay import Replay, replay_results
from ..stacks.search import StackSearch
from ..text.hybrid import hybrids
from .candidate import Candidate
from .candidates import Contender, drafted, resumed, textual, unrecorded_beams
from .contest import Contest
from .crossfit import EVERYWHERE
from .options import SearchOptions


def price(inputs: PlanInputs, cell: Cell, policy: TreePolicy, drafter: str | None = None) -> Candidate:
    """Return one policy's speed in a cell, whether or not it would be chosen.

    Args:
        drafter: which one drafts; of no matter for plain decoding and what drafts from the text.

    Raises:
        PlanError: no such drafter, a forward larger than measured, or too few recorded expansions.
    """
    contest, rehearsal = _contest(inputs, cell, SearchOptions()), Rehearsal(inputs)
    if isinstance(policy, StackPolicy):
        return StackSearch(rehearsal, SearchOptions().seed).price(contest, policy)
    source = LOOKUP if isinstance(policy, TextPolicy) else None if isinstance(policy, PlainPolicy) else drafter
    found = contest.enter(policy, source, rehearsal.replay(policy, source, cell.batch))
    if found is None:
        raise PlanError(f"{policy.label} cannot be priced: {contest.left_out()[0].reason}")
    return found


def price_all(rehearsal: Rehearsal, cells: Sequence[Cell], options: SearchOptions) -> list[Contest]:
    """Return every cell with the candidates of all grids priced in it, pruned, or left out.

    Raises:
        PlanError: fewer texts than slots, or plain decoding has no price.
    """
    inputs = rehearsal.inputs
    contests = [_contest(inputs, cell, options) for cell in cells]
    most_tokens = max(contest.costs.verify.most_tokens for contest in contests)
    for contender in textual(inputs.texts, rehearsal.rows, most_tokens, options.tables):
        _enter(contests, contender, None if isinstance(contender.policy, PlainPolicy) else LOOKUP, rehearsal.rows)
    for contest in contests:
        if not any(isinstance(candidate.policy, PlainPolicy) for candidate in contest.priced):
            raise PlanError(f"plain decoding has no price: {contest.left_out()[0].reason}")
    for drafter in inputs.drafters:
        recording = rehearsal.recording(drafter.name)
        for contender in drafted(recording, most_tokens):
            _enter(contests, contender, drafter.name, recording.rows)
        if drafter.resume is not None:
            for contender in resumed(recording, most_tokens):
                _enter(contests, contender, drafter.name, recording.rows)
        for policy, results in hybrids(recording, _else_policies(contests, drafter.name), most_tokens):
            _enter(contests, Contender(policy=policy, results=results), drafter.name, recording.rows)
        for contest in contests:
            for beam in unrecorded_beams(recording):
                contest.refuse(beam, drafter.name, f"the trace records {recording.children} children per node")
    return contests


def _else_policies(contests: Sequence[Contest], drafter: str) -> list[ElsePolicy]:
    """Return what a drafter's hybrids draft where the text does not: its fastest of each such kind in every cell."""
    found: dict[ElsePolicy, None] = {}
    for contest in contests:
        best: dict[str, Candidate] = {}
        for one, half in zip(contest.priced, contest.searched_on, strict=True):
            if one.drafter == drafter and half == EVERYWHERE and isinstance(one.policy, ElsePolicy):
                known = best.get(one.policy.kind)
                if known is None or one.tokens_per_s > known.tokens_per_s:
                    best[one.policy.kind] = one
        found |= {one.policy: None for one in best.values() if isinstance(one.policy, ElsePolicy)}
    return list(found)


def _enter(contests: list[Contest], contender: Contender, drafter: str | None, rows: Rows) -> None:
    """Replay once per batch size, price in every cell where the policy can matter."""
    policy, results = contender.policy, contender.results
    replays: dict[int, Replay] = {}
    most_tokens = most_tokens_per_round(results, rows)
    for contest in contests:
        if contest.lacks_host_time(policy, drafter) or not contest.can_matter(policy, drafter, results, most_tokens):
            continue
        if contest.batch not in replays:
            replays[contest.batch] = replay_results(results, rows, contest.batch)
        contest.enter(policy, drafter, replays[contest.batch], contender.searched_on)
        if isinstance(policy, PlainPolicy):
            contest.clipped_share = contest.costs.clipped_share(replays[contest.batch])
            contest.steady_share = replays[contest.batch].tokens / int(rows.left[rows.starts].sum())


def _contest(inputs: PlanInputs, cell: Cell, options: SearchOptions) -> Contest:
    drafts = {drafter.name: drafter.surface for drafter in inputs.drafters}
    costs = cell_costs(cell, inputs.verify, drafts, inputs.overhead, resumes_of(inputs))

    def needs_bytes(policy: TreePolicy, drafter: str | None) -> int | None:
        return memory_bytes(cell, policy, drafter, inputs, costs.verifying(policy.kind, drafter).run_tokens)

    return Contest(
        costs=costs,
        texts=len(inputs.texts),
        needs_bytes=needs_bytes,
        most_bytes=options.max_memory_bytes,
        bound=options.bound,
    )
