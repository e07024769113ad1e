"""What one round costs in one cell: drafter forwards, one padded verify, and the host around them.

    draft  = t_read(catch_up) + sum over further forwards of t_draft(width), which a block drafter has none of;
             an exit of the target's own catches up with 1 token: the target has read the others
    verify = t_verify(run_tokens[nodes])      the padded shape that will really run; of few sizes where each is captured
             and where it goes on from an exit's states t_resume of that exit, padded by itself
    host   = a + b * forwards + c * nodes    fitted per kind of policy and role of drafter; a hybrid's + d where it ran

A round whose context lies in the cell's span is priced there, clipped to the measured contexts; any other at the mean
of these, else at the cell's context: it says how many tokens rounds accept, not what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError, PlanError
from ...profiler.records.excess import mean_over_median
from ...profiler.records.host_line import CHAIN, HYBRID_OF, OVER_TREES, TEXT_TREE, HostLine
from ...profiler.records.overhead import MODEL, RoundOverhead
from ...profiler.records.role import BLOCK, CAPTURED, SELF
from ...profiler.records.surface import LatencySurface
from ..kernels.rounds import CostArrays, price
from ..lockstep import Replay
from ..records.draft import Bools, Ints
from ..strategies import TreePolicy
from ..strategies.hybrid import HybridPolicy
from .cells import Cell
from .fed import drafted_tokens, nearest_context, padded_tokens, reached_context, verified_tokens
from .round import RoundCosts, RoundTimes
from .table import NOTHING_DRAFTED, CostTable, Verification, cost_table

Floats = NDArray[np.float64]
RESUMED = "resumed"  # kind of rounds whose verification goes on from the states that an exit left
UNKNOWN = "no rounds with it beside a target in {regime} were timed at batch {batch}; profile all drafters together"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellCosts:
    """All costs of one cell; `verify` has the shape that runs already chosen."""

    cell: Cell
    verify: CostTable
    run_tokens: tuple[int, ...]  # index = tokens in the tree, value = tokens fed
    drafts: dict[str, CostTable]  # by name of the drafters that run here
    host: dict[str, HostLine]  # by kind (`kind_of`), of rounds with a model or without a drafter
    resumed: dict[str, Verification] = field(default_factory=dict)  # by exit: of verifying from its states
    device_kind: str = "cpu"  # "cpu" or "cuda", where drafts grow differently
    captures_drafts: bool = False  # whether whole drafts are captured work, and rounds run ahead of the host
    eager: frozenset[str] = frozenset()  # the drafters whose drafts are not captured: exits and block drafters
    undrafted: dict[str, str] = field(default_factory=dict)  # by name of the others, why
    host_beside: dict[str, dict[str, HostLine]] = field(default_factory=dict)  # by drafter timed apart, then by kind

    def times(self, replay: Replay, kind: str, drafter: str | None) -> RoundTimes:
        """Return what every round of a replay costs here; `kind` is from `kind_of`, `drafter` the model that drafts.

        PlanError: a forward is larger than measured, or the kind has no host time or the drafter no forwards here.
        """
        verification = self.verifying(kind, drafter).table
        _require("verify", int(replay.nodes.max()), verification)
        draft, rounds, most_read = NOTHING_DRAFTED, replay.arrays, 0
        if drafter is not None and replay.widths.shape[1]:
            draft = self.drafting(drafter)
            rounds = rounds._replace(catch_up=draft.caught_up(rounds.catch_up))
            most_read = int(rounds.catch_up[replay.widths[:, 0] > 0].max(initial=0))
            fed = draft.paid(replay.widths)[:, 1:]  # the first reads what was committed
            _require(f"draft of {drafter}", int(fed.max(initial=0)), draft)
        times = np.empty((3, replay.rounds))
        span = (float(self.cell.low), float(self.cell.high), self._elsewhere(replay.contexts))
        verify = CostArrays(verification.contexts, verification.ms)
        table = CostArrays(draft.contexts, np.ascontiguousarray(draft.ms))
        reading = CostArrays(draft.contexts, draft.reading(most_read, self.cell.batch))
        paid = draft.paid(replay.widths).shape[1]
        price(rounds, span, table, reading, paid, verify, (*self.host_of(kind, drafter),), times)
        return RoundTimes(by_part=times)

    def at_context(self, kind: str, drafter: str | None) -> RoundCosts:
        """Return what rounds of a kind cost at the cell's context, by their shape; arguments, errors as of `times`."""
        return self._narrowed(kind, drafter, lambda table: table.only(float(self.cell.context)))

    def at_least(self, kind: str, drafter: str | None) -> RoundCosts:
        """Return a lower bound on such rounds, and on those with larger trees or layers; errors as of `at_context`."""
        return self._narrowed(kind, drafter, CostTable.least)

    def _narrowed(self, kind: str, drafter: str | None, narrow: Callable[[CostTable], CostTable]) -> RoundCosts:
        return RoundCosts(
            verify=narrow(self.verifying(kind, drafter).table),
            draft=None if drafter is None else narrow(self.drafting(drafter)),
            host=self.host_of(kind, drafter),
            batch=self.cell.batch,
        )

    def drafting(self, drafter: str) -> CostTable:
        """Return what a drafter's forwards cost; PlanError where it does not run here."""
        if drafter not in self.drafts:
            why = self.undrafted.get(drafter, "its forwards were not timed")
            raise PlanError(f"{drafter} does not draft at batch {self.cell.batch}, context {self.cell.context}: {why}")
        return self.drafts[drafter]

    def verifying(self, kind: str, drafter: str | None) -> Verification:
        """Return what verifying costs in rounds of a kind; PlanError where it resumes an exit and was not timed."""
        if kind != RESUMED:
            return Verification(table=self.verify, run_tokens=self.run_tokens)
        if drafter not in self.resumed:
            raise PlanError(
                f"no verification from the states of {drafter} was timed at batch {self.cell.batch}, context "
                f"{self.cell.context}; profile an exit of this target there"
            )
        return self.resumed[drafter]

    def require_verified(self, policy: TreePolicy, drafter: str | None) -> None:
        """Raise PlanError unless trees as large as a policy's were verified here, in the way of its rounds."""
        most = self.verifying(policy.kind, drafter).table.most_tokens
        if policy.max_verify_tokens > most:
            raise PlanError(
                f"a verify of {policy.max_verify_tokens} tokens was not measured, at most {most}; profile larger ones"
            )

    def clipped_share(self, replay: Replay) -> float:
        """Return the share of rounds priced at the nearest measured context, not at their own."""
        contexts = self.priced_at(replay.contexts)
        return float(np.mean((contexts < self.verify.contexts[0]) | (contexts > self.verify.contexts[-1])))

    def priced_at(self, contexts: Ints) -> Floats:
        """Return the contexts that rounds are priced at: their own where the cell answers for it, else their mean."""
        return np.where(self._inside(contexts), contexts, self._elsewhere(contexts)).astype(np.float64)

    def _inside(self, contexts: Ints) -> Bools:
        inside: Bools = (contexts > self.cell.low) & (contexts <= self.cell.high)
        return inside

    def _elsewhere(self, contexts: Ints) -> float:
        own = contexts[self._inside(contexts)]
        return float(own.mean()) if len(own) else float(self.cell.context)

    @property
    def priced_at_context(self) -> int | None:
        """Return the nearest measured context where the cell's own lies beyond all that were measured; else None."""
        nearest = min(max(self.cell.context, int(self.verify.contexts[0])), int(self.verify.contexts[-1]))
        return None if max(nearest, 1) == self.cell.context else nearest

    def captures(self, drafter: str | None) -> bool:
        """Return whether the drafts of a model, or of the text where there is none, are captured work."""
        return self.captures_drafts and drafter not in self.eager

    def kind_of(self, policy: TreePolicy, drafter: str | None = None) -> str:
        """Return as which kind a policy's rounds are timed: a hybrid's by what model and text draft, where known."""
        if not isinstance(policy, HybridPolicy):
            return policy.kind
        told = HYBRID_OF.format(policy.model.kind)
        own = told if self.has_host(told, drafter) else policy.kind
        over_trees = OVER_TREES.format(own)
        return over_trees if policy.text.kind == TEXT_TREE and self.has_host(over_trees, drafter) else own

    def has_host(self, kind: str, drafter: str | None) -> bool:
        """Return whether rounds of a kind with a drafter were timed."""
        return kind in self.host_beside.get(drafter or "", self.host)

    def host_of(self, kind: str, drafter: str | None = None) -> HostLine:
        """Return the host time of rounds of a kind, such that no forward of its drafter has a time below 0.

        `drafter` is None where no model or several draft. PlanError: rounds of this kind were not timed here.
        """
        lines = self.host_beside.get(drafter or "", self.host)
        if kind not in lines:
            known = ", ".join(sorted(lines)) or "none"
            raise PlanError(f"no host time for {kind!r} at batch {self.cell.batch}, measured: {known}; profile it")
        line = lines[kind]
        if line.forward_ms >= 0.0:
            return line
        models = [table for table in self.drafts.values() if not table.is_block]  # stacks have no others
        tables = [self.drafts[drafter]] if drafter in self.drafts else models
        return line._replace(forward_ms=max(line.forward_ms, -min((table.least_ms for table in tables), default=0.0)))


