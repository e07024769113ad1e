"""Plans for a device that is not here: labelled as computed, and no more than a guess to a decoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.db.sources import overhead_source, sources_of_inputs
from spectune.errors import MeasurementError, RequestError, StoreError
from spectune.planner.plans.plan import PlanCell
from spectune.profiler.catalogue import catalogued
from spectune.profiler.identity import identify, identify_config
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from spectune.profiler.records.device import Device
from spectune.profiler.records.model import ModelIdentity
from spectune.runtime.plan_choice import choose_plan
from spectune.tuning.estimates.host_time import UNKNOWN
from spectune.tuning.estimates.inputs import inputs_on_estimates
from spectune.tuning.plan import solve_and_store, solve_plan
from spectune.tuning.request import PlanRequest

from ..support.synthetic import DEVICE, Language, SkilledDrafter, every_node, overhead, record, surface, texts
from .estimates.test_estimate import keep

FAMILY = Path(__file__).parents[2] / "demo" / "models"
H200 = catalogued("H200").device


@cache
def identity(name: str) -> ModelIdentity:
    return identify(FAMILY / name)


def request(**changes: object) -> PlanRequest:
    wanted: dict[str, object] = {"target": identity("target"), "device": H200, "workload": "made up", "trials": 2}
    return PlanRequest(**(wanted | changes))  # type: ignore[arg-type]


@cache
def recorded() -> AcceptanceTrace:
    spoken = Language(3)
    made_up = record(SkilledDrafter(spoken, 0.8), texts(spoken, 4, lambda text: 10), every_node(2, 2))
    return replace(made_up, target=identity("target").key, drafter=identity("small").key)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store that holds a trace of the demo family, and nothing measured."""
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))
    with open_store(str(tmp_path / "store.db")) as opened:
        for name in ("target", "small"):
            opened.add_model(identity(name))
        opened.add_trace(recorded())
        yield opened


def test_a_trace_is_priced_on_computed_surfaces_that_the_store_keeps(store: Store) -> None:
    found = inputs_on_estimates(request(), store)
    assert [found.verify, found.drafters[0].surface] == store.surfaces(H200.fingerprint)
    assert found.drafters[0].trace == recorded()
    assert found.verify.batches == (1,)  # there are not texts enough for 8
    assert set(found.footprints) == {identity("target").key, identity("small").key}


def test_of_two_drafters_of_one_name_the_newest_is_priced(store: Store) -> None:
    store.add_model(identity("medium"))
    store.add_trace(replace(recorded(), drafter=identity("medium").key))
    found = inputs_on_estimates(request(), store)
    assert [drafter.model for drafter in found.drafters] == [identity("medium")]
    assert found.notes[-1].startswith(f"an older small (weights {identity('small').key}) does not compete")


def test_the_notes_say_that_nothing_was_measured(store: Store) -> None:
    origin, *_, host = inputs_on_estimates(request(), store).notes
    assert origin.startswith("an estimate: every forward on NVIDIA H200 was computed from limits alone")
    assert host == UNKNOWN


def test_host_time_is_that_of_the_device_that_is_nearest(store: Store) -> None:
    other = Device(kind="cuda", name="Other GPU", index=0, memory_bytes=2**35)
    for device, ms in ((DEVICE, 0.5), (other, 0.25)):
        store.add_device(device)
        measured = replace(overhead(ms), device=device.fingerprint, target=identity("target").key, dtype="bfloat16")
        store.add_overhead(measured)
    found = inputs_on_estimates(request(), store)
    assert found.overhead.host_ms("chain", 1, 3, 4) == pytest.approx(0.25)
    assert f"the host time of rounds is that of {other.label}" in found.notes


@pytest.mark.parametrize(("ways", "is_noted"), [((False, True), False), ((True,), True)])
def test_host_time_is_that_of_greedy_rounds_where_they_were_timed(
    store: Store, ways: tuple[bool, ...], is_noted: bool
) -> None:
    store.add_device(DEVICE)
    host = replace(overhead(0.5), target=identity("target").key, dtype="bfloat16")
    samples = tuple(
        replace(sample, is_sampled=way, host_ms=(5.0 if way else 0.5,)) for way in ways for sample in host.samples
    )
    store.add_overhead(replace(host, samples=samples))
    found = inputs_on_estimates(request(), store)
    assert found.overhead.host_ms("chain", 1, 3, 4) == pytest.approx(5.0 if is_noted else 0.5)
    assert any("timed in sampled rounds" in note for note in found.notes) == is_noted


