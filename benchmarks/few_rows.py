"""Do our kernels pay on a CPU, and is the device's native number format its fastest?

Times one forward of the demo's target after 100 tokens, for 1 to 512 new tokens: in float32 and in bfloat16, each by
a library's products and by ours (`runtime/models/projection.py`, `runtime/models/bfloat16.py`). All take turns call by
call, and medians count. `holds` is true where, up to the rows they are meant for, our kernels are never slower by
more than 5 % and pay somewhere, and where over these numbers of tokens the native format takes the least time, by
geometric mean. Where the processor has no bfloat16 instruction, the library's products are ours in that format, and
nothing is claimed of it. Last comes one JSON object.

    python benchmarks/few_rows.py [--repeats 40]
"""

from __future__ import annotations

import argparse
import statistics
import time
from unittest.mock import patch

import torch

from spectune.demo.story import family_folder
from spectune.profiler.device import detect
from spectune.runtime.models import bfloat16, projection
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.kernels.bfloat16_dots import has_dots
from spectune.runtime.models.loading import load_model
from spectune.runtime.models.projection import MOST_ROWS
from spectune.runtime.shapes import ForwardShapes

from result import print_result  # isort: skip

TOKENS, CONTEXT, WARM_UP = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 512), 100, 3
OURS, BFLOAT16 = "float32", "bfloat16"
BY_LIBRARY = {OURS: f"{OURS} by the library", BFLOAT16: f"{BFLOAT16} by the library"}
MOST_SLOWER = 1.05


def main() -> int:
    """Time all of it; return 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    asked = parser.parse_args()
    device, folder = detect("cpu"), str(family_folder() / "target")
    with patch.object(projection, "few_rows_of", lambda _: None), patch.object(bfloat16, "is_for", lambda _: False):
        models = {name: load_model(folder, dtype=dtype) for dtype, name in BY_LIBRARY.items()}
    models |= {dtype: load_model(folder, dtype=dtype) for dtype in BY_LIBRARY}
    rows: list[dict[str, float]] = []
    for tokens in TOKENS:
        took = timed(models, tokens, asked.repeats)
        rows.append({"tokens": tokens, **took})
        print(f"{tokens:3} tokens  " + "  ".join(f"{name} {ms:7.2f} ms" for name, ms in took.items()), flush=True)
    few = [row for row in rows if row["tokens"] <= MOST_ROWS]
    native = OURS if device.native_dtype == "float32" else BFLOAT16
    means = {name: statistics.geometric_mean(row[name] for row in few) for name in (OURS, BFLOAT16)}
    checks = {
        f"{native} is the faster format ({means[OURS]:.2f} ms, bfloat16 {means[BFLOAT16]:.2f} ms)": means[native]
        == min(means.values()),
        **paying(few, OURS),
        **(paying(rows, BFLOAT16) if has_dots() else {}),
    }
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "few_rows",
        "device": device.label,
        "isa": device.isa,
        "torch": torch.__version__,
        "rows": rows,
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": [],
    }
    print_result(result)
    return 0 if result["holds"] else 1


def paying(rows: list[dict[str, float]], dtype: str) -> dict[str, bool]:
    """Return whether our kernels pay in a number format and are never slower by much, by what tells it."""
    ratios = [row[dtype] / row[BY_LIBRARY[dtype]] for row in rows]
    told = f"{min(ratios):.2f} to {max(ratios):.2f} of the time"
    return {
        f"{dtype}: our kernels pay and are never slower by 5 % ({told})": max(ratios) <= MOST_SLOWER
        and min(ratios) < 1.0
    }


def timed(models: dict[str, CausalModel], tokens: int, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each model's forward."""
    calls = {}
    for name, model in models.items():
        dtype, capacity = str(model.dtype), CONTEXT + tokens
        shapes = ForwardShapes(model, identity=name, dtype=dtype, role="verify", slots=1, capacity=capacity)
        calls[name] = shapes.prepare(1, CONTEXT, tokens)
    took: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= WARM_UP:
                took[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in took.items()}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    raise SystemExit(main())
