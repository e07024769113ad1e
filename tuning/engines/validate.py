"""The validate job for another engine: the plan's setting beside plain decoding and a neighbour, and that it took.

All three decode the same prompts in turns. The engine's own counters must show that the plan's setting took effect:
drafts of the set length, and about as many accepted as the plan's traces say. How much n-grams find depends on the
text: of these only the greatest length and what they keep are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...db.rows import ENGINE_PLAN
from ...db.store import Store
from ...engines.measured import EngineCounters, MeasuredEngine
from ...errors import MeasurementError, RequestError
from ...planner.engines.choice import Way
from ...planner.plans.document import plan_from_json
from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.validation import Validation, ValidationRow, validation_to_json
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ...planner.strategies.naming import name_of
from ...planner.strategies.plain import PlainPolicy
from ...profiler.prompts import Prompt
from ..steps import Guard, Progress, unguarded
from .cut import require_room
from .inputs import setting_of
from .plan import EnginePlanRequest
from .prompts import engine_prompts
from .record import workload_in
from .turns import Key, Stable, by_key, speed, stable

KEPT_SLACK = 0.35  # by which tokens per round may differ from the traces', relatively: other prompts, few of them
NEIGHBOUR_STEP = 2  # lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """What an engine's counters say of the plan's setting at one concurrency.

    `drafted` and `accepted` are tokens since the setting's first turn, None without drafting. `neighbour` is the label
    of the setting next to the plan's; its speed was measured in the same turns.
    """

    concurrency: int
    drafted: int
    accepted: int
    neighbour: str
    neighbour_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineValidation:
    """How well a plan held its promise, and that its settings took effect."""

    validation: Validation
    checks: tuple[EngineCheck, ...]
    notes: tuple[str, ...] = ()  # on the prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineValidateRequest:
    """How a plan is measured; empty concurrencies mean all of the plan's."""

    plan: EnginePlanRequest
    prompts: Sequence[Prompt]
    concurrencies: tuple[int, ...] = ()
    max_new_tokens: int = 96
    max_prompt_tokens: int | None = None  # see `prompt_room`
    turns: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        if self.turns < 3 or self.max_new_tokens < 8:
            raise RequestError(f"give at least 3 turns of 8 tokens, got {self.turns} of {self.max_new_tokens}")


def newest_engine_plan(request: EnginePlanRequest, store: Store) -> tuple[int, Plan]:
    """Return the current plan of an engine, target and device, and its number; raise NoPlanError without one."""
    row = store.find_plan(
        device=f"{ENGINE_PLAN}{request.device.fingerprint}",
        target=request.target.key,
        workload=workload_in(request.engine, request.workload),
        temperature=0.0,
    )
    return row.id, plan_from_json(store.plan(row.id))


def validate_engine(
    request: EngineValidateRequest,
    engine: MeasuredEngine,
    store: Store,
    *,
    progress: Progress,
    guard: Guard = unguarded,
) -> EngineValidation:
    """Measure an engine's newest plan and store the outcome beside it; `guard` is entered with its document.

    Raises:
        NoPlanError: there is no such plan.
        MeasurementError: the plan's setting did not take effect; nothing was stored then.
        RequestError: fewer prompts than sequences, a concurrency without a plan, or texts longer than the target takes.
    """
    number, plan = newest_engine_plan(request.plan, store)
    cells = _cells(plan, request.concurrencies)
    read = engine_prompts(engine, request.prompts, new_tokens=request.max_new_tokens, most=request.max_prompt_tokens)
    prompts = read.ids
    require_room(engine.facts, prompts, request.max_new_tokens)
    longest = max(cell.policy.max_verify_tokens for cell in cells)
    room = max(len(prompt) for prompt in prompts) + request.max_new_tokens + 2 * longest + 32
    rows, checks = [], []
    for done, cell in enumerate(cells):
        progress(f"measuring {cell.batch} sequences", done / len(cells))
        with stable(engine, capacity=room, new_tokens=request.max_new_tokens) as stall:
            row, check = _measured(cell, engine, stall, prompts, request)
        rows.append(row)
        checks.append(check)
    validation = Validation(plan_id=number, rows=tuple(rows))
    document = validation_to_json(validation)
    with guard(document):
        store.add_validation(number, document)
    return EngineValidation(validation=validation, checks=tuple(checks), notes=read.notes)


def neighbour_of(cell: PlanCell) -> Way:
    """Return a setting next to a cell's: another length of the same source, for plain decoding its runner-up."""
    policy, drafter = cell.policy, cell.drafter
    if isinstance(policy, ChainPolicy | LookupPolicy):
        length = policy.length - NEIGHBOUR_STEP if policy.length > NEIGHBOUR_STEP else policy.length + NEIGHBOUR_STEP
        if isinstance(policy, ChainPolicy):
            return ChainPolicy(length=length), drafter
        return (
            LookupPolicy(
                length=length, max_ngram=policy.max_ngram, min_ngram=policy.min_ngram, occurrence=policy.occurrence
            ),
            drafter,
        )
    rival = cell.runner_up
    if rival is None or not isinstance(rival.policy, ChainPolicy | LookupPolicy):
        return PlainPolicy(), None
    return rival.policy, rival.drafter


