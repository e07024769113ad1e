"""What would a verification save that started from the states of the exit that drafted?

An exit runs the target's first E layers over the newest token and over every node that has children. A verification
runs them again over all nodes. Started from the exit's states it would run them over the nodes without children alone,
of a chain the last one. So what a chain of d runs twice is lower(d + 1) - lower(1), with lower(n) the first E layers of
the demo's target over n tokens, without a head. It is told as a share of the round: d forwards of the exit over one
token and one verification of d + 1. All forwards take turns call by call after 100 tokens; medians count.

It measures and judges nothing: `holds` is null. The last line is one JSON object.

    python benchmarks/exit_reuse.py [--repeats 40]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from spectune.demo.story import family_folder
from spectune.profiler.device import detect
from spectune.runtime.models.exit import DOWN, NORM, UP, ExitModel
from spectune.runtime.models.exit_shape import ExitShape
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model
from spectune.runtime.models.tapped import require_lean
from spectune.runtime.shapes import ForwardShapes

LENGTHS, EXITS, BATCHES, CONTEXT, WARM_UP = (2, 4, 8), (2, 4), (1, 4), 100, 3


class Lower(ExitModel):
    """The layers alone: states instead of logits."""

    def answer(self, step: ForwardInput, hidden: Tensor) -> Tensor:
        """Return the states as they are."""
        return hidden


def main() -> None:
    """Time all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    asked = parser.parse_args()
    device = detect("cpu")
    target = require_lean(load_model(str(family_folder() / "target"), dtype=device.native_dtype))
    rows = []
    for exit_layer in EXITS:
        for batch in BATCHES:
            took = timed(target, exit_layer, batch, asked.repeats)
            for length in LENGTHS:
                twice = took["lower", length + 1] - took["lower", 1]
                whole = length * took["exit", 1] + took["verify", length + 1]
                rows.append({"exit": exit_layer, "batch": batch, "chain": length, "twice_ms": twice, "round_ms": whole})
                told = f"{twice:6.2f} of {whole:7.2f} ms, {twice / whole:5.1%}"
                print(f"exit {exit_layer}  batch {batch}  chain {length}  {told}", flush=True)
    result = {"bench": "exit_reuse", "device": device.label, "dtype": device.native_dtype, "torch": torch.__version__}
    print(json.dumps(result | {"rows": rows, "holds": None}))


def timed(target: LeanModel, exit_layer: int, batch: int, repeats: int) -> dict[tuple[str, int], float]:
    """Return the median milliseconds of each forward, by what runs and the tokens it reads."""
    shape, like = ExitShape(layers=exit_layer, width=target.hidden, target=""), target.anatomy.embedding
    square = torch.zeros(target.hidden, target.hidden, dtype=like.dtype)
    weights = {NORM: torch.ones(target.hidden, dtype=like.dtype), UP: square, DOWN: square}
    models = {
        "verify": target,
        "exit": ExitModel(weights, shape, target),
        "lower": Lower(weights, shape, target),
    }
    fed = {"verify": [n + 1 for n in LENGTHS], "exit": [1], "lower": [1, *(n + 1 for n in LENGTHS)]}
    calls: dict[tuple[str, int], Callable[[], None]] = {}
    for runs, model in models.items():
        room = {"slots": batch, "capacity": CONTEXT + max(LENGTHS) + 1}
        shapes = ForwardShapes(model, identity=runs, dtype=str(model.dtype), role="verify", **room)
        calls |= {(runs, tokens): shapes.prepare(batch, CONTEXT, tokens) for tokens in fed[runs]}
    took: dict[tuple[str, int], list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= WARM_UP:
                took[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in took.items()}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
