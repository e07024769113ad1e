from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.errors import DeviceError, MeasurementError
from spectune.profiler.catalogue import catalogued
from spectune.profiler.efficiency import MeasuredSurface, calibrate, estimate_surface
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.architecture import Architecture
from spectune.profiler.records.efficiency import Efficiency
from spectune.profiler.records.limits import DeviceLimits, ReadSpeed
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.roofline import bound_surface, surface_of

SMALL = Architecture(
    family="llama",
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=2,
    head_dim=64,
    intermediate=1500,
    vocabulary=1000,
    is_tied=True,
    is_gated=True,
)
LARGE = replace(SMALL, layers=24, hidden=1024, heads=16)
DEVICE = DeviceLimits(
    name="measured",
    origin="measured",
    memory_bytes=2**40,
    reads=(ReadSpeed(footprint_bytes=0, bytes_per_s=1e11),),
    flops_per_s=(("float32", 1e12),),
    launch_us=(("eager", 2.0),),
)
WANTED = replace(
    DEVICE,
    name="wanted",
    origin="catalogued",
    reads=(ReadSpeed(footprint_bytes=0, bytes_per_s=7e11),),
    flops_per_s=(("float32", 5e13),),
    launch_us=(),
)
KEY = SurfaceKey(device="d" * 16, model="m" * 16, role="verify", regime="eager", dtype="float32")
SHAPES = list(product((1, 4, 16), (10, 2000), (1, 8, 40, 200)))
LAYER_MS, WEIGHTS, CACHE, MATMUL, ATTENTION = 0.03, 0.8, 0.4, 0.6, 0.2  # what the made-up device does