def cell_costs(
    cell: Cell,
    verify: LatencySurface,
    drafts: dict[str, LatencySurface],
    overhead: RoundOverhead,
    resumes: Mapping[str, LatencySurface] | None = None,
    device_kind: str = "cpu",
    knots: Sequence[int] = (),
) -> CellCosts:
    """Return the costs of a cell: padded for the target, unpadded for the drafters, which are given by name.

    `resumes` are verifications from the states of exits, where timed; no captured forward is one. Rounds are priced
    between the contexts `knots`, all measured ones where empty. MeasurementError: the target was not measured at the
    batch.
    """
    host, beside = overhead.lines(cell.batch), dict[str, dict[str, HostLine]]()
    roles = overhead.roles(cell.batch)
    apart = set(roles) - ({MODEL} if MODEL in roles else set(roles[:1]))  # of which `host` is not
    eager = {name for name, surface in drafts.items() if surface.role in (BLOCK, SELF)}
    unknown = dict[str, str]()
    for name, surface in drafts.items():
        role = overhead.role_beside(cell.batch, surface.role, surface.model)
        if role is None and name in eager and verify.regime == CAPTURED:
            unknown[name] = UNKNOWN.format(regime=CAPTURED, batch=cell.batch)
        elif role in apart:
            beside[name] = overhead.lines(cell.batch, role)
    if resumes and CHAIN in host:  # older profiles timed an exit's rounds only where it was the one to draft
        host = {RESUMED: host[CHAIN], **host}
    context = nearest_context(verify, cell.batch, cell.context)
    run_tokens = verified_tokens(verify, cell.batch, context)
    excess = mean_over_median(verify)  # of drafters, too, that were timed too seldom to tell theirs
    known = {name: surface for name, surface in drafts.items() if name not in unknown}
    drafted, undrafted = drafted_tables(known, cell, excess, knots)
    return CellCosts(
        cell=cell,
        verify=cost_table(verify, cell.batch, context, run_tokens, excess, knots),
        run_tokens=tuple(run_tokens),
        drafts=drafted,
        host=host,
        resumed=_resumed(resumes or {}, verify, cell, run_tokens, excess),
        device_kind=device_kind,
        captures_drafts=verify.regime == CAPTURED,
        eager=frozenset(eager),
        undrafted=undrafted | unknown,
        host_beside=beside,
    )


