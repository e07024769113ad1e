"""Plans from files: what they hold is what is planned with, and what does not fit is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spectune.db.sources import overhead_source, sources_of_inputs
from spectune.errors import PlanError, RequestError, StoreError
from spectune.planner.inputs import PlanInputs
from spectune.profiler.records.document import SurfaceDocument, TraceDocument
from spectune.profiler.records.wire import from_json, to_json
from spectune.tuning.documents import PlanFiles, inputs_from_files
from spectune.tuning.estimates.host_time import UNKNOWN, no_host_time

from ..support.synthetic import (
    DEVICE,
    TARGET,
    Language,
    SkilledDrafter,
    every_node,
    inputs,
    model,
    record,
    surface,
    texts,
)

Documents = Mapping[str, SurfaceDocument | TraceDocument]


@cache
def measured() -> PlanInputs:
    spoken = Language(3)
    return inputs(record(SkilledDrafter(spoken, 0.8), texts(spoken, 4, lambda text: 10), every_node(2, 2)))


def documents() -> dict[str, SurfaceDocument | TraceDocument]:
    """Return what is in the files of a plan: two surfaces, one with host times, and a trace."""
    found, drafter = measured(), measured().drafters[0]
    return {
        "verify": SurfaceDocument(surface=found.verify, device=DEVICE, model=TARGET, overhead=found.overhead),
        "draft": SurfaceDocument(surface=drafter.surface, device=DEVICE, model=drafter.model),
        "trace": TraceDocument(trace=drafter.trace, target=TARGET, drafter=drafter.model),
    }


def read(folder: Path, found: Documents) -> PlanInputs:
    for name, document in found.items():
        (folder / f"{name}.json").write_text(to_json(document))
    surfaces = tuple(folder / f"{name}.json" for name, each in found.items() if isinstance(each, SurfaceDocument))
    traces = tuple(folder / f"{name}.json" for name, each in found.items() if isinstance(each, TraceDocument))
    return inputs_from_files(PlanFiles(surfaces=surfaces, traces=traces))


def surface_of(found: Documents, name: str) -> SurfaceDocument:
    document = found[name]
    assert isinstance(document, SurfaceDocument)
    return document


def test_files_give_back_what_was_measured(tmp_path: Path) -> None:
    assert read(tmp_path, documents()) == measured()


def test_without_host_times_they_are_0_and_the_plan_says_so(tmp_path: Path) -> None:
    found = documents()
    bare = found | {"verify": replace(surface_of(found, "verify"), overhead=None)}
    read_back = read(tmp_path, bare)
    assert read_back.overhead == no_host_time(measured().verify)
    assert read_back.notes == (UNKNOWN,)


def with_host_times(found: Documents, ms_by_way: Mapping[bool, float]) -> Documents:
    """Return documents whose host times are of greedy rounds, of sampled ones, or of both; the texts are greedy."""
    samples = tuple(
        replace(sample, is_sampled=is_sampled, host_ms=(ms,))
        for is_sampled, ms in ms_by_way.items()
        for sample in measured().overhead.samples
    )
    timed = replace(measured().overhead, samples=samples)
    return {**found, "verify": replace(surface_of(found, "verify"), overhead=timed)}


def test_host_times_are_those_of_rounds_at_the_temperature_of_the_texts(tmp_path: Path) -> None:
    read_back = read(tmp_path, with_host_times(documents(), {False: 0.25, True: 5.0}))
    assert read_back.overhead.host_ms("chain", 1, 3, 4) == pytest.approx(0.25)
    assert read_back.notes == ()


def test_the_source_of_host_times_is_the_record_of_the_file(tmp_path: Path) -> None:
    found = with_host_times(documents(), {False: 0.25, True: 5.0})
    whole = surface_of(found, "verify").overhead
    assert whole is not None
    assert overhead_source(whole) in sources_of_inputs(read(tmp_path, found))


def test_host_times_of_rounds_at_another_temperature_alone_are_noted(tmp_path: Path) -> None:
    read_back = read(tmp_path, with_host_times(documents(), {True: 5.0}))
    assert read_back.overhead.host_ms("chain", 1, 3, 4) == pytest.approx(5.0)
    assert [note for note in read_back.notes if "timed in sampled rounds and the plan is for greedy ones" in note]


def test_a_file_without_the_newer_field_is_read(tmp_path: Path) -> None:
    document = replace(surface_of(documents(), "verify"), overhead=None)
    assert from_json(SurfaceDocument, to_json(document).replace(',"overhead":null', "")) == document


def test_a_computed_surface_is_noted(tmp_path: Path) -> None:
    found = documents()
    computed = replace(
        surface_of(found, "draft"), surface=replace(measured().drafters[0].surface, regime="bound:eager")
    )
    assert read(tmp_path, found | {"draft": computed}).notes == (
        "draft.json is bound (bound:eager), not measured here",
    )


@pytest.mark.parametrize("left_out", ["verify", "draft"])
def test_a_missing_surface_is_named(left_out: str, tmp_path: Path) -> None:
    kept = {name: document for name, document in documents().items() if name != left_out}
    with pytest.raises(RequestError, match=f"no file is a {left_out} surface of .*spectune show surface -o FILE"):
        read(tmp_path, kept)


@pytest.mark.parametrize("kind", ["surface", "trace"])
def test_without_any_surface_or_trace_there_is_no_plan(kind: str, tmp_path: Path) -> None:
    is_kept = {"surface": TraceDocument, "trace": SurfaceDocument}[kind]
    with pytest.raises(RequestError, match="needs surfaces and traces"):
        read(tmp_path, {name: each for name, each in documents().items() if isinstance(each, is_kept)})


def test_two_surfaces_of_one_model_are_refused(tmp_path: Path) -> None:
    found = documents()
    with pytest.raises(RequestError, match=r"verify\.json and .*again\.json are both verify surfaces"):
        read(tmp_path, found | {"again": found["verify"]})


def test_a_surface_that_no_trace_needs_is_refused(tmp_path: Path) -> None:
    spare = SurfaceDocument(
        surface=surface("medium", "draft", lambda batch, context, tokens: 1.0), device=DEVICE, model=model("medium")
    )
    with pytest.raises(RequestError, match=r"spare\.json is a draft surface .* no trace needs"):
        read(tmp_path, documents() | {"spare": spare})


def test_number_formats_are_not_mixed(tmp_path: Path) -> None:
    found = documents()
    other = replace(surface_of(found, "draft"), surface=replace(measured().drafters[0].surface, dtype="bfloat16"))
    with pytest.raises(RequestError, match="bfloat16 and float32"):
        read(tmp_path, found | {"draft": other})


def test_devices_are_not_mixed(tmp_path: Path) -> None:
    found, calculator = documents(), replace(DEVICE, name="Calculator")
    moved = replace(measured().drafters[0].surface, device=calculator.fingerprint)
    with pytest.raises(PlanError, match="measure all on one device"):
        read(tmp_path, found | {"draft": replace(surface_of(found, "draft"), surface=moved, device=calculator)})


def test_traces_of_two_targets_are_refused(tmp_path: Path) -> None:
    other = replace(measured().drafters[0].trace, target=model("larger").key)
    with pytest.raises(RequestError, match="plan one target"):
        read(tmp_path, documents() | {"stray": TraceDocument(trace=other)})


@pytest.mark.parametrize("unsaid", ["device", "model"])
def test_a_surface_that_does_not_say_what_it_is_of_is_refused(unsaid: str, tmp_path: Path) -> None:
    found = documents()
    nameless = SurfaceDocument(
        surface=measured().verify,
        device=None if unsaid == "device" else DEVICE,
        model=None if unsaid == "model" else TARGET,
    )
    with pytest.raises(RequestError, match=rf"verify\.json does not say which {unsaid} it is of"):
        read(tmp_path, found | {"verify": nameless})


@pytest.mark.parametrize("content", [None, b"\xff", b"", b"{}", b'{"trace": 1}'])
def test_a_file_that_is_no_document_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "surface.json").write_bytes(content)
    with pytest.raises(RequestError, match=r"surface\.json.*spectune show surface -o FILE"):
        inputs_from_files(PlanFiles(surfaces=(tmp_path / "surface.json",), traces=(tmp_path / "trace.json",)))


@pytest.mark.parametrize("field", ["device", "target", "dtype"])
def test_host_times_of_something_else_are_no_part_of_a_document(field: str) -> None:
    changed = replace(measured().overhead, **{field: "else"})  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=f"the host times' {field} else of a document is not"):
        SurfaceDocument(surface=measured().verify, overhead=changed)
