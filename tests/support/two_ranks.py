"""What both ranks of a tensor-parallel test run; rank 0 writes what it saw into the file named last."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from spectune.errors import MeasurementError
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.parallel import leave, load_parallel, rank
from spectune.runtime.shapes.forwards import ForwardShapes
from spectune.runtime.shapes.lockstep import LockstepShapes, follow

TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
SHAPES = [(1, 0, 4), (2, 20, 1), (1, 0, 1), (2, 20, 8), (1, 0, 4)]  # one of them what all ranks begin with


def text_logits(model: CausalModel) -> list[float]:
    """Return the logits behind the last token of a text fed in two pieces."""
    cache, found = model.new_cache(1, 16), torch.empty(0)
    for start, end in ((0, 5), (5, 8)):
        visible = np.tri(end - start, dtype=np.bool_)[None]
        places = np.arange(end - start)
        step = lay_out(np.array([TEXT[start:end]]), places, [start], visible, dtype=model.dtype, device=model.device)
        found = model.forward(step, cache)[0, -1]
    return [float(logit) for logit in found]


def measured(runner: LockstepShapes) -> str:
    """Run every shape, some twice, some old ones again, and one that does not fit; return its refusal."""
    calls = [runner.prepare(*shape) for shape in SHAPES]
    for call in (*calls, calls[0], calls[0], calls[3], calls[3]):
        call()
    try:
        runner.prepare(9, 0, 1)
    except MeasurementError as error:
        return str(error)
    return ""


def main(location: str, result: str) -> None:
    """Load half a model, and run its forwards beside the other half's."""
    torch.set_num_threads(1)
    model = load_parallel(location, dtype="float64", ranks=2)
    logits = text_logits(model)
    forwards = ForwardShapes(model, identity="model", dtype="float64", role="verify", slots=2, capacity=40)
    if rank() == 0:
        runner = LockstepShapes(forwards)
        refusal = measured(runner)
        runner.close()
        width = model.new_cache(1, 1).states.shape[-1]
        seen = {"logits": logits, "regime": runner.regime, "refusal": refusal, "width": width}
        Path(result).write_text(json.dumps(seen))
    else:
        Path(result + ".follower").write_text(json.dumps(follow(forwards)))
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
