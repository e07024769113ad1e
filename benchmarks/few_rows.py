"""Does turning products of few rows round pay, and is the device's native number format its fastest?

Times one forward of the demo's target after 100 tokens, for 1 to 32 new tokens: in float32 with products as they stand
and turned round (`runtime/models/few_rows.py`), and in bfloat16. All three take turns call by call; medians count.
`holds` is true where turning is never slower by more than 5 % and pays somewhere, and where over all numbers of tokens
the native format takes the least time, by geometric mean. On a device whose products are not turned there is nothing
to compare: that is in `not_run`. The last line is one JSON object.

    python benchmarks/few_rows.py [--repeats 60]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from unittest.mock import patch

import torch

from spectune.demo.story import family_folder
from spectune.profiler.device import detect
from spectune.runtime.models import projection
from spectune.runtime.models.few_rows import multiplies_by_mkl_on_amd
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.loading import load_model
from spectune.runtime.shapes import ForwardShapes

TOKENS, CONTEXT, WARM_UP = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 100, 3
STRAIGHT, TURNED, BFLOAT16 = "float32", "float32 turned", "bfloat16"
MOST_SLOWER = 1.05


def main() -> int:
    """Time all of it; return 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    asked = parser.parse_args()
    device, folder = detect("cpu"), str(family_folder() / "target")
    with patch.object(projection, "turned_rows", lambda _: range(0)):
        models = {STRAIGHT: load_model(folder, dtype="float32")}
    models |= {TURNED: load_model(folder, dtype="float32"), BFLOAT16: load_model(folder, dtype="bfloat16")}
    rows = []
    for tokens in TOKENS:
        took = timed(models, tokens, asked.repeats)
        rows.append({"tokens": tokens, **took})
        print(f"{tokens:3} tokens  " + "  ".join(f"{name} {ms:7.2f} ms" for name, ms in took.items()), flush=True)
    native = TURNED if device.native_dtype == "float32" else BFLOAT16
    means = {name: statistics.geometric_mean(row[name] for row in rows) for name in (TURNED, BFLOAT16)}
    checks = {f"{native} is the faster format ({means})": means[native] == min(means.values())}
    is_turned = multiplies_by_mkl_on_amd()
    if is_turned:
        ratios = [row[TURNED] / row[STRAIGHT] for row in rows]
        told = f"{min(ratios):.2f} to {max(ratios):.2f} of the time"
        checks[f"turning pays and is never slower by 5 % ({told})"] = max(ratios) <= MOST_SLOWER and min(ratios) < 1.0
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
        "not_run": [] if is_turned else ["turning: this device multiplies straight"],
    }
    print(json.dumps(result))
    return 0 if result["holds"] else 1


def timed(models: dict[str, CausalModel], tokens: int, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each model's forward."""
    calls = {}
    for name, model in models.items():
        room = {"slots": 1, "capacity": CONTEXT + tokens}
        shapes = ForwardShapes(model, identity=name, dtype=str(model.dtype), role="verify", **room)
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
