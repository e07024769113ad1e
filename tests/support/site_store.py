"""A small store with everything in it that pages show, under names that try to break them."""

from __future__ import annotations

import re
from dataclasses import replace

from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.observation import CellObservation, Observation
from spectune.planner.plans.plan import Plan, PlanCell, PublishedPrice
from spectune.planner.plans.provenance import SurfaceSource, TraceSource
from spectune.planner.plans.validation import Validation, ValidationRow
from spectune.planner.records.tree import ShapeFacts
from spectune.planner.search.candidate import Candidate
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.wire import to_json

from .priced_cells import PLAIN, cell_of, plan_with, priced, speed
from .synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, model, record, texts

NASTY = """<script>alert('x')</script>"&amp;<b>"""
LANGUAGE = Language(seed=2)
NASTY_DEVICE = replace(DEVICE, name=f"Abacus {NASTY}", libraries=((f"torch{NASTY}", "2.11"),))
NASTY_TARGET = replace(TARGET, name=f"large {NASTY}")
WORKLOAD = f"code {NASTY}"
DRAFTER = f"small {NASTY}"
OWN, EAGLE = priced(ChainPolicy(length=3), 2.5), priced(Eagle2Policy(verify_tokens=8, depth=2, top_k=3), 2.2)
SHAPE = ShapeFacts(verified=(1.0, 1.0, 1.0), reached=(0.8, 0.5, 0.2), taken=(1.0, 0.8, 0.5, 0.2))
PLACES = ((1, 50), (8, 50), (1, 900))


def filled_store() -> SqlStore:
    """Return a store in memory with two plans of one setup, the older one promoted, observed and validated."""
    store = SqlStore(resolve_url(":memory:"))
    store.add_device(NASTY_DEVICE)
    for each in (NASTY_TARGET, named_drafter()):
        store.add_model(each)
    for role, key in (("verify", TARGET.key), ("draft", model("small").key)):
        store.add_measurements(surface_key(role, key), cells())
    store.add_trace(nasty_trace())
    older, newer = nasty_plan(2.5), nasty_plan(2.9, drops_last=True)
    first, second = add_plan(store, older), add_plan(store, newer)
    store.promote_plan(first, f"ada {NASTY}", f"because {NASTY}")
    store.add_validation(first, to_json(validation(first, older)))
    for round_ in range(12):
        store.add_observation(first, to_json(observation(first, older, round_)))
    store.retire_plan(second, "ada", "slower than it said")
    return store


def add_plan(store: SqlStore, plan: Plan) -> int:
    """Keep a plan under its own setup and return its id."""
    device = plan.device
    return store.add_plan(
        plan_to_json(plan),
        device=device.fingerprint,
        device_kind=device.kind_key,
        target=plan.target.key,
        workload=plan.workload,
        temperature=plan.temperature,
    )


def surface_key(role: str, model_key: str) -> SurfaceKey:
    """Return the key of a surface on the nasty device."""
    return SurfaceKey(device=NASTY_DEVICE.fingerprint, model=model_key, role=role, regime="eager", dtype="float32")


def cells() -> list[Measurement]:
    """Return cells of two batches and contexts: some held out, some failed, each with scattered repeats."""
    found = [
        Measurement(batch=batch, context_tokens=context, tokens=tokens, repeats_ms=(at, 1.01 * at, 1.05 * at))
        for batch in (1, 8)
        for context in (50, 900)
        for tokens in (1, 2, 4, 8, 16, 32)
        for at in (3.0 + 0.05 * batch * tokens + 0.001 * context,)
    ]
    found.append(Measurement(batch=8, context_tokens=900, tokens=64, failure=f"out of memory {NASTY}"))
    held_out = Measurement(batch=1, context_tokens=50, tokens=12, repeats_ms=(3.7, 3.72), purpose="held-out")
    return [*found, held_out]


def named_drafter() -> ModelIdentity:
    """Return the drafter, under a nasty name."""
    return replace(model("small"), name=DRAFTER)


