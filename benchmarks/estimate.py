"""How well does an estimate predict what was not measured, and is every bound a bound, on this machine?

Times forwards of the demo family in random rounds, and between them how fast the machine reads and multiplies. Then
calibrates on half of the batches and predicts the other half, and calibrates on some models and predicts the others:
errors are |predicted / measured - 1| over cells. No repeat of any cell may beat its roofline bound. The last line is
one JSON object.

    OMP_NUM_THREADS=2 python benchmarks/estimate.py [--rounds 5] [--keep measured.json]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from spectune.profiler.ceilings import measure_ceilings
from spectune.profiler.clock import HostClock
from spectune.profiler.configuration import read_architecture
from spectune.profiler.device import detect
from spectune.profiler.domain import Shape
from spectune.profiler.efficiency import MeasuredSurface, calibrate, estimated_ms
from spectune.profiler.identity import identify
from spectune.profiler.records.ceilings import PeakRates
from spectune.profiler.records.device import Device
from spectune.profiler.records.limits import DeviceLimits
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import to_json
from spectune.profiler.roofline import roofline_ms, shape_of
from spectune.runtime.models.loading import load_model
from spectune.runtime.shapes import ForwardShapes

from result import print_result  # isort: skip

FAMILY = Path(__file__).parents[1] / "demo" / "models"
BATCHES, CONTEXTS, TOKENS = (1, 2, 4, 8), (64, 1024), (1, 2, 4, 8, 12, 16, 24, 32, 48, 60)
HALVES = ((1, 4), (2, 8))
DTYPE = "bfloat16"
Family = dict[str, MeasuredSurface]
Json = dict[str, object]  # JSON values


def main() -> None:
    """Run it and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times every cell is visited; medians count")
    parser.add_argument("--keep", type=Path, help="write what was measured to this file")
    wanted = parser.parse_args()
    device = detect("cpu")
    family, ceilings = measured(device, wanted.rounds)
    if wanted.keep:
        wanted.keep.write_text(kept(device, family, ceilings))
    limits = ceilings.limits(device)
    errors = all_errors(family, limits)
    for what, error in errors.items():
        print(f"{what:44} median {error['median']:6.1%}   95th percentile {error['p95']:6.1%}   {error['cells']} cells")
    bound = against_bound(family, limits)
    print(f"measured over bound: at least {bound['least']:.2f}, median {bound['median']:.2f}")
    whole = json.loads(to_json(calibrate(list(family.values()), limits)))
    holds = bound["least"] >= 1.0
    result = {"bench": "estimate", "device": device.label, "rounds": wanted.rounds, "dtype": DTYPE}
    result |= {"errors": errors, "measured_over_bound": bound, "efficiency": whole}
    print_result({**result, "holds": holds, "not_run": ["from one GPU to another", "H200"]})


def measured(device: Device, rounds: int) -> tuple[Family, PeakRates]:
    """Return the surfaces of the demo family by model, and the best speeds seen before and after."""
    places = {name: FAMILY / name for name in ("target", "medium", "small")}
    runners = {name: runner(path, "verify" if name == "target" else "draft") for name, path in places.items()}
    shapes = list(product(BATCHES, CONTEXTS, TOKENS))
    visits = [(name, shape) for name in runners for shape in shapes]
    repeats_ms: dict[tuple[str, Shape], list[float]] = {visit: [] for visit in visits}
    clock, order = HostClock(), random.Random(0)
    ceilings = measure_ceilings(device, DTYPE)
    for done in range(rounds):
        print(f"... round {done + 1} of {rounds}", file=sys.stderr)
        order.shuffle(visits)
        for name, shape in visits:
            call = runners[name].prepare(*shape)
            call()
            repeats_ms[name, shape].append(round(clock.time_ms(call), 4))
    ceilings = ceilings.joined(measure_ceilings(device, DTYPE))
    family = {
        name: MeasuredSurface(
            surface=surface_of(device, runners[name], {shape: repeats_ms[name, shape] for shape in shapes}),
            architecture=read_architecture(path),
        )
        for name, path in places.items()
    }
    return family, ceilings


def runner(path: Path, role: str) -> ForwardShapes:
    model = load_model(str(path), dtype=DTYPE)
    slots, capacity = max(BATCHES), max(CONTEXTS) + 4 * max(TOKENS)
    return ForwardShapes(model, identity=identify(path).key, dtype=DTYPE, role=role, slots=slots, capacity=capacity)


def surface_of(device: Device, run: ForwardShapes, repeats_ms: dict[Shape, list[float]]) -> LatencySurface:
    cells = [
        Measurement(batch=batch, context_tokens=context, tokens=tokens, repeats_ms=tuple(seen))
        for (batch, context, tokens), seen in repeats_ms.items()
    ]
    return LatencySurface(
        device=device.fingerprint,
        model=run.identity,
        role=run.role,
        regime=run.regime,
        dtype=DTYPE,
        attention=run.attention,
        measurements=tuple(cells),
    )


def all_errors(family: Family, limits: DeviceLimits) -> dict[str, Json]:
    """Return the errors of every prediction by what was calibrated on and what was predicted."""
    found: dict[str, Json] = {}
    for known, other in (HALVES, HALVES[::-1]):
        learned, asked = (
            [only(each, known) for each in family.values()],
            [only(each, other) for each in family.values()],
        )
        found[f"batches {known} to {other}, all models"] = errors(learned, asked, limits)
        for name, each in family.items():
            found[f"batches {known} to {other}, {name}"] = errors([only(each, known)], [only(each, other)], limits)
    target, drafters = family["target"], [each for name, each in family.items() if name != "target"]
    found["drafters to target"] = errors(drafters, [target], limits)
    found["target to drafters"] = errors([target], drafters, limits)
    return found


def only(measured: MeasuredSurface, batches: Sequence[int]) -> MeasuredSurface:
    """Return the cells of some batches."""
    cells = tuple(cell for cell in measured.surface.measurements if cell.batch in batches)
    return replace(measured, surface=replace(measured.surface, measurements=cells))


def errors(learned: Sequence[MeasuredSurface], asked: Sequence[MeasuredSurface], limits: DeviceLimits) -> Json:
    """Return how far the cells asked for lie from their estimates."""
    efficiency = calibrate(learned, limits)
    off = []
    for each in asked:
        for cell in each.surface.measurements:
            work = each.architecture.work(DTYPE, *shape_of(cell))
            predicted_ms = estimated_ms(each.architecture, work, limits, efficiency)
            off.append(abs(predicted_ms / cell.median_ms - 1.0))
    return {
        "median": float(np.median(off)),
        "p95": float(np.quantile(off, 0.95)),
        "cells": len(off),
        "combination": efficiency.combination,
        "leave_one_out_median": efficiency.error_median,
    }


def against_bound(family: Family, limits: DeviceLimits) -> dict[str, float]:
    """Return how many times their bound the fastest repeats take."""
    over = [
        min(cell.repeats_ms) / roofline_ms(each.architecture, limits, DTYPE, *shape_of(cell))
        for each in family.values()
        for cell in each.surface.measurements
    ]
    return {"least": min(over), "median": float(np.median(over))}


def kept(device: Device, family: Family, ceilings: PeakRates) -> str:
    """Return everything measured as JSON."""
    surfaces = {name: json.loads(to_json(each.surface)) for name, each in family.items()}
    told = {"device": json.loads(to_json(device)), "ceilings": json.loads(to_json(ceilings)), "surfaces": surfaces}
    return json.dumps(told) + "\n"


if __name__ == "__main__":
    main()
