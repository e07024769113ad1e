"""What does verifying from the states of the exit that drafted save?

An exit runs the target's first E layers over the newest token and over every drafted one but the last. A verification
of the whole runs them again over all d + 1 nodes of a chain of d; one from the exit's states runs them over the last
alone, then the other layers over all. Both are timed as a decoder runs them, and beside them what the second need not
run: the first E layers over d + 1 tokens less those over one, without a head. All forwards take turns call by call
after 100 tokens; medians count. A round is d forwards of the exit over one token and one verification.

It measures and judges nothing: `holds` is null. The last line is one JSON object.

    python benchmarks/exit_reuse.py [--repeats 40]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from spectune.demo.story import family_folder
from spectune.profiler.device import detect
from spectune.runtime.models.drafter_shapes import ExitShape
from spectune.runtime.models.exit import DOWN, NORM, UP, ExitModel
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model
from spectune.runtime.models.tapped import require_lean
from spectune.runtime.shapes import ForwardShapes, ResumedShapes

from result import print_result  # isort: skip

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
                row = {"exit": exit_layer, "batch": batch, "chain": length, **row_of(took, length)}
                rows.append(row)
                told = f"verified whole {row['whole_ms']:6.2f} ms, from the states {row['resumed_ms']:6.2f} ms"
                saved = f"{row['saved_share']:6.1%} of a round saved, read twice {row['twice_ms']:5.2f} ms"
                print(f"exit {exit_layer}  batch {batch}  chain {length}  {told}: {saved}", flush=True)
    result = {"bench": "exit_reuse", "device": device.label, "dtype": device.native_dtype, "torch": torch.__version__}
    print_result(result | {"rows": rows, "holds": None})


def row_of(took: dict[tuple[str, int], float], length: int) -> dict[str, float]:
    """Return what a chain's verification takes both ways, and the share of a round that one from the states saves."""
    whole, resumed = took["verify", length + 1], took["resume", length + 1]
    round_ms = length * took["exit", 1] + whole
    return {
        "whole_ms": whole,
        "resumed_ms": resumed,
        "round_ms": round_ms,
        "saved_share": (whole - resumed) / round_ms,
        "twice_ms": took["lower", length + 1] - took["lower", 1],
    }


def timed(target: LeanModel, exit_layer: int, batch: int, repeats: int) -> dict[tuple[str, int], float]:
    """Return the median milliseconds of each forward, by what runs and the tokens it reads."""
    shape, like = ExitShape(layers=exit_layer, width=target.hidden, target=""), target.anatomy.embedding
    square = torch.zeros(target.hidden, target.hidden, dtype=like.dtype)
    weights = {NORM: torch.ones(target.hidden, dtype=like.dtype), UP: square, DOWN: square}
    own = ExitModel(weights, shape, target)
    models = {"verify": target, "exit": own, "lower": Lower(weights, shape, target)}
    verified = [n + 1 for n in LENGTHS]
    fed = {"verify": verified, "resume": verified, "exit": [1], "lower": [1, *verified]}
    calls: dict[tuple[str, int], Callable[[], None]] = {}
    dtype, capacity = str(target.dtype), CONTEXT + max(LENGTHS) + 1
    for runs in fed:
        if runs == "resume":
            shapes: ForwardShapes = ResumedShapes(own, identity=runs, dtype=dtype, slots=batch, capacity=capacity)
        else:
            shapes = ForwardShapes(
                models[runs], identity=runs, dtype=dtype, role="verify", slots=batch, capacity=capacity
            )
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