def _resumed(
    resumes: Mapping[str, LatencySurface], verify: LatencySurface, cell: Cell, run_tokens: Sequence[int], excess: float
) -> dict[str, Verification]:
    """Return what verifying from the states of exits costs, by the exit; no captured forward is one."""
    if verify.regime == CAPTURED:
        return {}
    found = {name: resumed_verification(each, cell, run_tokens, excess) for name, each in resumes.items()}
    return {name: cost for name, cost in found.items() if cost is not None}


def _require(role: str, tokens: int, table: CostTable) -> None:
    if tokens > table.most_tokens:
        raise PlanError(f"{role} of {tokens} tokens was not measured, at most {table.most_tokens}; profile larger ones")


def drafted_tables(
    drafts: Mapping[str, LatencySurface], cell: Cell, excess: float, knots: Sequence[int] = ()
) -> tuple[dict[str, CostTable], dict[str, str]]:
    """Return the tables of the drafters that run in a cell, and why the others do not."""
    tables, reasons = dict[str, CostTable](), dict[str, str]()
    for name, surface in drafts.items():
        try:
            context = reached_context(surface, cell.batch, cell.context)
            fed = drafted_tokens(surface, cell.batch, context)
            own = mean_over_median(surface, excess)
            tables[name] = cost_table(surface, cell.batch, context, fed, own, knots)
        except MeasurementError as error:
            reasons[name] = str(error)
    return tables, reasons


def resumed_verification(
    surface: LatencySurface, cell: Cell, run_tokens: Sequence[int], excess: float
) -> Verification | None:
    """Return the cost of verifying from an exit's states, a root alone whole; None where nothing runs in the cell."""
    try:
        context = reached_context(surface, cell.batch, cell.context)
        padded = padded_tokens(surface, cell.batch, context)
    except MeasurementError:
        return None
    table = cost_table(surface, cell.batch, context, padded, mean_over_median(surface, excess))
    return Verification(table=table, run_tokens=(*run_tokens[:2], *padded[2:]))
