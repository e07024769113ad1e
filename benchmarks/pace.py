"""How far does a machine's pace wander between a profile and the use of its plan?

A profile times forwards for seconds; a plan made of it is used minutes to weeks later. Here two forwards of the demo's
target, one of a single token and one that verifies 8 tokens of 8 sequences, are timed again and again the way the
profiler times them, in windows of some seconds. Of every pair of windows the later median is compared with the earlier
one. The table tells the root mean square of their logarithms by the time between them, beside what a session of one
window's length tells of itself: `within`. The same of the two forwards' ratio tells how far they stray from each other.
The last line is one JSON object; it makes no claim that could fail.

    python benchmarks/pace.py [--minutes 25] [--every 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spectune.demo.story import family_folder, family_models
from spectune.profiler.clock import Call, HostClock
from spectune.profiler.device import detect
from spectune.profiler.repeats import SETTLED
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.shapes import ForwardShapes
from spectune.tuning.family import load_family

from result import print_result  # isort: skip

SHAPES = {"1 token": (1, 1), "8 x 8 tokens": (8, 8)}  # (batch, tokens per sequence)
CONTEXT = 100
VISITS = 12  # of each shape in a window
LAGS_S = (15, 60, 120, 300, 600, 1200)
NEAR = 0.2  # relative: a pair of windows counts for a lag that it is so near to

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What forwards took in some seconds, by name."""

    start_s: float
    visits_ms: dict[str, list[float]]


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--every", type=float, default=15.0, help="seconds from window to window")
    asked = parser.parse_args()
    device = detect("cpu")
    target = load_family(family_models(family_folder()), dtype=device.native_dtype, device="cpu").target
    windows = watched({name: prepared(target, *shape) for name, shape in SHAPES.items()}, asked.minutes, asked.every)
    rows = [row_of(name, windows) for name in SHAPES]
    apart = strayed_apart(windows)
    for row in rows:
        print(row["shape"], f"within {row['within']:.1%}", {lag: f"{rms:.1%}" for lag, rms in row["between"].items()})
    print("their ratio", {lag: f"{rms:.1%}" for lag, rms in apart.items()})
    told = {
        "bench": "pace",
        "device": device.label,
        "every_s": asked.every,
        "rows": rows,
        "apart": apart,
        "holds": True,
    }
    print_result(told)


def prepared(target: CausalModel, batch: int, tokens: int) -> Call:
    """Return a forward of the target."""
    shapes = ForwardShapes(
        target, identity="pace", dtype=str(target.dtype), role="verify", slots=batch, capacity=CONTEXT + tokens
    )
    return shapes.prepare(batch, CONTEXT, tokens)


def watched(calls: Mapping[str, Call], minutes: float, every_s: float) -> list[Window]:
    """Time all forwards in windows that begin so many seconds apart."""
    clock, begun = HostClock(), time.monotonic()
    known = {name: statistics.median(clock.time_ms(call) for _ in range(20)) for name, call in calls.items()}
    windows: list[Window] = []
    while (now := time.monotonic() - begun) < 60.0 * minutes:
        visits: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(VISITS):
            for name, call in calls.items():
                visits[name].append(SETTLED.time_ms(call, clock, known[name]))
        windows.append(Window(start_s=now, visits_ms=visits))
        time.sleep(max(0.0, begun + len(windows) * every_s - time.monotonic()))
    return windows


def row_of(name: str, windows: Sequence[Window]) -> dict[str, Any]:
    """Return what the windows tell of one forward."""
    logs = logs_of(name, windows)
    return {
        "shape": name,
        "windows": len(windows),
        "median_ms": float(np.exp(np.median(logs))),
        "within": statistics.median(statistics.stdev(np.log(window.visits_ms[name])) for window in windows),
        "between": wandered_by_lag(windows, logs),
        "log_pace": (np.median(logs) - logs).round(4).tolist(),
    }


def strayed_apart(windows: Sequence[Window]) -> dict[int, float]:
    """Return, by lag, how much the ratio of the two forwards wandered."""
    small, large = (logs_of(name, windows) for name in SHAPES)
    return wandered_by_lag(windows, large - small)


def logs_of(name: str, windows: Sequence[Window]) -> Floats:
    """Return the logarithm of each window's median milliseconds of a forward."""
    return np.log([statistics.median(window.visits_ms[name]) for window in windows])


def wandered_by_lag(windows: Sequence[Window], logs: Floats) -> dict[int, float]:
    """Return `wandered` by lag, of those lags that windows lie apart."""
    starts = np.array([window.start_s for window in windows])
    found = {lag: wandered(starts, logs, lag) for lag in LAGS_S}
    return {lag: rms for lag, rms in found.items() if rms is not None}


def wandered(times: Floats, logs: Floats, lag_s: float) -> float | None:
    """Return the root mean square of how much slower or faster windows so far apart were; None without any."""
    apart = times[None, :] - times[:, None]
    pairs = np.abs(apart - lag_s) <= NEAR * lag_s
    changes = (logs[None, :] - logs[:, None])[pairs]
    return float(np.sqrt(np.mean(changes**2))) if len(changes) else None


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
