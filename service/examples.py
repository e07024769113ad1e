"""One small record of each kind, for the OpenAPI document."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import numpy as np

from ..db import wire
from ..db.rows import CellRuns, PlanEvent, PlanRow, RecordPlaces, Records, SurfaceRow, TraceRow
from ..db.sources import PlanSource
from ..planner.plans.observation import CellObservation, Observation
from ..planner.plans.validation import Validation, ValidationRow
from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance, PromptTrace
from ..profiler.records.device import GIB, Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import OverheadSample, RoundOverhead
from ..profiler.records.surface import LatencySurface
from ..profiler.records.visit import Visit
from ..profiler.records.wire import to_json

HASH = hashlib.sha256(b"target").hexdigest()
MOMENT = "2026-01-31T12:00:00.000000+00:00"
DEVICE = Device(
    kind="cuda",
    name="NVIDIA H200",
    index=0,
    memory_bytes=141 * GIB,
    uuid="GPU-00000000-0000-0000-0000-000000000001",
    compute_capability="9.0",
    driver="570.86",
    cuda="12.8",
    power_limit_w=700.0,
    libraries=(("torch", "2.11.0"),),
)
MODEL = ModelIdentity(
    name="target-7b",
    weights_hash=HASH,
    parameters=7_000_000_000,
    config_hash=HASH,
    tokenizer_hash="",
    location="/models",
)
SETUP: dict[str, Any] = {"target": MODEL.key, "workload": "default", "temperature": 0.0}
CELL = Measurement(batch=1, context_tokens=256, tokens=4, repeats_ms=(11.2, 11.3, 11.25))
KEY = SurfaceKey(
    device=DEVICE.fingerprint, model=MODEL.key, role="verify", regime="eager", dtype="bfloat16", attention="sdpa"
)
SURFACE_ROW = SurfaceRow(id=1, **asdict(KEY), timings=1, newest="2026-01-01T00:00:00.000000+00:00")
SURFACE = LatencySurface(**asdict(KEY), measurements=(CELL,))
MEASUREMENTS = wire.NewMeasurements(surface=KEY, measurements=(CELL,))
OVERHEAD = RoundOverhead(
    device=KEY.device,
    target=KEY.model,
    dtype=KEY.dtype,
    samples=(OverheadSample(kind="plain", batch=1, draft_forwards=0, nodes=1, host_ms=(0.05, 0.06)),),
)
TRACE = AcceptanceTrace(
    target=MODEL.key,
    drafter="lookup",
    drafter_name="lookup",
    workload="default",
    temperature=0.0,
    seed=0,
    children=1,
    prefix_exact=True,
    prompts=(
        PromptTrace(
            prompt=(1, 2, 3),
            continuation=(4, 5),
            next_rank=np.array([0], np.uint8),
            offsets=np.array([0, 1], np.int32),
            parent=np.array([-1], np.int16),
            rank=np.array([0], np.uint8),
            log_probs=np.array([[-0.5]], np.float32),
            hit_rank=np.array([0], np.uint8),
        ),
    ),
)
TRACE_ROW = TraceRow(id=3, drafter="lookup", **SETUP, created=MOMENT, content_hash=HASH)
PAIRWISE = PairwiseAcceptance(
    models=("target", "small"), greedy=((1.0, 0.7), (0.7, 1.0)), overlap=((1.0, 0.6), (0.6, 1.0)), positions=100
)
RECORD_PLACES = RecordPlaces(devices=(0,), cells=(CellRuns(surface=0, runs=((0, 1),)),))
RECORDS = Records(devices=(DEVICE,), models=(MODEL,), surfaces=(SURFACE,))
PLACE: dict[str, Any] = {"device": DEVICE.fingerprint, "device_kind": DEVICE.kind_key}
PLAN_ROW = PlanRow(id=7, version=2, **PLACE, **SETUP, created=MOMENT, content_hash=HASH, state="promoted")
NEW_PLAN = wire.NewPlan(document='{"version": 2, ...}', **PLACE, **SETUP)
SOURCE = PlanSource(kind="trace", content_hash=HASH, name="small")
EVENT = PlanEvent(id=5, plan_id=7, action="promoted", by="ci", reason="validated on two hosts", created=MOMENT)
DECISION = wire.Decision(reason="validated on two hosts")
ROLLBACK = wire.Rollback(device=DEVICE.fingerprint, **SETUP, reason="slower in production")
VALIDATED = wire.Document(
    document=to_json(
        Validation(
            plan_id=7,
            rows=(
                ValidationRow(
                    batch=1,
                    context=256,
                    policy="chain of 4",
                    drafter="small",
                    predicted_tokens_per_s=190.0,
                    interval=(180.0, 200.0),
                    measured_tokens_per_s=188.0,
                    plain_tokens_per_s=90.0,
                ),
            ),
        )
    )
)
OBSERVATION = Observation(
    plan_id=7,
    device=DEVICE.fingerprint,
    dtype="bfloat16",
    source="this device",
    spectune="0.1.0",
    began=MOMENT,
    ended=MOMENT,
    cells=(
        CellObservation(
            batch=1,
            context=256,
            is_planned=True,
            policy="chain of 4",
            drafter="small",
            rounds=64,
            tokens=160,
            kept=(0, 20, 20, 10, 10, 4),
            draft_ms=120.0,
            verify_ms=700.0,
            round_ms=850.0,
            block_tokens_per_s=(188.2,),
        ),
    ),
)
OBSERVED = wire.Document(document=to_json(OBSERVATION))
OPENING = wire.ProfileOpening(key="0123456789abcdef")
OPENED = wire.OpenedProfile(profile_id=1, is_resumed=False, begun=MOMENT)
VISITS = wire.Visits(
    visits=(
        Visit(
            ordinal=0, surface=0, batch=1, context_tokens=256, tokens=4, purpose="design", round=0, spent_s=0.5, ms=11.2
        ),
    )
)
SURFACES = wire.Surfaces(surfaces=(SURFACE,))
FINISH = wire.Finish(overhead=OVERHEAD, traces=(TRACE,), pairwise=(PAIRWISE,))
UPLOAD = wire.NewUpload(kind="trace", size=20_000_000, sha256=HASH, target="/v1/traces")
UPLOADED = wire.UploadState(key="6f1c0d4e5a7b8c9d6f1c0d4e5a7b8c9d", received=4_194_304)
ADDED = wire.Added(added=1)
OF: dict[object, object] = {type(each): each for name, each in [*vars().items()] if name.isupper()}  # by class
