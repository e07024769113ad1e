"""What travels comes back bit for bit, and what does not belong to it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.db.rows import PlanRow
from spectune.db.sources import PlanSource, overhead_source, surface_source
from spectune.db.wire import (
    Decision,
    Document,
    Finish,
    NewMeasurements,
    NewPlan,
    NewUpload,
    OpenedProfile,
    Page,
    Problem,
    ProfileOpening,
    Resolving,
    Rollback,
    ServiceInfo,
    Surfaces,
    UploadState,
    Visits,
)
from spectune.errors import SpectuneError
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.wire import from_json, to_json

from ..support.journal_records import AGREEMENT, FAILED, OVERHEAD, SURFACE, TRACE, VISIT
from ..support.synthetic import DEVICE

KEY = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32", attention="")
SETUP: dict[str, Any] = {"device": "device", "target": "target", "workload": "chat", "temperature": 0.1 + 0.2}
SOURCES = (overhead_source(OVERHEAD), surface_source(SURFACE, "target"))
ROW = PlanRow(id=1, version=2, device_kind="kind", created="now", content_hash="0" * 64, state="retired", **SETUP)
RECORDS = [
    ServiceInfo(spectune="1.0", schema="0004", api=1),
    Problem(type="urn:x", title="no", status=409, detail="taken"),
    NewMeasurements(surface=KEY, measurements=SURFACE.measurements),
    NewPlan(document='{ "ü" :\t1.0,\r\n "x":[ ] }', device_kind="kind", sources=SOURCES, **SETUP),
    Decision(reason="it is faster", by="ada"),
    Rollback(reason="it was not", **SETUP),
    Document(document="seen\u2028\x00"),
    ProfileOpening(key="key", fresh=True),
    OpenedProfile(profile_id=7, is_resumed=True, begun="2026-01-01T00:00:00.000001+00:00"),
    Visits(visits=(VISIT, FAILED)),
    Surfaces(surfaces=(SURFACE,)),
    Finish(overhead=OVERHEAD, traces=(TRACE,), pairwise=(AGREEMENT,)),
    Finish(),
    Resolving(device=DEVICE, target="target"),
    NewUpload(kind="part", size=9, sha256="0" * 64, target="/v1/traces"),
    UploadState(key="key", received=3),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_equal(record: object) -> None:
    assert from_json(type(record), to_json(record)) == record


@pytest.mark.parametrize(("kind", "item"), [(PlanRow, ROW), (PlanSource, SOURCES[1]), (Document, RECORDS[6])])
def test_a_page_of_anything_comes_back_equal(kind: type, item: Any) -> None:
    page = Page(items=(item, item), next=7)
    assert from_json(Page[kind], to_json(page, Page[kind])) == page  # type: ignore[valid-type]


@given(st.lists(st.floats(min_value=0.0, exclude_min=True, allow_infinity=False, allow_nan=False), min_size=1))
def test_repeats_travel_bit_for_bit(repeats_ms: list[float]) -> None:
    cell = Measurement(batch=1, context_tokens=0, tokens=1, repeats_ms=tuple(repeats_ms))
    sent = NewMeasurements(surface=KEY, measurements=(cell,))
    (back,) = from_json(NewMeasurements, to_json(sent)).measurements
    assert [value.hex() for value in back.repeats_ms] == [value.hex() for value in repeats_ms]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_texts_travel_byte_for_byte(text: str) -> None:
    assert from_json(Document, to_json(Document(document=text)).encode()).document == text


@pytest.mark.parametrize(
    "body",
    ["", "[]", '{"key": "k", "received": 1, "more": 2}', '{"key": "k"}', '{"key": 1, "received": 1}', '{"key":"k",'],
)
def test_what_is_no_upload_s_state_is_refused(body: str) -> None:
    with pytest.raises(SpectuneError, match="this is not a UploadState"):
        from_json(UploadState, body)
