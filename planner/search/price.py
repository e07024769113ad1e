"""Replay every candidate of all grids and price it in every cell, or one of them in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import PlanError
from ..inputs import LOOKUP, PlanInputs
from ..memory.peak import memory_bytes
from ..pricing.bounds import bound_of
from ..pricing.cells import Cell
from ..pricing.cost import CellCosts
from ..replay.positions import PositionResults
from ..replay.recorded import Recording, Rows
from ..replay.rehearsal import Rehearsal
from ..replay.replay import Replay, replay_results
from ..stacks.search import StackSearch
from ..strategies import TreePolicy
from ..strategies.chain import ChainPolicy
from ..strategies.hybrid import ElsePolicy
from ..strategies.plain import PlainPolicy
from ..strategies.stack import StackPolicy
from ..strategies.text import TextPolicy
from ..text.hybrid import hybrids
from .candidate import Candidate
from .candidates import Contender, drafted, resumed, textual, unrecorded_beams
from .contest import Contest, NeedsBytes, contest_of
from .crossfit import EVERYWHERE
from .options import SearchOptions
from .written import else_text

ELSE_LENGTHS = (1, 2, 3)  # of chains that are among these whatever is the fastest alone
ELSE_KINDS = ("chain", "static", "eagle2")  # of what a hybrid's model drafts


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
        _enter_hybrids(contests, drafter.name, recording, most_tokens)
        for contest in contests:
            for beam in unrecorded_beams(recording):
                contest.refuse(beam, drafter.name, f"the trace records {recording.children} children per node")
    return contests


def _enter_hybrids(contests: Sequence[Contest], drafter: str, recording: Recording, most_tokens: int) -> None:
    """Enter into every cell the hybrids of what is a drafter's fastest there.

    Those over suffix trees do not compete where the host searches the text for one drafter alone: no round tells of it.
    """
    own = {contest: _else_policies(contest, drafter) for contest in contests}
    models = sorted({model for found in own.values() for model in found}, key=else_text)  # whatever cells they are of
    over_trees = all(contest.costs.captures(drafter) for contest in contests if contest.costs.captures_drafts)
    for policy, results in hybrids(recording, models, most_tokens, over_trees=over_trees):
        halves = {contest: found[policy.model] for contest, found in own.items() if policy.model in found}
        _enter_by_half(halves, policy, results, drafter, recording.rows)


def _else_policies(contest: Contest, drafter: str) -> dict[ElsePolicy, int]:
    """Return what a drafter's hybrids draft where the text does not, and the half of the texts that chose it.

    Short chains always: where the text has no copy a drafter is right less often than elsewhere.
    """
    found = [one for kind in ELSE_KINDS for one in contest.fastest_by_half(kind, drafter).items()]
    drawn = {policy: half for policy, half in found if isinstance(policy, ElsePolicy)}
    if not any(isinstance(policy, ChainPolicy) for policy in drawn):
        return drawn
    return drawn | dict.fromkeys((ChainPolicy(length=length) for length in ELSE_LENGTHS), EVERYWHERE)


def _enter(contests: Sequence[Contest], contender: Contender, drafter: str | None, rows: Rows) -> None:
    """Enter a contender into every cell; see `_enter_by_half`."""
    halves = dict.fromkeys(contests, contender.searched_on)
    _enter_by_half(halves, contender.policy, contender.results, drafter, rows)


def _enter_by_half(
    halves: Mapping[Contest, int], policy: TreePolicy, results: PositionResults, drafter: str | None, rows: Rows
) -> None:
    """Replay once per batch size, price in every cell that can verify the policy and time it, and where it can matter.

    Args:
        halves: cells, and for each the half of the folds that the policy was searched on.
        policy, results, drafter: what is priced.
        rows: the numbering of the texts' positions.
    """
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
        if isinstance(policy, PlainPolicy):
            contest.clipped_share = contest.costs.clipped_share(replays[batch])


def needs_bytes_of(inputs: PlanInputs, costs: CellCosts) -> NeedsBytes:
    """Return what tells the memory of a policy with a drafter in a cell."""

    def needs_bytes(policy: TreePolicy, drafter: str | None) -> int | None:
        return memory_bytes(costs.cell, policy, drafter, inputs, costs.verifying(policy.kind, drafter).run_tokens)

    return needs_bytes


def _contest(inputs: PlanInputs, cell: Cell, options: SearchOptions) -> Contest:
    contest = contest_of(inputs, cell, options.bound, options.new_tokens, options.cached_share)
    contest.needs_bytes, contest.most_bytes = needs_bytes_of(inputs, contest.costs), options.max_memory_bytes
    return contest
