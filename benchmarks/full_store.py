"""A store as a team fills it in years, written at once: many devices, targets, workloads, measurements and plans."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event, insert

from spectune.db import open_store
from spectune.db.sql.documents import row_of
from spectune.db.sql.tables import Base, DeviceTable, MeasurementTable, ModelTable, PlanTable, SurfaceTable
from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import cells_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.profiler.records.device import GIB, Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.wire import to_json

from replay import made_up_trace  # isort: skip
from whole_plan import overhead, surface  # isort: skip

KINDS, BOARDS, TARGETS, WORKLOADS = 20, 6, 10, ("default", "code")
PLANNED_BOARDS = 5  # of every kind; the sixth finds the plans of its siblings
DTYPE, ROLE, REGIME, ATTENTION = "bfloat16", "verify", "eager", "sdpa"
BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128), (0, 256, 1024, 4096, 16384)
REPEATS, AT_ONCE = 5, 10_000
CREATED = "2026-01-01T00:00:00Z"

Row = dict[str, Any]  # column -> value, as SQLAlchemy takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What was written into a store."""

    devices: tuple[Device, ...]
    targets: tuple[ModelIdentity, ...]
    measurements: int
    plans: int
    plan_bytes: int  # of one document
    template: Plan  # for further plans

    @property
    def planned(self) -> tuple[Device, ...]:
        """Devices that have plans of their own."""
        return tuple(each for place, each in enumerate(self.devices) if place % BOARDS < PLANNED_BOARDS)