def require_effect(cell: PlanCell, counted: EngineCounters, tokens_per_round: float, new_tokens: int) -> None:
    """Raise MeasurementError where counters, since the setting's first turn, contradict the cell's policy."""
    policy, where = cell.policy, f"at {cell.batch} sequences"
    if isinstance(policy, PlainPolicy):
        if counted.drafted:
            raise MeasurementError(f"plain decoding was set {where}, but {counted.drafted} tokens were drafted")
        return
    assert isinstance(policy, ChainPolicy | LookupPolicy), "an engine's plan holds chains and lookups"
    if not counted.drafted:
        raise MeasurementError(
            f"{policy.label} was set {where}, but the engine drafted nothing; check that its build and version know it"
        )
    if counted.drafts:
        mean = counted.drafted / counted.drafts
        least = least_drafted(policy.length, new_tokens) if isinstance(policy, ChainPolicy) else 0.0
        if not least <= mean <= policy.length:
            raise MeasurementError(
                f"{policy.label} was set {where}, but {mean:.1f} tokens were drafted per round; the length that was "
                "set has no effect"
            )
    promised = cell.prediction.tokens_per_round
    if abs(tokens_per_round / promised - 1.0) > KEPT_SLACK:
        raise MeasurementError(
            f"{policy.label} yields {tokens_per_round:.2f} tokens per round {where}, the plan's traces say "
            f"{promised:.2f}; the drafter is another one, or the prompts are: profile on prompts like these"
        )


def least_drafted(length: int, new_tokens: int) -> float:
    """Return the least mean number of tokens that a chain's rounds draft, over rounds that draft.

    Only the end of a text cuts a chain short: with m tokens missing it drafts m - 1. A round begins at a place with
    chance 1 / r, for r tokens per round, so that the drafts of a text lack

        sum over m = 2..length of (length - m + 1) / r = length (length - 1) / (2 r)

    tokens over new_tokens / r rounds: a share of (length - 1) / (2 new_tokens), whatever is accepted. The bound allows
    more than twice that, (length + 1) / new_tokens, since where a few texts end is luck.
    """
    return max(0.0, length * (1.0 - (length + 1) / new_tokens))


def _measured(
    cell: PlanCell,
    engine: MeasuredEngine,
    stall: Stable,
    prompts: Sequence[tuple[int, ...]],
    request: EngineValidateRequest,
) -> tuple[ValidationRow, EngineCheck]:
    way, beside = (cell.policy, cell.drafter), neighbour_of(cell)
    assert isinstance(cell.policy, PlainPolicy | ChainPolicy | LookupPolicy), "an engine's plan holds no other"
    own: Key = (cell.batch, setting_of(engine, (cell.policy, way[1])))
    plain: Key = (cell.batch, None)
    other: Key = (cell.batch, setting_of(engine, beside))
    keys = list(dict.fromkeys([plain, own, other]))
    stall.take(keys, prompts, turns=request.turns, seed=request.seed)
    counted, turns = stall.counted(own), by_key(stall.turns)
    rounds = sum(turn.sample.rounds for turn in turns[own])
    tokens = sum(len(text.tokens) - 1 for turn in turns[own] for text in turn.sample.texts)
    require_effect(cell, counted, tokens / rounds, request.max_new_tokens)
    promise = cell.prediction
    row = ValidationRow(
        batch=cell.batch,
        context=cell.context,
        policy=cell.policy.code,
        drafter=cell.drafter,
        predicted_tokens_per_s=promise.tokens_per_s,
        interval=(promise.low, promise.high),
        measured_tokens_per_s=speed(turns[own]),
        plain_tokens_per_s=speed(turns[plain]),
        machine_speed=speed(turns[plain]) / cell.plain.tokens_per_s,
        predicted_tokens_per_round=promise.tokens_per_round * (1.0 - promise.errors.optimism),
        tokens_per_round=tokens / rounds,
    )
    return row, EngineCheck(
        concurrency=cell.batch,
        drafted=counted.drafted,
        accepted=counted.accepted,
        neighbour=name_of(beside[0].code, beside[1]),
        neighbour_tokens_per_s=speed(turns[other]),
    )


def _cells(plan: Plan, concurrencies: tuple[int, ...]) -> list[PlanCell]:
    planned = {cell.batch: cell for cell in plan.cells}
    if missing := [c for c in concurrencies if c not in planned]:
        raise RequestError(f"the plan has no cell for {missing[0]} sequences, only for {sorted(planned)}")
    return [planned[c] for c in concurrencies or sorted(planned)]
