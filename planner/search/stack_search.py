"""Stacks of drafters as candidates of a cell: listed, pruned by a bound, replayed, priced model by model.

A stack that cannot come near the cell's best is not replayed:

    rate <= batch * (tokens per round of the first drafter's chain of the most tokens the stack hands up)
            / (verify of the fewest nodes + the fewest forwards of each of its models + host)

The bound gives a lookup all it might copy for free, so it does not say which of the rest is fast. They are replayed by
expected rate (`expected_rates`): the best of every set of drafters, and of all. Forwards of lower models after an
upper one leaves the text are modelled (see `stack_replay`); all tokens of a round are exact.

Expected rates follow HSD's formula, on the cell's costs and acceptance along the texts; of a lookup's copies token by
token. It takes these as independent and knows one sequence, so it orders stacks and prices none.

Source: Globerson et al. 2025, arXiv:2510.19705.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations, product

import numpy as np

from ...errors import PlanError
from ..hierarchy.latency import latencies_ms
from ..hierarchy.records import HierarchyInputs, SinglePassDrafter
from ..hierarchy.tables import Stack, Tables
from ..inputs import LOOKUP, PlanInputs
from ..pricing.bounds import ONE, most_tokens_per_round
from ..pricing.cost import CellCosts, Floats
from ..pricing.round import RoundTimes
from ..records.crossfit import EVERYWHERE
from ..replay.rehearsal import Rehearsal
from ..strategies import TreePolicy
from ..strategies.chain import ChainPolicy, right_run
from ..strategies.lookup import LookupPolicy
from ..strategies.stack import STACK, StackPolicy, stack_name
from ..strategies.stack_replay import StackReplay, agreement_of, replay_stack
from .candidate import Candidate
from .contest import REACH, CellSearch
from .stack_forecast import hierarchy_inputs

MOST_MODELS = 3  # of a stack; a model more is worth little once three verify each other
FIRST_LENGTHS = (2, 4, 6, 8, 12)  # tokens the drafter next to the target gathers
LOWER_LENGTHS = (2, 4)  # tokens a drafter below gathers
LOOKUP_LENGTHS = (3, 8)  # tokens copied from the text at the bottom
SIBLINGS = (1, 2)  # tried beside the tokens of the best stack of each half of the texts
BEST_OF_ALL = 6  # that are replayed in a cell beside the best of each set of drafters


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A stack, and the tokens per second of a cell that it is expected to reach and those that it cannot exceed."""

    policy: StackPolicy
    expected_rate: float
    most_rate: float


