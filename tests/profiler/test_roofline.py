from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.errors import MeasurementError
from spectune.profiler.catalogue import catalogued
from spectune.profiler.configuration import read_architecture
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.architecture import Architecture
from spectune.profiler.records.ceilings import PeakRates
from spectune.profiler.records.configuration import architecture_of
from spectune.profiler.records.device import Device
from spectune.profiler.records.limits import DeviceLimits
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json
from spectune.profiler.roofline import bound_surface, roofline_ms

DATA, FAMILY = Path(__file__).parents[1] / "data", Path(__file__).parents[2] / "demo" / "models"
LLAMA_8B = Architecture(
    family="llama",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocabulary=128256,
    is_tied=False,
    is_gated=True,
)
H200 = catalogued("H200").limits
KEY = SurfaceKey(device="d" * 16, model="m" * 16, role="verify", regime="eager", dtype="bfloat16", attention="sdpa")


def recorded() -> tuple[DeviceLimits, dict[str, LatencySurface]]:
    """Return what benchmarks/estimate.py --keep measured on a shared virtual machine."""
    kept = json.loads((DATA / "cpu_surfaces.json").read_text())
    device = from_json(Device, json.dumps(kept["device"]))
    limits = from_json(PeakRates, json.dumps(kept["ceilings"])).limits(device)
    return limits, {name: from_json(LatencySurface, json.dumps(s)) for name, s in kept["surfaces"].items()}


@pytest.mark.parametrize("name", ["target", "medium", "small"])
def test_no_repeat_of_any_measured_cell_beats_its_bound(name):
    limits, surfaces = recorded()
    architecture, surface = read_architecture(FAMILY / name), surfaces[name]
    beaten = [
        cell
        for cell in surface.measurements
        if min(cell.repeats_ms)
        < roofline_ms(architecture, limits, surface.dtype, cell.batch, cell.context_tokens, cell.tokens)
    ]
    assert len(surface.measurements) >= 60 and beaten == []


@pytest.mark.parametrize("name", ["target", "medium", "small"])
def test_the_bound_is_within_reach_where_the_arithmetic_sets_it(name):
    limits, surfaces = recorded()
    architecture = read_architecture(FAMILY / name)
    cell = next(c for c in surfaces[name].measurements if (c.batch, c.context_tokens, c.tokens) == (8, 64, 60))
    assert cell.median_ms < 4 * roofline_ms(architecture, limits, "bfloat16", 8, 64, 60)


def test_one_token_of_an_8b_model_takes_the_time_to_read_its_weights():
    parameters = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    in_cache, kv = 60 * 2**20, 1000 * 32 * 2 * 8 * 128 * 2
    expected_ms = (2 * parameters + kv - in_cache) / 4.8e12 * 1e3
    assert roofline_ms(LLAMA_8B, H200, "bfloat16", 1, 1000, 1) == pytest.approx(expected_ms)


QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize(("batch", "tokens"), [(1, (1, 4, 8, 16, 64)), (8, (1, 2, 8))])
@pytest.mark.parametrize("limits", [catalogued("H100-SXM").limits, H200])
def test_more_tokens_touch_more_experts(limits, batch, tokens):
    surface = bound_surface(architecture_of(QWEN3_30B_A3B), limits, KEY, [(batch, 1024, n) for n in tokens])
    expert, beside = 3 * 2048 * 768, 2 * 2048 * 128 * (32 + 4) + 2048 * 128 + 2 * 2048 + 2 * 128
    for n in tokens:
        touched = 128 * (1 - (1 - 8 / 128) ** (batch * n))
        read = 2 * (48 * (beside + touched * expert) + 2048 + 151936 * 2048) + batch * 1024 * 48 * 2 * 4 * 128 * 2
        assert surface.latency(batch, 1024, n).ms == pytest.approx(limits.read_ms(read))


def test_tokens_of_a_30b_with_small_experts_take_what_was_worked_out_by_hand():
    tokens, expected_ms = (1, 4, 8, 16, 64), (1.84, 4.70, 7.74, 11.9, 17.8)
    limits = catalogued("H100-SXM").limits
    surface = bound_surface(architecture_of(QWEN3_30B_A3B), limits, KEY, [(1, 1024, n) for n in tokens])
    assert [surface.latency(1, 1024, n).ms for n in tokens] == pytest.approx(expected_ms, rel=0.01)


