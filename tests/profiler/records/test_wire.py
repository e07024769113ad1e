"""Records on the wire: bit for bit there and back, and nothing that does not belong."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from spectune.errors import MeasurementError, StoreError
from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance, PromptTrace
from spectune.profiler.records.device import Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json, readable, to_json

CELL = Measurement(batch=1, context_tokens=0, tokens=3, repeats_ms=(0.1, 0.2), drift=(0.7, 1 / 3))
FAILED = Measurement(batch=1, context_tokens=0, tokens=9, failure="out of memory")
OVERHEAD = OverheadSample(kind="chain", batch=1, draft_forwards=2, nodes=3, host_ms=(0.1, 1 / 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    radius: float
    kind: Literal["circle"] = "circle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    radius: float
    kind: Literal["square"] = "square"


def trace_of(log_probs: np.ndarray[Any, np.dtype[np.float32]]) -> AcceptanceTrace:
    count, children = log_probs.shape
    prompt = PromptTrace(
        prompt=(7,),
        continuation=tuple(range(count + 1)),
        next_rank=np.zeros(count, np.uint8),
        offsets=np.arange(count + 1, dtype=np.int32),
        parent=np.full(count, -1, np.int16),
        rank=np.zeros(count, np.uint8),
        log_probs=log_probs,
        hit_rank=np.zeros(count, np.uint8),
    )
    names = {"target": "t", "drafter": "d", "drafter_name": "toy", "workload": "prose"}
    return AcceptanceTrace(**names, temperature=0.7, seed=1, children=children, prefix_exact=False, prompts=(prompt,))


TRACE = trace_of(np.array([[-0.1, -np.inf], [-1e-45, -3e38]], np.float32))
RECORDS = [
    Device(kind="cpu", name="Test", index=0, memory_bytes=1, cores=1, threads=1, libraries=(("torch", "2"),)),
    ModelIdentity(
        name="toy", weights_hash="a" * 64, parameters=7, config_hash="b" * 64, tokenizer_hash="", location="/toy"
    ),
    CELL,
    LatencySurface(device="d", model="m", role="draft", regime="eager", dtype="float32", measurements=(CELL, FAILED)),
    RoundOverhead(device="d", target="t", dtype="float32", samples=(OVERHEAD,)),
    TRACE,
    PairwiseAcceptance(models=("a",), greedy=((1.0,),), overlap=((0.1 + 0.2,),), positions=3),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_comes_back_equal(record: object) -> None:
    assert from_json(type(record), to_json(record)) == record


@given(some.floats(min_value=1e-300, max_value=1e300))
def test_every_time_comes_back_to_the_last_bit(repeat_ms: float) -> None:
    cell = Measurement(batch=1, context_tokens=0, tokens=1, repeats_ms=(repeat_ms,))
    assert from_json(Measurement, to_json(cell)).repeats_ms == (repeat_ms,)


@given(some.lists(some.floats(-(2.0**126), 0.0, width=32), min_size=1, max_size=9))
def test_every_array_comes_back_to_the_last_bit(values: list[float]) -> None:
    trace = trace_of(np.array(values, np.float32)[:, None])
    back = from_json(AcceptanceTrace, to_json(trace)).prompts[0].log_probs
    assert back.dtype == np.float32
    assert back.tobytes() == trace.prompts[0].log_probs.tobytes()


def test_a_surface_read_back_answers_the_same() -> None:
    surface = LatencySurface(
        device="d", model="m", role="verify", regime="eager", dtype="float32", measurements=(CELL, FAILED)
    )
    assert from_json(LatencySurface, to_json(surface)).latency(1, 0, 3) == surface.latency(1, 0, 3)


def test_a_union_is_told_apart_by_its_kind() -> None:
    assert from_json(Circle | Square, to_json(Square(radius=2.0))) == Square(radius=2.0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "the whole text"),
        ("nonsense", "Invalid JSON"),
        ("{}", "batch"),
        (to_json(CELL) + "," + to_json(CELL), "at most 1"),
        (to_json(CELL)[:-1] + ',"colour":"red"}', "colour"),
        (to_json(CELL).replace('"batch":1', '"batch":"1"'), "batch"),
        (to_json(CELL).replace('"batch":1', '"batch":1.5'), "batch"),
    ],
)
def test_a_text_that_is_no_such_record_is_refused_and_names_the_place(text: str, named: str) -> None:
    with pytest.raises(StoreError, match=named):
        from_json(Measurement, text)


def test_an_unknown_field_deep_inside_is_refused() -> None:
    text = to_json(RoundOverhead(device="d", target="t", dtype="float32", samples=(OVERHEAD,)))
    with pytest.raises(StoreError, match=r"samples\.0\.colour"):
        from_json(RoundOverhead, text.replace('"nodes":3', '"nodes":3,"colour":"red"'))


def test_host_times_that_an_older_version_wrote_are_of_no_known_regime() -> None:
    record = RoundOverhead(device="d", target="t", dtype="float32", samples=(OVERHEAD,))
    assert from_json(RoundOverhead, to_json(record).replace(',"regime":""', "")) == record
    with pytest.raises(MeasurementError, match="regime is 'fast'"):
        from_json(RoundOverhead, to_json(record).replace('"regime":""', '"regime":"fast"'))


def test_a_value_the_record_refuses_is_refused_on_reading() -> None:
    with pytest.raises(MeasurementError):
        from_json(Measurement, to_json(CELL).replace('"batch":1', '"batch":0'))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float64"},
        {"shape": [3, 2]},
        {"shape": ["x"]},
        {"data": "!!"},
        {"data": base64.b64encode(b"not compressed").decode()},
        {"data": base64.b64encode(zlib.compress(b"abc")).decode()},
        {"data": 7},
        {"extra": 1},
    ],
)
def test_an_array_that_does_not_fit_its_description_is_refused(change: dict[str, object]) -> None:
    document = json.loads(to_json(TRACE))
    document["prompts"][0]["log_probs"].update(change)
    with pytest.raises(StoreError, match=r"prompts\.0\.log_probs"):
        from_json(AcceptanceTrace, json.dumps(document))


def test_a_text_that_cannot_be_read_hides_no_other() -> None:
    texts = [to_json(CELL), "{}", "no JSON", to_json(CELL).replace('"tokens":3', '"tokens":-3'), to_json(FAILED)]
    assert readable(Measurement, texts) == [CELL, FAILED]