def test_the_sources_of_borrowed_host_time_are_the_records_that_were_measured(store: Store) -> None:
    store.add_device(DEVICE)
    host = replace(overhead(0.5), target=identity("target").key, dtype="bfloat16")
    records = [
        replace(host, samples=tuple(replace(sample, is_sampled=is_sampled) for sample in host.samples))
        for is_sampled in (False, True)
    ]
    for each in records:
        store.add_overhead(each)
    told = [each for each in sources_of_inputs(inputs_on_estimates(request(), store)) if each.kind == "overhead"]
    assert told == [overhead_source(records[0])]


@pytest.mark.parametrize(("regime", "is_borrowed"), [("eager", True), ("cuda-graph", False)])
def test_host_time_of_rounds_that_run_otherwise_is_not_borrowed(store: Store, regime: str, is_borrowed: bool) -> None:
    for name in ("target", "medium"):
        keep(store, name)
    store.add_device(DEVICE)
    host = replace(overhead(0.5), target=identity("target").key, dtype="bfloat16", regime=regime)
    store.add_overhead(host)
    found = inputs_on_estimates(request(), store)
    assert found.verify.regime == "estimated:eager"
    assert (UNKNOWN not in found.notes) == is_borrowed


def test_every_context_that_is_asked_for_is_computed(store: Store) -> None:
    found = inputs_on_estimates(request(batches=(2, 4), contexts=(64, 4096)), store)
    assert found.verify.batches == (2, 4)
    assert set(found.verify.contexts(2)) > {64, 4096}


@cache
def long_texts() -> AcceptanceTrace:
    spoken = Language(3)
    made_up = record(SkilledDrafter(spoken, 0.8), texts(spoken, 4, lambda text: 40), every_node(2, 2))
    return replace(made_up, target=identity("target").key, drafter=identity("small").key, workload="long")


def cells_for(store: Store, batches: tuple[int, ...], contexts: tuple[int, ...]) -> dict[tuple[int, int], PlanCell]:
    wanted = request(
        device=catalogued("L4").device, batches=batches, contexts=contexts, workload="long", dtype="float32"
    )
    plan = solve_plan(inputs_on_estimates(wanted, store), wanted)
    return {(cell.batch, cell.context): cell for cell in plan.cells}


def test_the_price_of_a_cell_does_not_depend_on_which_others_are_named(store: Store) -> None:
    store.add_trace(long_texts())
    host = replace(overhead(0.2), target=identity("target").key)
    store.add_device(DEVICE)
    store.add_overhead(host)
    whole = cells_for(store, (1, 3), (7, 24, 33, 2000))
    subsets = [((1,), (2000,)), ((3,), (24,)), ((1, 3), (33,)), ((1,), (7, 24))]
    for batches, contexts in subsets:
        for place, cell in cells_for(store, batches, contexts).items():
            assert cell == whole[place], place
    speeds = {cell.prediction.tokens_per_s for cell in whole.values()}
    assert len(speeds) == len(whole)


def test_without_contexts_those_are_planned_where_the_texts_begin_and_end(store: Store) -> None:
    made = solve_plan(inputs_on_estimates(request(), store), request())
    prompts = recorded().prompts
    ends = {min(len(p.prompt) for p in prompts), max(len(p.prompt) + len(p.continuation) for p in prompts)}
    assert {cell.context for cell in made.cells} == ends


@pytest.mark.parametrize("contexts", [(8193,), (64, 1_000_000)])
def test_a_context_far_beyond_the_positions_of_the_target_is_refused(contexts: tuple[int, ...], store: Store) -> None:
    told = rf"context {max(contexts):,} is beyond the 2,048 positions of target; name contexts of at most 2,048"
    with pytest.raises(RequestError, match=told):
        inputs_on_estimates(request(contexts=contexts), store)