def test_two_tokens_of_mixtral_touch_three_and_a_half_experts():
    surface = bound_surface(architecture_of(MIXTRAL_8X7B), replace(H200, cache_bytes=0), KEY, [(1, 1, 1), (1, 1, 2)])
    apart_ms = surface.latency(1, 1, 2).ms - surface.latency(1, 1, 1).ms
    assert apart_ms == pytest.approx(2 * 32 * 1.5 * 3 * 4096 * 14336 / 4.8e12 * 1e3)


def test_tokens_that_share_experts_have_a_lower_bound():
    architecture = architecture_of(MIXTRAL_8X7B)
    spread_ms = bound_surface(architecture, H200, KEY, [(1, 64, 8)]).latency(1, 64, 8).ms
    shared_ms = roofline_ms(architecture, H200, "bfloat16", 1, 64, 8)
    assert shared_ms < 0.5 * spread_ms


def test_many_rows_take_the_time_to_multiply_them():
    parameters = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    rows = 64 * 256
    flops = 2 * rows * parameters + 4 * rows * 128 * 32 * 100 * 32
    assert roofline_ms(LLAMA_8B, H200, "bfloat16", 64, 100, 256) == pytest.approx(flops / 989.5e12 * 1e3)


SHAPES = st.tuples(st.integers(1, 64), st.integers(0, 9000), st.integers(1, 300))


@given(SHAPES, SHAPES)
def test_a_larger_shape_has_no_smaller_bound(shape, more):
    larger = [a + b for a, b in zip(shape, more, strict=True)]
    assert roofline_ms(LLAMA_8B, H200, "bfloat16", *shape) <= roofline_ms(LLAMA_8B, H200, "bfloat16", *larger)


def test_a_bound_surface_says_so_everywhere():
    surface = bound_surface(LLAMA_8B, H200, KEY, [(1, 64, 1), (1, 64, 8), (8, 64, 1)])
    assert (surface.regime, surface.origin, surface.attention) == ("bound:eager", "bound", "sdpa")
    assert surface.latency(1, 64, 8).source == "bound"
    assert surface.latency(8, 64, 1).ms == roofline_ms(LLAMA_8B, H200, "bfloat16", 8, 64, 1)


def test_a_prompt_costs_the_logits_of_its_last_token_alone():
    prompt = bound_surface(LLAMA_8B, H200, replace(KEY, role="prefill"), [(1, 0, 4096)]).latency(1, 0, 4096).ms
    head_ms = 2 * 4095 * 4096 * 128256 / 989.5e12 * 1e3
    assert prompt == pytest.approx(roofline_ms(LLAMA_8B, H200, "bfloat16", 1, 0, 4096) - head_ms)


def test_a_shape_that_exceeds_the_memory_is_a_failure():
    surface = bound_surface(LLAMA_8B, catalogued("L4").limits, KEY, [(1, 64, 1), (64, 9000, 1)])
    assert [bool(cell.failure) for cell in surface.measurements] == [False, True]
    assert "out of memory: needs 85." in str(surface.measurements[1].failure)


def test_what_no_published_speed_bounds_is_a_failure_not_a_zero():
    tiny = replace(LLAMA_8B, layers=1, vocabulary=100)
    surface = bound_surface(tiny, catalogued("EPYC-9654").limits, KEY, [(1, 64, 1)])
    assert "fits into the caches" in str(surface.measurements[0].failure)


@pytest.mark.parametrize("role", ["head", "exit:3", "loop:4"])
def test_what_is_no_whole_forward_has_no_bound(role):
    with pytest.raises(MeasurementError, match="no whole forward"):
        bound_surface(LLAMA_8B, H200, replace(KEY, role=role), [(1, 64, 1)])


def cell(batch: int, context: int, tokens: int, ms: float | None) -> Measurement:
    return Measurement(
        batch=batch,
        context_tokens=context,
        tokens=tokens,
        repeats_ms=() if ms is None else (ms,),
        failure="out of memory" if ms is None else None,
    )