def nasty_trace() -> AcceptanceTrace:
    """Return a recording under nasty names."""
    trace = record(SkilledDrafter(LANGUAGE, 0.8), texts(LANGUAGE, 6, lambda _: 15), every_node(2, 3), name="small")
    return replace(trace, workload=WORKLOAD, drafter_name=DRAFTER)


def nasty_plan(tokens: float, *, drops_last: bool = False, workload: str = WORKLOAD) -> Plan:
    """Return a plan whose chains yield so many tokens a round, under nasty names."""
    places = PLACES[:-1] if drops_last else PLACES
    own = priced(ChainPolicy(length=3), tokens)
    plan = plan_with(*(_cell(batch, context, own) for batch, context in places))
    surfaces = tuple(
        SurfaceSource(model=key, role=role, regime="eager", dtype="float32", measurements=26, relative_error=0.01)
        for role, key in (("verify", TARGET.key), ("draft", model("small").key))
    )
    trace = TraceSource(drafter=DRAFTER, model=model("small").key, prompts=6, positions=84, prefix_exact=True, seed=0)
    origin = replace(plan.provenance, surfaces=surfaces, traces=(trace,), notes=(f"busy {NASTY}",))
    return replace(
        plan,
        device=NASTY_DEVICE,
        target=NASTY_TARGET,
        workload=workload,
        drafters=tuple((DRAFTER if name == "small" else name, each) for name, each in plan.drafters),
        cells=tuple(replace(cell, drafter=DRAFTER) for cell in plan.cells),
        provenance=origin,
    )


def validation(plan_id: int, plan: Plan) -> Validation:
    """Return a validation that met the first cell's promise exactly."""
    cell = plan.cells[0]
    promise = cell.prediction
    row = ValidationRow(
        batch=cell.batch,
        context=cell.context,
        policy=cell.policy.code,
        drafter=cell.drafter,
        predicted_tokens_per_s=promise.tokens_per_s,
        interval=(promise.low, promise.high),
        measured_tokens_per_s=promise.tokens_per_s,
        plain_tokens_per_s=cell.plain.tokens_per_s,
    )
    return Validation(plan_id=plan_id, rows=(row,))


def observation(plan_id: int, plan: Plan, hour: int) -> Observation:
    """Return what a decoder saw: the second cell at half of its promise, and plain decoding beside it."""
    cell = plan.cells[1]
    slow = 0.5 * cell.prediction.tokens_per_s
    seen = [
        CellObservation(
            batch=cell.batch,
            context=cell.context,
            is_planned=is_planned,
            policy=cell.policy.code if is_planned else "plain",
            drafter=cell.drafter if is_planned else None,
            rounds=100,
            tokens=1000,
            kept=(0, 100),
            draft_ms=0.0,
            verify_ms=0.0,
            round_ms=1e6 / rate,
            block_tokens_per_s=(rate,) * 4,
        )
        for is_planned, rate in ((True, slow), (False, cell.plain.tokens_per_s))
    ]
    moment = f"2026-01-01T{hour:02}:00:00+00:00"
    return Observation(
        plan_id=plan_id,
        device=plan.device.fingerprint,
        dtype=plan.dtype,
        source="this device",
        spectune="0.1",
        began=moment,
        ended=moment,
        cells=tuple(seen),
    )


def stalled_validation(plan_id: int, plan: Plan) -> str:
    """Return the text of a validation whose plain decoding stood still; no such record can be made any more."""
    return re.sub(r'("plain_tokens_per_s":)[^,}]+', r"\g<1>0.0", to_json(validation(plan_id, plan)))


def undated_observation(plan_id: int, plan: Plan) -> str:
    """Return the text of an observation that began at no moment; no such record can be made any more."""
    return re.sub(r'("began":)"[^"]+"', r'\1"yesterday"', to_json(observation(plan_id, plan, 0)))


def _cell(batch: int, context: int, own: Candidate) -> PlanCell:
    price = PublishedPrice(name=f"EAGLE {NASTY}", drafter="small", tokens_per_s=0.8 * speed(PLAIN, batch))
    return cell_of([PLAIN, own, EAGLE], batch=batch, context=context, published=[price], shape=SHAPE)
