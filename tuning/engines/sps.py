"""SGLang's SPS table: steps per second by the tokens that all sequences verify together.

It cuts DSPARK's drafts (`--speculative-dspark-sps-table-path`). No plan drafts so, but the costs are the target's own.
"""

from __future__ import annotations

import json
import math
import statistics

from ...profiler.records.measurement import HELD_OUT
from ...profiler.records.surface import LatencySurface

FILE = "sps.json"
NOTE = (
    f"{FILE} is the target's latency as SGLang's SPS table (--speculative-dspark-sps-table-path), measured in "
    "spectune's own decoder; SGLang's own forwards may take longer or shorter"
)


def sps_table(verify: LatencySurface) -> str:
    """Return what a target's forwards cost as a table by batch x tokens; of several with as many, the median.

    None costs more than one of more tokens per sequence, as which it could run: disturbed calls are left to neighbours.
    """
    found: dict[int, list[float]] = {}
    least: dict[tuple[int, int], float] = {}  # of as many tokens or more, by batch and context
    ran = [cell for cell in verify.measurements if cell.failure is None and cell.purpose != HELD_OUT]
    for cell in sorted(ran, key=lambda cell: -cell.tokens):
        place = (cell.batch, cell.context_tokens)
        least[place] = min(verify.latency(*place, cell.tokens).ms, least.get(place, math.inf))
        found.setdefault(cell.batch * cell.tokens, []).append(least[place])
    rates = {tokens: 1000.0 / statistics.median(ms) for tokens, ms in sorted(found.items())}
    return json.dumps({"sample_batch_tokens": list(rates), "sample_steps_per_sec": list(rates.values())}) + "\n"