def by_hand_ms(architecture: Architecture, limits: DeviceLimits, shape: tuple[int, int, int], overlaps: bool) -> float:
    """Return what the made-up device takes: the formula of Efficiency, written out anew from the architecture."""
    batch, context, tokens = shape
    rows, width = batch * tokens, architecture.heads * architecture.head_dim
    kv = 2 * architecture.kv_heads * architecture.head_dim * architecture.layers
    matrices = architecture.layers * architecture.hidden * (2 * width + 2 * 2 * 64 + 3 * architecture.intermediate)
    matrices += architecture.vocabulary * architecture.hidden
    pairs = batch * architecture.layers * (tokens * context + tokens * (tokens + 1) // 2)
    speed, peak = limits.reads[0].bytes_per_s / 1e3, dict(limits.flops_per_s)["float32"] / 1e3
    memory = 4 * matrices / speed / WEIGHTS + 4 * kv * batch * (context + tokens) / speed / CACHE
    compute = 2 * rows * matrices / peak / MATMUL + 4 * pairs * width / peak / ATTENTION
    return LAYER_MS * architecture.layers + (max(memory, compute) if overlaps else memory + compute)


def measured(architecture: Architecture, overlaps: bool, noise: float = 0.0) -> MeasuredSurface:
    """Return a surface of the made-up device."""
    source = np.random.default_rng(0)
    cells = [
        Measurement(
            batch=shape[0],
            context_tokens=shape[1],
            tokens=shape[2],
            repeats_ms=(by_hand_ms(architecture, DEVICE, shape, overlaps) * np.exp(noise * source.normal()),),
        )
        for shape in SHAPES
    ]
    return MeasuredSurface(surface=surface_of(KEY, cells), architecture=architecture)


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_shares_a_device_reaches_are_recovered(overlaps):
    found = calibrate([measured(SMALL, overlaps), measured(LARGE, overlaps)], DEVICE)
    assert found.combination == ("max" if overlaps else "sum")
    shares = (found.layer_ms, found.weights, found.cache, found.matmul, found.attention)
    assert shares == pytest.approx((LAYER_MS, WEIGHTS, CACHE, MATMUL, ATTENTION), rel=1e-3)
    assert found.error_p95 < 1e-3 and found.cells == 2 * len(SHAPES)


@pytest.mark.parametrize("overlaps", [False, True])
def test_another_device_that_reaches_the_same_shares_is_predicted(overlaps):
    found = calibrate([measured(SMALL, overlaps), measured(LARGE, overlaps)], DEVICE)
    surface = estimate_surface(SMALL, WANTED, KEY, [(2, 300, 5), (30, 7, 90)], found)
    expected = [by_hand_ms(SMALL, WANTED, shape, overlaps) for shape in ((2, 300, 5), (30, 7, 90))]
    assert [cell.median_ms for cell in surface.measurements] == pytest.approx(expected, rel=1e-3)


def test_the_error_left_out_grows_with_the_noise():
    errors = [calibrate([measured(LARGE, False, noise)], DEVICE).error_median for noise in (0.01, 0.1)]
    assert 0.001 < errors[0] < 0.03 < errors[1] < 0.3


def test_the_time_per_layer_goes_with_the_time_between_launches_where_both_are_known():
    found = calibrate([measured(SMALL, False), measured(LARGE, False)], DEVICE)
    known = replace(WANTED, launch_us=(("eager", 6.0),))
    unknown, slower = (
        estimate_surface(SMALL, limits, KEY, [(1, 10, 1)], found).latency(1, 10, 1).ms for limits in (WANTED, known)
    )
    assert slower - unknown == pytest.approx((6.0 / 2.0 - 1.0) * LAYER_MS * SMALL.layers, rel=1e-3)


SHARES = st.floats(0.01, 1.0)


@settings(max_examples=50)
@given(st.floats(0.0, 5.0), SHARES, SHARES, SHARES, SHARES, st.sampled_from(["sum", "max"]))
def test_no_estimate_lies_below_its_bound(layer_ms, weights, cache, matmul, attention, combination):
    efficiency = Efficiency(
        device="any",
        regime="eager",
        dtype="float32",
        combination=combination,
        layer_ms=layer_ms,
        weights=weights,
        cache=cache,
        matmul=matmul,
        attention=attention,
        cells=1,
        error_median=0.0,
        error_p95=0.0,
    )
    limits = catalogued("L4").limits
    estimated = estimate_surface(SMALL, limits, KEY, SHAPES, efficiency).measurements
    bounds = bound_surface(SMALL, limits, KEY, SHAPES).measurements
    assert all(each.median_ms >= bound.median_ms * (1 - 1e-12) for each, bound in zip(estimated, bounds, strict=True))


def test_an_estimated_surface_says_so_everywhere():
    found = calibrate([measured(SMALL, False)], DEVICE)
    surface = estimate_surface(LARGE, WANTED, KEY, SHAPES, found)
    assert (surface.regime, surface.origin) == ("estimated:eager", "estimated")
    assert surface.latency(4, 100, 3).source == "estimated"


@pytest.mark.parametrize("change", [{"regime": "compiled"}, {"dtype": "bfloat16"}])
def test_an_estimate_for_another_regime_or_format_than_the_calibrated_one_is_refused(change):
    found = calibrate([measured(SMALL, False)], DEVICE)
    with pytest.raises(MeasurementError, match="calibrated on eager in float32"):
        estimate_surface(SMALL, WANTED, replace(KEY, **change), SHAPES, found)


def test_a_device_of_unknown_arithmetic_has_bounds_but_no_estimates():
    found = calibrate([measured(SMALL, False)], DEVICE)
    with pytest.raises(DeviceError, match="no source says how fast"):
        estimate_surface(SMALL, catalogued("EPYC-9654").limits, KEY, SHAPES, found)


def test_estimates_are_not_calibrated_on_estimates():
    found = calibrate([measured(SMALL, False)], DEVICE)
    computed = MeasuredSurface(surface=estimate_surface(SMALL, DEVICE, KEY, SHAPES, found), architecture=SMALL)
    with pytest.raises(MeasurementError, match="measured surfaces"):
        calibrate([computed], DEVICE)


def test_surfaces_of_two_regimes_are_not_calibrated_together():
    other = measured(LARGE, False)
    other = replace(other, surface=replace(other.surface, regime="compiled"))
    with pytest.raises(MeasurementError, match="one device, regime and dtype"):
        calibrate([measured(SMALL, False), other], DEVICE)


def test_prompts_calibrate_nothing_since_each_is_many_forwards():
    alone = measured(LARGE, False)
    cells = [replace(cell, repeats_ms=(30 * cell.median_ms,)) for cell in alone.surface.measurements]
    prompts = replace(alone, surface=replace(alone.surface, role="prefill", measurements=tuple(cells)))
    assert calibrate([prompts, alone], DEVICE) == calibrate([alone], DEVICE)
    with pytest.raises(MeasurementError, match="0 cells ran"):
        calibrate([prompts], DEVICE)


def test_few_cells_calibrate_nothing():
    few = measured(SMALL, False)
    few = replace(few, surface=replace(few.surface, measurements=few.surface.measurements[:5]))
    with pytest.raises(MeasurementError, match="5 cells ran"):
        calibrate([few], DEVICE)
