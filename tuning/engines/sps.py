"""SGLang's SPS table: steps per second by the tokens that all sequences verify together.

It cuts DSPARK's drafts (`--speculative-dspark-sps-table-path`). No plan drafts so, but the costs are the target's own.
"""

from __future__ import annotations

import json
import statistics

from ...profiler.records.surface import LatencySurface

FILE = "sps.json"
NOTE = (
    f"{FILE} is the target's latency as SGLang's SPS table (--speculative-dspark-sps-table-path), measured in "
    "spectune's own decoder; SGLang's own forwards may take longer or shorter"
)


def sps_table(verify: LatencySurface) -> str:
    """Return a target's measured forwards as a table by batch x tokens; of several with as many, the median."""
    found: dict[int, list[float]] = {}
    for cell in verify.measurements:
        if cell.failure is None:
            found.setdefault(cell.batch * cell.tokens, []).append(cell.median_ms)
    rates = {tokens: 1000.0 / statistics.median(ms) for tokens, ms in sorted(found.items())}
    return json.dumps({"sample_batch_tokens": list(rates), "sample_steps_per_sec": list(rates.values())}) + "\n"
