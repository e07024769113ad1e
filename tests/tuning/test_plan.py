"""The plan job: what the store holds is what is planned with, and what is missing is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import optuna
import pytest

from spectune.db import Store, open_store
from spectune.db.sources import record_hash, sources_of_inputs
from spectune.errors import MeasurementError, PlanError, RequestError, StoreError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.document import plan_from_json
from spectune.planner.records.footprint import Footprint
from spectune.profiler.identity import identify
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead
from spectune.profiler.records.surface import LatencySurface
from spectune.runtime.plan_choice import choose_plan
from spectune.tuning.estimates.host_time import borrowed_host_time, is_known, no_host_time
from spectune.tuning.inputs import inputs_from_store, inputs_of
from spectune.tuning.parts import footprints_of
from spectune.tuning.plan import SolveOptions, make_plan, solve_and_store, solve_plan
from spectune.tuning.profile import Profile
from spectune.tuning.request import Identities, PlanRequest

from ..support.synthetic import (
    DEVICE,
    KINDS,
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

FAMILY = Path(__file__).parents[2] / "demo" / "models"
REQUEST = PlanRequest(target=TARGET, device=DEVICE, dtype="float32", workload="made up", trials=2)
SMALL = replace(REQUEST, batches=(1,), contexts=(30, 60), trials=2)
AGREEMENT = PairwiseAcceptance(
    models=("target", "small"),
    greedy=((1.0, 0.7), (0.7, 1.0)),
    overlap=((1.0, 0.6), (0.6, 1.0)),
    positions=90,
    target=TARGET.key,
    workload="made up",
    temperature=0.0,
)


@cache
def recorded(name: str = "small", language: int = 3) -> AcceptanceTrace:
    spoken = Language(language)
    return record(SkilledDrafter(spoken, 0.8), texts(spoken, 6, lambda text: 16), every_node(2, 3), name=name)


@cache
def measured() -> PlanInputs:
    return inputs(recorded())


def sized() -> PlanInputs:
    """Return inputs whose target takes 2 GiB, whose drafter takes 1, and whose caches take nothing."""
    found = measured()
    sizes = {TARGET.key: 2**31, found.drafters[0].model.key: 2**30}
    known = {key: Footprint(weight_bytes=size, kv_bytes_per_token=0) for key, size in sizes.items()}
    return replace(found, footprints=known)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def keep_surface(store: Store, kept: LatencySurface) -> None:
    key = SurfaceKey(device=kept.device, model=kept.model, role=kept.role, regime=kept.regime, dtype=kept.dtype)
    store.add_measurements(key, kept.measurements)


def keep(store: Store, *, but: str = "") -> None:
    """Put everything a plan needs into the store, one thing excepted."""
    found, drafter = measured(), measured().drafters[0]
    store.add_device(found.device)
    parts = {
        "target": lambda: store.add_model(found.target),
        "drafter": lambda: store.add_model(drafter.model),
        "verify surface": lambda: keep_surface(store, found.verify),
        "draft surface": lambda: keep_surface(store, drafter.surface),
        "host time": lambda: store.add_overhead(found.overhead),
        "trace": lambda: store.add_trace(drafter.trace),
    }
    for name, put in parts.items():
        if name != but:
            put()


def test_what_cannot_be_searched_for_is_refused_before_anything_is_read() -> None:
    with pytest.raises(PlanError, match="by --new-tokens"):
        replace(REQUEST, cached_share=0.5)


def test_the_store_gives_back_what_was_measured(store: Store) -> None:
    keep(store)
    assert inputs_from_store(REQUEST, store) == measured()


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("drafter", "no model small"),
        ("verify surface", "no verify surface of large in float32"),
        ("draft surface", "no draft surface of small in float32"),
        ("host time", "no host time per round"),
        ("trace", "no trace of the workload 'made up'"),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_makes_it(store: Store, missing: str, complaint: str) -> None:
    keep(store, but=missing)
    with pytest.raises(StoreError, match=complaint) as refusal:
        inputs_from_store(REQUEST, store)
    command = "spectune profile --target nowhere [--drafter NAME=PATH] --dtype float32 --workload 'made up'"
    assert f"run: {command}" in str(refusal.value)


def test_of_a_missing_trace_the_temperature_is_told(store: Store) -> None:
    keep(store)
    with pytest.raises(StoreError, match=r"no trace of the workload 'made up' at temperature 0\.7.*--temperature 0\.7"):
        inputs_from_store(replace(REQUEST, temperature=0.7), store)


@pytest.mark.parametrize(
    "other", [{"workload": "chat"}, {"temperature": 0.8}, {"dtype": "bfloat16"}, {"device": replace(DEVICE, cores=9)}]
)
def test_measurements_of_another_setup_are_not_taken(store: Store, other: dict[str, object]) -> None:
    keep(store)
    with pytest.raises(StoreError, match="the store holds no"):
        inputs_from_store(replace(REQUEST, **other), store)  # type: ignore[arg-type]


def test_a_drafter_recorded_along_other_texts_is_left_out_and_named(store: Store) -> None:
    store.add_model(model("elder"))
    keep_surface(store, surface("elder", "draft", lambda batch, context, tokens: 1.0))
    store.add_trace(recorded("elder", language=4))
    keep(store)
    found = inputs_from_store(REQUEST, store)
    assert [drafter.name for drafter in found.drafters] == ["small"]
    assert found.notes == (
        "elder was recorded along other texts than small and does not compete; profile all drafters together",
    )


def test_what_the_inputs_note_stands_in_the_plan(store: Store) -> None:
    noted = replace(measured(), notes=("one of the drafters was ill",))
    assert "one of the drafters was ill" in solve_plan(noted, SMALL).provenance.notes


def test_a_plan_names_every_record_that_its_host_times_are_joined_from(store: Store) -> None:
    keep(store)
    first = measured().overhead
    plain = replace(first, samples=tuple(sample for sample in first.samples if sample.kind == "plain"))
    sampled = replace(first, samples=tuple(replace(sample, is_sampled=True) for sample in first.samples))
    for each in (plain, sampled):
        store.add_overhead(each)
    sources = sources_of_inputs(inputs_from_store(REQUEST, store))
    times = [source.content_hash for source in sources if source.kind == "overhead"]
    assert times == [record_hash(each) for each in (plain, first)]


def test_how_the_models_agree_goes_with_them(store: Store) -> None:
    keep(store)
    store.add_pairwise(AGREEMENT)
    assert inputs_from_store(REQUEST, store).pairwise == AGREEMENT


@pytest.mark.parametrize("other", [{"target": "else"}, {"workload": "chat"}, {"temperature": 0.8}, {"target": ""}])
def test_how_they_agree_along_other_texts_is_not_taken(store: Store, other: dict[str, object]) -> None:
    keep(store)
    store.add_pairwise(replace(AGREEMENT, **other))  # type: ignore[arg-type]
    assert inputs_from_store(REQUEST, store).pairwise is None


@pytest.mark.parametrize("other", [{"target": "else"}, {"workload": "chat"}, {"temperature": 0.8}])
def test_how_they_agree_is_found_behind_newer_agreement_along_other_texts(
    store: Store, other: dict[str, object]
) -> None:
    keep(store)
    for each in (AGREEMENT, replace(AGREEMENT, **other)):  # type: ignore[arg-type]
        store.add_pairwise(each)
    assert inputs_from_store(REQUEST, store).pairwise == AGREEMENT


def test_a_model_whose_configuration_lies_where_it_was_has_a_footprint() -> None:
    (footprint,) = footprints_of(identify(FAMILY / "small"), [], "bfloat16").values()
    config = json.loads((FAMILY / "small" / "config.json").read_text())
    heads = 2 * config["num_key_value_heads"] * config["hidden_size"] // config["num_attention_heads"]
    assert footprint.weight_bytes == 2 * identify(FAMILY / "small").parameters
    assert footprint.kv_bytes_per_token == 2 * config["num_hidden_layers"] * heads


@pytest.mark.parametrize("change", [{"location": ""}, {"location": "nowhere"}, {"config_hash": "0" * 64}])
def test_a_model_whose_configuration_is_gone_or_another_has_none(change: dict[str, str]) -> None:
    moved = replace(identify(FAMILY / "small"), **change)  # type: ignore[arg-type]
    assert footprints_of(moved, [moved], "bfloat16") == {}


def test_a_limit_on_memory_that_is_not_known_is_refused(store: Store) -> None:
    keep(store)
    with pytest.raises(RequestError, match="how much memory large takes is not known"):
        make_plan(replace(REQUEST, max_memory_bytes=2**34), store)


def test_a_limit_that_the_target_alone_exceeds_is_refused() -> None:
    with pytest.raises(RequestError, match=r"plain decoding alone takes 2 GiB at batch 1, context 30, at most 1 GiB"):
        solve_plan(sized(), replace(SMALL, max_memory_bytes=2**30))


def test_a_drafter_beyond_the_limit_does_not_compete() -> None:
    (cell, *_) = solve_plan(sized(), replace(SMALL, max_memory_bytes=5 * 2**29)).cells
    others = {other.drafter for other in cell.alternatives}
    assert cell.drafter in (None, "lookup") and others <= {None, "lookup"}
    assert cell.memory_bytes == 2**31


@pytest.mark.parametrize(
    "change",
    [
        lambda found: replace(found, verify=replace(found.verify, regime="estimated:eager")),
        lambda found: replace(found, verify=replace(found.verify, regime="imported:vllm-0.9")),
        lambda found: replace(found, overhead=no_host_time(found.verify)),
    ],
    ids=["estimated", "imported", "without host time"],
)
def test_a_plan_that_was_not_measured_is_a_guess_until_there_is_one_that_was(
    store: Store, change: Callable[[PlanInputs], PlanInputs]
) -> None:
    solve_and_store(change(measured()), SMALL, store)
    (row,) = store.plans()
    asked = {"target": TARGET, "device": DEVICE, "store": store.url, "workload": "made up", "temperature": 0.0}
    assert row.device == f"what-if:{DEVICE.fingerprint}"
    assert plan_from_json(store.plan(row.id)).device == DEVICE
    assert choose_plan("auto", **asked).is_guess  # type: ignore[arg-type]
    solve_and_store(measured(), SMALL, store)
    assert choose_plan("auto", **asked).source == "this device"  # type: ignore[arg-type]


def test_host_time_that_nobody_measured_is_0_for_every_kind_at_every_batch() -> None:
    none, found = no_host_time(measured().verify), measured()
    assert {none.host_ms(kind, batch, 5, 60) for kind in KINDS for batch in found.verify.batches} == {0.0}
    assert is_known(found.overhead) and not is_known(none)


def test_borrowed_host_time_is_that_of_the_nearest_batch() -> None:
    samples = [OverheadSample(kind="plain", batch=b, draft_forwards=0, nodes=1, host_ms=(float(b),)) for b in (1, 8)]
    lent = RoundOverhead(device="another", target=TARGET.key, dtype="float32", samples=tuple(samples))
    verify = surface("large", "verify", lambda batch, context, tokens: 1.0, batches=(1, 2, 4, 32))
    got = borrowed_host_time(lent, verify)
    assert [got.host_ms("plain", batch, 0, 1) for batch in (1, 2, 4, 32)] == [1.0, 1.0, 8.0, 8.0]
    assert got.device == verify.device


def test_two_processes_find_the_plan_that_one_finds() -> None:
    wanted = replace(SMALL, batches=(1, 3))
    alone, together = (solve_plan(measured(), wanted, SolveOptions(jobs=jobs)) for jobs in (1, 2))
    assert replace(alone, provenance=replace(alone.provenance, created="")) == replace(
        together, provenance=replace(together.provenance, created="")
    )


def test_trials_are_kept_where_they_are_asked_to_be(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    solve_plan(measured(), replace(SMALL, trials=4), SolveOptions(jobs=1, optuna_storage=url))
    names = optuna.get_all_study_names(url)
    counts = {name: len(optuna.load_study(study_name=name, storage=url).trials) for name in names}
    solve_plan(measured(), replace(SMALL, trials=4), SolveOptions(jobs=1, optuna_storage=url))
    assert names
    assert counts == {name: len(optuna.load_study(study_name=name, storage=url).trials) for name in names}


def test_a_profile_of_several_workloads_is_planned_for_its_first() -> None:
    found, drafter = measured(), measured().drafters[0]
    other = replace(drafter.trace, workload="chat")
    done = Profile(
        device=DEVICE,
        identities=Identities(target=TARGET, drafters={"small": drafter.model}),
        verify=found.verify,
        drafts={"small": drafter.surface},
        overhead=found.overhead,
        traces=(drafter.trace, other),
        pairwise=(AGREEMENT, replace(AGREEMENT, workload="chat")),
        seconds=1.0,
        is_resumed=False,
        disturbances=(),
    )
    assert inputs_of(done) == replace(found, pairwise=AGREEMENT)


def test_a_plan_is_kept_as_it_was_made(store: Store) -> None:
    keep(store)
    plan = make_plan(replace(REQUEST, batches=(1,), contexts=(30, 60)), store)
    stored = store.find_plan(device=DEVICE.fingerprint, target=TARGET.key, workload="made up", temperature=0.0)
    assert plan_from_json(store.plan(stored.id)) == plan
    assert [(cell.batch, cell.context) for cell in plan.cells] == [(1, 30), (1, 60)]


def test_without_a_wish_every_measured_batch_and_context_is_planned(store: Store) -> None:
    keep(store)
    plan = make_plan(REQUEST, store)
    assert {(cell.batch, cell.context) for cell in plan.cells} == {(1, 2), (3, 2), (1, 200), (3, 200)}


@pytest.mark.parametrize("wish", [{}, {"batches": (1,)}, {"contexts": (30,)}])
def test_a_target_none_of_whose_shapes_ran_has_no_plan(wish: dict[str, tuple[int, ...]]) -> None:
    failed = Measurement(batch=1, context_tokens=30, tokens=1, failure="out of memory")
    nothing = replace(measured(), verify=replace(measured().verify, measurements=(failed,)))
    with pytest.raises(MeasurementError, match=r"no shape could run .*out of memory"):
        solve_plan(nothing, replace(REQUEST, **wish))  # type: ignore[arg-type]