def fill(place: Path, measurements: int, plans: int, seed: int) -> Contents:
    """Write a new store with so many measurements and plans, spread evenly over devices and targets."""
    open_store(str(place)).close()
    kinds = max(1, min(KINDS, plans // (PLANNED_BOARDS * TARGETS * len(WORKLOADS))))  # few plans are for few devices
    devices, targets = made_up_devices(kinds), tuple(made_up_model(f"target-{number}") for number in range(TARGETS))
    template = solved_plan(devices[0], targets[0])
    engine = create_engine(f"sqlite:///{place}")
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    contents = Contents(
        devices=devices,
        targets=targets,
        measurements=measurements,
        plans=plans,
        plan_bytes=len(plan_to_json(template)),
        template=template,
    )
    with engine.begin() as connection:
        write(connection, DeviceTable, (columns_of(row_of(device)) for device in devices))
        write(connection, ModelTable, (columns_of(row_of(target)) for target in targets))
        write(connection, SurfaceTable, surface_rows(contents))
        write(connection, MeasurementTable, measurement_rows(contents, seed))
        write(connection, PlanTable, plan_rows(contents))
    engine.dispose()
    return contents


def write(connection: Connection, table: type[Base], rows: Iterator[Row]) -> None:
    """Insert rows, many at once."""
    while chunk := list(itertools.islice(rows, AT_ONCE)):
        connection.execute(insert(table), chunk)


def columns_of(row: Base) -> Row:
    """Return the columns that a row has set."""
    return {column.key: value for column in row.__table__.columns if (value := getattr(row, column.key)) is not None}


def made_up_devices(kinds: int) -> tuple[Device, ...]:
    """Return boards of so many kinds; those of one kind differ by their uuid."""
    return tuple(
        Device(
            kind="cuda",
            name=f"Made-up GPU {kind:02}",
            index=0,
            memory_bytes=(16 + 8 * kind) * GIB,
            uuid=f"GPU-{kind:04}-{board:04}",
            compute_capability="9.0",
            driver="570.86",
            cuda="12.8",
            power_limit_w=700.0,
            libraries=(("torch", "2.11.0"), ("transformers", "5.17.0")),
        )
        for kind in range(kinds)
        for board in range(BOARDS)
    )


def made_up_model(name: str) -> ModelIdentity:
    """Return a model whose hash is its name's."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return ModelIdentity(
        name=name, weights_hash=digest, parameters=7_000_000_000, config_hash=digest, tokenizer_hash="", location=name
    )


def solved_plan(device: Device, target: ModelIdentity) -> Plan:
    """Return what the planner makes of a made-up recording: a document of the size that plans have."""
    drafter = made_up_model("drafter")
    trace = replace(made_up_trace(9, 12), target=target.key, drafter=drafter.key, drafter_name=drafter.name)
    drafts = surface(drafter, "draft", device, 0.1)
    inputs = PlanInputs(
        device=device,
        target=target,
        dtype=DTYPE,
        verify=surface(target, ROLE, device, 1.0),
        overhead=overhead(target, device),
        drafters=(DrafterInputs(name=drafter.name, model=drafter, surface=drafts, trace=trace),),
    )
    return solve(inputs, cells_of((1, 8), (256, 4096)), created=CREATED, spectune="benchmark", options=SearchOptions())


def surface_rows(contents: Contents) -> Iterator[Row]:
    """Yield one surface for every device and target, numbered from 1."""
    pairs = itertools.product(contents.devices, contents.targets)
    for number, (device, target) in enumerate(pairs, 1):
        key = {"device": device.fingerprint, "model": target.key, "role": ROLE, "regime": REGIME}
        yield {"id": number, **key, "dtype": DTYPE, "attention": ATTENTION}


def measurement_rows(contents: Contents, seed: int) -> Iterator[Row]:
    """Yield every measurement, those of one surface together; no two are equal."""
    source = random.Random(seed)
    surfaces = len(contents.devices) * len(contents.targets)
    tokens = range(1, 1 + -(-contents.measurements // (surfaces * len(BATCHES) * len(CONTEXTS))))
    cells = itertools.product(range(1, surfaces + 1), BATCHES, CONTEXTS, tokens)
    for surface_id, batch, context, count in itertools.islice(cells, contents.measurements):
        typical_ms = 8.0 + 0.25 * -(-batch * count // 8) + 2e-6 * batch * context
        repeats = tuple(typical_ms * source.uniform(0.98, 1.05) for _ in range(REPEATS))
        cell = Measurement(batch=batch, context_tokens=context, tokens=count, repeats_ms=repeats)
        document = to_json(cell)
        place = {"surface_id": surface_id, "batch": batch, "context_tokens": context, "tokens": count}
        yield {**place, "document": document, "content_hash": sha256(document)}


def plan_rows(contents: Contents) -> Iterator[Row]:
    """Yield the plans version by version, so that the newest of every setup stand at the end."""
    setups = list(itertools.product(contents.planned, contents.targets, WORKLOADS))
    count = 0
    for version in itertools.count(1):
        for device, target, workload in setups:
            if count == contents.plans:
                return
            count += 1
            yield plan_row(contents.template, device, target, workload, version)


def plan_row(template: Plan, device: Device, target: ModelIdentity, workload: str, version: int) -> Row:
    """Return the row of one plan."""
    document = plan_document(template, device, target, workload, f"{version}")
    return {
        "version": version,
        "device": device.fingerprint,
        "device_kind": device.kind_key,
        "target": target.key,
        "workload": workload,
        "temperature": 0.0,
        "content_hash": sha256(document),
        "document": document,
    }


def plan_document(template: Plan, device: Device, target: ModelIdentity, workload: str, told: str) -> str:
    """Return a plan's document for a setup; `told` stands in it and makes it unlike others."""
    origin = replace(template.provenance, notes=(told,))
    return plan_to_json(replace(template, device=device, target=target, workload=workload, provenance=origin))


def setups_of(contents: Contents) -> Sequence[tuple[Device, ModelIdentity, str]]:
    """Return every question that the store can answer, devices without plans of their own included."""
    return list(itertools.product(contents.devices, contents.targets, WORKLOADS))


def sha256(text: str) -> str:
    """Return 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()
