"""Strategies drawn at random, and what version 68f0804 computed of their bounds.

Those of kinds that are not registered are left out, and so are hybrids of such.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spectune.planner.strategies import REGISTRY

KEPT = Path(__file__).parents[1] / "data" / "bounds.json.gz"
EVERY: dict[str, list[Any]] = json.loads(gzip.decompress(KEPT.read_bytes()))  # by kind, pairs of fields and facts


def kinds_in(fields: Any) -> Iterator[str]:
    """Yield the kind of a strategy's fields, and those of strategies among them."""
    if isinstance(fields, dict):
        yield from [fields["kind"]] if "kind" in fields else []
        for value in fields.values():
            yield from kinds_in(value)


DRAWN = {
    kind: [(fields, facts) for fields, facts in drawn if {*kinds_in(fields)} <= REGISTRY.keys()]
    for kind, drawn in EVERY.items()
    if kind in REGISTRY
}
