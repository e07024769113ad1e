from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from spectune.cli.measured import estimate_facts, estimate_shown
from spectune.cli.report import show
from spectune.db import open_store
from spectune.db.store import Store
from spectune.errors import DeviceError, ModelError, RequestError
from spectune.planner.reasons.duration import duration
from spectune.profiler.ceilings import remember_ceilings
from spectune.profiler.identity import identify
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.ceilings import PeakRates
from spectune.profiler.records.device import Device
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json
from spectune.tuning.estimates.estimate import EstimateRequest, estimate
from spectune.tuning.request import Models

DATA, FAMILY = Path(__file__).parents[2] / "data", Path(__file__).parents[3] / "demo" / "models"
KEPT = json.loads((DATA / "cpu_surfaces.json").read_text())
DEVICE = from_json(Device, json.dumps(KEPT["device"]))
CEILINGS = from_json(PeakRates, json.dumps(KEPT["ceilings"]))
SURFACES = {name: from_json(LatencySurface, json.dumps(surface)) for name, surface in KEPT["surfaces"].items()}
MODELS = Models(target=FAMILY / "target", drafters={"small": FAMILY / "small"})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty store, and a cache folder of its own."""
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def request(device: str = "H200", **changes: object) -> EstimateRequest:
    wanted: dict[str, object] = {"models": MODELS, "contexts": (64, 1024), "tokens": (1, 8, 60)}
    return EstimateRequest(device=device, **(wanted | changes))  # type: ignore[arg-type]


def keep(store: Store, name: str, device: Device = DEVICE) -> None:
    """Put a recorded surface of the demo family into a store as one of a device."""
    surface = replace(SURFACES[name], device=device.fingerprint)
    key = SurfaceKey(**{field.name: getattr(surface, field.name) for field in fields(SurfaceKey)})
    store.add_device(device)
    store.add_model(identify(FAMILY / name))
    store.add_measurements(key, surface.measurements)
    remember_ceilings(device, replace(CEILINGS, device=device.fingerprint))


def test_without_measurements_every_surface_is_a_bound(store):
    done = estimate(request(), store)
    assert done.efficiency is None
    assert [(surface.role, surface.regime) for surface in done.surfaces] == [
        ("verify", "bound:eager"),
        ("draft", "bound:eager"),
    ]
    assert {len(surface.measurements) for surface in done.surfaces} == {2 * 2 * 3}


def test_with_measurements_every_surface_is_an_estimate(store):
    keep(store, "target")
    keep(store, "medium")
    done = estimate(request(), store)
    assert done.efficiency is not None and done.efficiency.cells == 160
    assert {surface.regime for surface in done.surfaces} == {"estimated:eager"}


def test_what_was_computed_lies_in_the_store_beside_its_device_and_models(store):
    done = estimate(request(), store)
    assert store.surfaces(done.device.device.fingerprint) == list(done.surfaces)
    assert store.devices() == [done.device.device]
    assert [store.find_model(surface.model) is not None for surface in done.surfaces] == [True, True]


def test_measurements_stay_apart_from_what_was_computed_by_them(store):
    keep(store, "target")
    measured = store.surfaces()
    estimate(request(), store)
    assert [surface for surface in store.surfaces() if surface.origin == "measured"] == measured


@pytest.mark.parametrize("location", ["", str(FAMILY / "medium")])
def test_no_estimate_rests_on_timings_of_a_model_in_whose_place_there_is_another(store, location, monkeypatch):
    monkeypatch.chdir(FAMILY / "medium")
    surface = SURFACES["target"]
    store.add_device(DEVICE)
    store.add_model(replace(identify(FAMILY / "target"), location=location))
    store.add_measurements(SurfaceKey.of(surface), surface.measurements)
    remember_ceilings(DEVICE, CEILINGS)
    assert estimate(request(models=Models(target=FAMILY / "small")), store).efficiency is None


def test_no_estimate_rests_on_an_earlier_estimate(store):
    keep(store, "target")
    first, second = estimate(request(), store), estimate(request(), store)
    assert first.efficiency == second.efficiency


def test_a_configuration_without_weights_is_enough(store, tmp_path):
    config = tmp_path / "big.json"
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8} | sizes))
    done = estimate(request(models=Models(target=config)), store)
    assert done.identities.target.parameters == 8_030_261_248
    assert done.surfaces[0].latency(1, 64, 1).ms > 3.0


def test_measurements_of_the_same_kind_of_device_come_before_those_of_the_same_model(store):
    gpu = Device(kind="cuda", name="Other GPU", index=0, memory_bytes=2**35)
    keep(store, "target")
    keep(store, "medium", gpu)
    done = estimate(request(models=Models(target=FAMILY / "target")), store)
    assert done.efficiency is not None and done.efficiency.device == gpu.label
    assert done.reasons == ()


def test_of_two_devices_of_a_kind_the_one_that_ran_the_target_counts(store):
    other = replace(DEVICE, name="Other CPU")
    keep(store, "medium", other)
    keep(store, "small", other)
    keep(store, "target")
    done = estimate(request(models=Models(target=FAMILY / "target")), store)
    assert done.efficiency is not None and done.efficiency.device == DEVICE.label
    assert "only a cpu was measured" in done.reasons[0]


def test_a_measured_device_whose_limits_nobody_knows_is_passed_over_with_the_reason(store):
    keep(store, "target")
    nowhere = replace(DEVICE, name="Nowhere")
    store.add_device(nowhere)
    surface = SURFACES["small"]
    store.add_model(identify(FAMILY / "small"))
    key = SurfaceKey(**{field.name: getattr(surface, field.name) for field in fields(SurfaceKey)})
    store.add_measurements(replace(key, device=nowhere.fingerprint), surface.measurements)
    done = estimate(request(models=Models(target=FAMILY / "small")), store)
    assert done.efficiency is not None and done.efficiency.device == DEVICE.label
    assert done.reasons[0].startswith("Nowhere (cpu") and "'Nowhere'" in done.reasons[0]


def test_a_device_of_unknown_arithmetic_has_bounds_and_says_why(store, tmp_path):
    keep(store, "target")
    done = estimate(request("EPYC-9654"), store)
    assert done.efficiency is None and "no sourced bfloat16 speed" in done.reasons[0]


@pytest.mark.parametrize(("change", "error"), [({"device": "no such"}, DeviceError), ({"models": None}, ModelError)])
def test_nothing_is_kept_of_a_request_that_cannot_be_done(store, tmp_path, change, error):
    wanted = {"models": Models(target=tmp_path / "nothing")} if "models" in change else change
    with pytest.raises(error):
        estimate(request(**wanted), store)
    assert store.surfaces() == [] and store.devices() == []


SPECULATORS = {"speculators_config": {"algorithm": "eagle3"}, "transformer_layer_config": {"hidden_size": 384}}
MODEL = json.loads((FAMILY / "target" / "config.json").read_text())
HEAD = json.loads((FAMILY / "eagle3" / "config.json").read_text())


@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"config.json": SPECULATORS}, r"is in the format speculators \(eagle3\)"),
        ({"config.json": MODEL, "adapter_config.json": {}}, "holds a LoRA adapter"),
        ({"head.json": HEAD}, "holds a head, which drafts beside a target"),
        ({"head.json": {**HEAD, "spectune": {"kind": "medusa"}}}, "holds a head, which drafts beside"),
        ({"other.json": SPECULATORS}, r"holds a drafter in the format speculators \(eagle3\)"),
    ],
)
def test_what_is_no_language_model_is_not_priced_as_one(store, tmp_path, files, told, role):
    for name, written in files.items():
        (tmp_path / name).write_text(json.dumps(written))
    place = tmp_path if "config.json" in files else next(tmp_path / name for name in files)
    asked = Models(target=place) if role == "target" else Models(target=FAMILY / "target", drafters={"x": place})
    with pytest.raises(ModelError, match=told):
        estimate(request(models=asked), store)
    assert store.surfaces() == []


def test_a_head_s_folder_is_not_priced_as_a_target(store):
    with pytest.raises(ModelError, match="holds a head, which drafts beside a target and is no language model"):
        estimate(request(models=Models(target=FAMILY / "eagle3")), store)


@pytest.mark.parametrize("change", [{"batches": ()}, {"tokens": (0,)}, {"contexts": (-1,)}, {"batches": (1, 1)}])
def test_shapes_that_are_none_are_refused(change):
    with pytest.raises(RequestError, match="must be distinct"):
        request(**change)


def test_the_facts_of_an_estimate_are_json_and_name_every_source(store):
    keep(store, "target")
    facts = json.loads(json.dumps(estimate_facts(estimate(request(), store), store.url), allow_nan=False))
    assert [surface["regime"] for surface in facts["surfaces"]] == ["estimated:eager"] * 2
    assert all(figure["url"].startswith("https://") for figure in facts["figures"])
    assert facts["calibration"]["cells"] == 80


def test_people_are_told_that_nothing_was_measured(store, capsys):
    show(estimate_shown(estimate_facts(estimate(request(), store), store.url)))
    shown = capsys.readouterr().out
    assert "computed for NVIDIA H200" in shown and "not measured" in shown and "lower bounds" in shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (2.941e-05, "29.4 ns"),
        (1e-7, "0.100 ns"),
        (0.0123, "12.3 us"),
        (0.9999, "1.00 ms"),
        (1.829, "1.83 ms"),
        (123.45, "123 ms"),
        (98765.0, "98.8 s"),
    ],
)
def test_times_have_three_digits_and_the_unit_that_suits_them(ms, shown):
    assert duration(ms) == shown


def test_no_time_of_an_estimate_is_printed_in_powers_of_ten(store, capsys):
    show(estimate_shown(estimate_facts(estimate(request(batches=(1,), tokens=(1,), contexts=(1,)), store), store.url)))
    table = capsys.readouterr().out.partition("from published figures")[0]
    assert ("e-0" not in table and " ns" in table) or " us" in table


def test_a_model_with_experts_is_estimated_with_its_assumption(store, tmp_path, capsys):
    config = tmp_path / "moe.json"
    sizes = {"hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4}
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "head_dim": 128}
    config.write_text(json.dumps({"model_type": "qwen3_moe", "vocab_size": 151936} | sizes | experts))
    show(estimate_shown(estimate_facts(estimate(request(models=Models(target=config)), store), store.url)))
    shown = capsys.readouterr().out
    assert "moe: tokens are taken to spread evenly over 128 experts, 8 of them each" in shown
    assert "no forward is faster under these assumptions" in shown