class StackSearch:
    """Enters the stacks of a plan's drafters into its cells; every stack is replayed once per batch size."""

    def __init__(self, rehearsal: Rehearsal, seed: int) -> None:
        """Take the recordings; `seed` is of the tosses."""
        self._rehearsal, self._seed = rehearsal, seed
        self._most: dict[tuple[str, int], float] = {}
        self._replays: dict[tuple[StackPolicy, int], StackReplay] = {}

    def search(self, contest: CellSearch) -> None:
        """Enter the most promising stacks, then siblings beside the best of them on each half of the texts."""
        if STACK not in contest.costs.host:
            return
        prospects = self._prospects(contest)
        able = [one for one in prospects if one.most_rate >= REACH * contest.best_rate]
        tried = most_promising(able)
        contest.pruned += len(prospects) - len(able)
        contest.untried += len(able) - len(tried)
        for policy in tried:
            self.enter(contest, policy)
        for best, half in contest.fastest_by_half(STACK).items():
            if isinstance(best, StackPolicy):
                for count in SIBLINGS:
                    self.enter(contest, with_siblings(best, count), half)

    def enter(self, contest: CellSearch, policy: StackPolicy, searched_on: int = EVERYWHERE) -> Candidate | None:
        """Price a stack in a cell, or note why it cannot be and return None."""
        name = stack_name(policy)
        try:
            found = self.replay(policy, contest.batch)
            times = stack_times(policy, found, contest.costs)
        except PlanError as error:
            contest.refuse(policy, name, str(error))
            return None
        return contest.enter(policy, name, found.replay, searched_on, times=times)

    def price(self, contest: CellSearch, policy: StackPolicy) -> Candidate:
        """Return one stack's speed in a cell; PlanError where it cannot be priced."""
        found = self.enter(contest, policy)
        if found is None:
            raise PlanError(f"{policy.label} cannot be priced: {contest.left_out()[0].reason}")
        return found

    def replay(self, policy: StackPolicy, batch: int) -> StackReplay:
        """Return a stack's rounds; PlanError: no recording or agreement, or fewer texts than slots."""
        if (policy, batch) not in self._replays:
            recordings = {name: self._rehearsal.recording(name) for name in policy.models}
            chances = agreement_of(policy, recordings, self._rehearsal.inputs.pairwise)
            tosses = np.random.default_rng(self._seed)
            self._replays[policy, batch] = replay_stack(policy, recordings, batch, agreement=chances, generator=tosses)
        return self._replays[policy, batch]

    def notes_of(self, contest: CellSearch, policy: TreePolicy) -> tuple[str, ...]:
        """Return what is not exact about a policy that a cell chose; nothing unless it is a stack."""
        if not isinstance(policy, StackPolicy):
            return ()
        found, cell = self.replay(policy, contest.batch), contest.costs.cell
        shares = ", ".join(f"{found.modelled_share(level):.0%} of {name}" for level, name in enumerate(policy.models))
        return (
            f"batch {cell.batch}, context {cell.context}: the tokens of the {policy.label} are replayed; of its "
            f"forwards these are modelled, because a model above had left the text: {shares}",
        )

    def _prospects(self, contest: CellSearch) -> list[Prospect]:
        policies = stacks_of(self._rehearsal.inputs, contest.costs)
        expected = expected_rates(policies, self._rehearsal, contest.costs) if policies else ()
        return [
            Prospect(policy=policy, expected_rate=float(rate), most_rate=self._most_rate(policy, contest.costs))
            for policy, rate in zip(policies, expected, strict=True)
        ]

    def _most_rate(self, policy: StackPolicy, costs: CellCosts) -> float:
        most = self._most_tokens(policy.models[0], policy.max_chain)
        return 1000.0 * costs.cell.batch * most / _least_ms(policy, costs)

    def _most_tokens(self, drafter: str, length: int) -> float:
        """Return an upper bound on the tokens of a round whose chain is a drafter's own, of that length."""
        if (drafter, length) not in self._most:
            results = self._rehearsal.results(ChainPolicy(length=length), drafter)
            self._most[drafter, length] = most_tokens_per_round(results, self._rehearsal.rows)
        return self._most[drafter, length]


def stacks_of(inputs: PlanInputs, costs: CellCosts) -> list[StackPolicy]:
    """Return the stacks of models that run in a cell; upper models cost more per forward than those below them.

    Without recorded agreement between drafters only those of one model over a lookup.
    """
    names = [one.name for one in inputs.drafters if one.name in costs.drafts and not one.reads_features]
    one_ms = {name: float(costs.drafts[name].row(float(costs.cell.context))[1]) for name in names}
    most = min(MOST_MODELS, len(one_ms)) if inputs.pairwise is not None else 1
    found: list[StackPolicy] = []
    for count in range(1, most + 1):
        for models in permutations(one_ms, count):
            if all(one_ms[upper] > one_ms[lower] for upper, lower in pairwise(models)):
                found.extend(_with_lengths(models))
    return [policy for policy in found if policy.max_verify_tokens <= costs.verify.most_tokens]


def _with_lengths(models: Sequence[str]) -> Iterator[StackPolicy]:
    grids = [FIRST_LENGTHS, *([LOWER_LENGTHS] * (len(models) - 1))]
    if len(models) > 1:
        for lengths in product(*grids):
            yield StackPolicy(drafters=tuple(models), lengths=lengths)
    for lengths in product(*grids, LOOKUP_LENGTHS):
        yield StackPolicy(drafters=(*models, LOOKUP), lengths=lengths)


def most_promising(prospects: Sequence[Prospect]) -> list[StackPolicy]:
    """Return the stacks to replay: of every set of drafters the one of which most is expected, and the best of all."""
    ordered = sorted(prospects, key=lambda one: -one.expected_rate)
    firsts = {one.policy.drafters: one for one in reversed(ordered)}.values()
    return [one.policy for one in ordered if one in firsts or one in ordered[:BEST_OF_ALL]]