@pytest.mark.parametrize(("context", "is_told"), [(2048, False), (2049, True), (4096, True)])
def test_a_context_that_a_stretched_model_reaches_is_estimated_and_labelled(
    context: int, is_told: bool, store: Store
) -> None:
    notes = inputs_on_estimates(request(contexts=(context,)), store).notes
    told = f"context {context:,} is beyond the 2,048 positions of target: it is estimated as if"
    assert any(note.startswith(told) for note in notes) == is_told


def test_a_store_without_a_trace_says_what_to_run(store: Store) -> None:
    with pytest.raises(StoreError, match=r"no trace of the workload 'chat'.*run: spectune profile"):
        inputs_on_estimates(request(workload="chat"), store)


def test_a_model_whose_configuration_is_gone_is_named(store: Store) -> None:
    store.add_model(replace(identity("small"), location="nowhere"))
    with pytest.raises(RequestError, match=r"nothing can be computed for small, .* nowhere"):
        inputs_on_estimates(request(), store)


@pytest.mark.parametrize("name", ["medusa", "eagle3", "exit", "recycling"])
def test_a_drafter_beside_the_target_is_left_out_and_named(name: str, store: Store) -> None:
    store.add_model(identity(name))
    store.add_trace(replace(recorded(), drafter=identity(name).key, drafter_name=name))
    found = inputs_on_estimates(request(), store)
    assert [drafter.name for drafter in found.drafters] == [recorded().drafter_name]
    assert found.notes[-1].startswith(f"{name} reads what the target computes on the way and does not compete")


def test_how_models_agree_is_known_beside_a_drafter_that_is_left_out(store: Store) -> None:
    store.add_model(identity("medusa"))
    store.add_trace(replace(recorded(), drafter=identity("medusa").key, drafter_name="medusa"))
    all_of_them = ((1.0, 0.7, 0.5), (0.7, 1.0, 0.4), (0.5, 0.4, 1.0))
    together = PairwiseAcceptance(
        models=("target", recorded().drafter_name, "medusa"), greedy=all_of_them, overlap=all_of_them, positions=40,
        target=identity("target").key, workload="made up", temperature=0.0,
    )  # fmt: skip
    store.add_pairwise(together)
    found = inputs_on_estimates(request(), store)
    assert len(found.drafters) == 1 and found.pairwise == together


def test_a_head_whose_folder_is_gone_is_left_out_by_what_was_timed_of_it(store: Store) -> None:
    head = replace(identity("medusa"), location="nowhere")
    store.add_model(head)
    store.add_trace(replace(recorded(), drafter=head.key, drafter_name="medusa"))
    store.add_device(DEVICE)
    timed = replace(surface("medusa", "block", lambda batch, context, tokens: 1.0), model=head.key)
    store.add_measurements(SurfaceKey.of(timed), timed.measurements)
    assert [drafter.name for drafter in inputs_on_estimates(request(), store).drafters] == [recorded().drafter_name]


def test_a_target_whose_configuration_is_gone_is_named(store: Store) -> None:
    gone = replace(identity("target"), location="nowhere")
    with pytest.raises(RequestError, match=r"nothing can be computed for target, .* nowhere"):
        inputs_on_estimates(request(target=gone), store)


def test_a_target_that_does_not_fit_on_the_device_is_refused_with_its_size(store: Store, tmp_path: Path) -> None:
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    config = tmp_path / "large.json"
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8} | sizes))
    large = identify_config(config, 70_553_706_496)
    store.add_model(large)
    store.add_trace(replace(recorded(), target=large.key))
    with pytest.raises(MeasurementError, match=r"no shape could run .*out of memory: needs 13\d"):
        inputs_on_estimates(request(target=large, device=catalogued("L4").device), store)


@pytest.mark.parametrize(
    "real", [H200, replace(H200, driver="570.1", compute_capability="9.0"), replace(H200, libraries=(("torch", "3"),))]
)
def test_a_decoder_takes_a_plan_that_was_made_on_estimates_for_a_guess(real: Device, store: Store) -> None:
    solve_and_store(inputs_on_estimates(request(), store), request(batches=(1,), contexts=(64,)), store)
    choice = choose_plan(
        "auto", target=identity("target"), device=real, store=store.url, workload="made up", temperature=0.0
    )
    assert len(store.plans()) == 1
    assert (choice.source, choice.is_guess) == ("estimate", True)
    assert choice.reason.startswith("a guess: plan estimated for NVIDIA H200")