def with_siblings(policy: StackPolicy, count: int) -> StackPolicy:
    """Return a stack whose first drafter's next-best tokens are verified, too."""
    return replace(policy, siblings=count)


def stack_times(policy: StackPolicy, found: StackReplay, costs: CellCosts) -> RoundTimes:
    """Return a stack's round times, each forward by its model; PlanError: one is too large, or a model does not run."""
    times = costs.times(found.replay, STACK, None).by_part.copy()
    contexts = costs.priced_at(found.replay.contexts)
    for level, name in enumerate(policy.models):
        widths = np.where(found.levels == level, found.replay.widths, 0)
        table, widest = costs.drafting(name), int(widths.max(initial=0))
        if widest > table.most_tokens:
            raise PlanError(
                f"a forward of {widest} tokens of {name} was not measured, only up to {table.most_tokens}; "
                "profile wider ones with --record full"
            )
        times[0] += table.at(contexts, widths).sum(axis=1)  # entry 0 of a table is 0 ms: a forward that did not run
    return RoundTimes(by_part=times)


def _least_ms(policy: StackPolicy, costs: CellCosts) -> float:
    """Return a lower bound on a round's milliseconds: every draft accepted, every forward at its cheapest."""
    counts, nodes = least_forwards(policy), np.array([1 + policy.lengths[0]])
    forwards_ms = (
        count * float(costs.drafting(name).least().ms[0, 1]) for name, count in zip(policy.models, counts, strict=True)
    )
    ran = np.ones((1, sum(counts)), dtype=np.int64)
    return float(costs.at_least(STACK, None).ms(nodes, ONE, ran)[0]) + sum(forwards_ms)


def least_forwards(policy: StackPolicy) -> tuple[int, ...]:
    """Return the fewest forwards of each model in a round whose texts are not at their end.

    One forward of a level yields at most all drafts from below and one token more; at the bottom, one token.
    """
    calls, found = 1, []
    for level, length in enumerate(policy.lengths[: len(policy.models)]):
        is_bottom = level + 1 == len(policy.lengths)
        most = 1 if is_bottom else 1 + sum(policy.lengths[level + 1 :])
        calls *= -(-length // most)
        found.append(calls)
    return tuple(found)


MOST_COPIED = 8  # tokens of a lookup whose acceptance is looked at


def stacked_inputs(rehearsal: Rehearsal, costs: CellCosts) -> HierarchyInputs:
    """Return a cell's models and copies from the text, which models alone verify, as a hierarchy's."""
    models = hierarchy_inputs(rehearsal.inputs, costs, STACK)
    acceptance = {model.name: _copied(rehearsal, model.name) for model in models.models[:-1]}
    block = SinglePassDrafter(name=LOOKUP, draft_ms=(0.0,) * (MOST_COPIED + 1), acceptance=acceptance)
    return replace(models, blocks=(block,))


def expected_rates(policies: Sequence[StackPolicy], rehearsal: Rehearsal, costs: CellCosts) -> Floats:
    """Return (stacks,): a cell's tokens per second; 0 where a draft is too long. No siblings; all models must run."""
    tables = Tables(stacked_inputs(rehearsal, costs))
    return 1000.0 * costs.cell.batch / latencies_ms(tables, [_in_numbers(tables, policy) for policy in policies])


def _copied(rehearsal: Rehearsal, name: str) -> tuple[float, ...]:
    """Return the chance that a model accepts the first, second, ... token of a copy, given those before it.

    Tokens beyond a copy, and those on which model and copy agree against the text, count as refused.
    """
    copied = rehearsal.results(LookupPolicy(length=MOST_COPIED), LOOKUP).accepted
    both = np.minimum(copied, right_run(rehearsal.recording(name).next_rank))
    reached = [int((both >= tokens).sum()) for tokens in range(1, MOST_COPIED + 1)]
    return tuple(now / max(before, 1) for before, now in zip([len(both), *reached], reached, strict=False))


def _in_numbers(tables: Tables, policy: StackPolicy) -> Stack:
    """Return a stack as the formula's solvers take it: the lowest drafter first, its chain verified bare."""
    names = tables.inputs.node_names
    nodes = tuple(names.index(name) for name in reversed(policy.drafters))
    return Stack(nodes, tuple(reversed(policy.lengths)), tables.finishes_of(nodes[-1])[0])
