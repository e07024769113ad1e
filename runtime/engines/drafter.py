"""What an engine has to know of a plan's drafters: where each lies, and whether it is a head."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...planner.plans.plan import Plan
from .setting import DrafterForm, EngineDrafter

JOINS = "fc.weight"  # a tensor that heads of EAGLE's forms have and language models do not
IMITATES = "imitation.up.weight"  # one that exits of the target's own layers have, which no engine runs
FORMS: Mapping[str, DrafterForm] = {"midlayer.": "eagle3", "layers.0.": "eagle"}  # how their one layer begins
MOST_HEADER_BYTES = 2**27


def engine_drafters(plan: Plan, places: Mapping[str, Path]) -> dict[str, EngineDrafter]:
    """Return a plan's drafters by name.

    Args:
        plan: whose.
        places: where drafters lie now; where they lay when they were profiled for all others.
    """
    follows_text = {trace.drafter: trace.prefix_exact for trace in plan.provenance.traces}
    found = {}
    for name, model in plan.drafters:
        path = str(places.get(name, model.location))
        found[name] = EngineDrafter(name=name, path=path, form=drafter_form(Path(path), follows_text.get(name, True)))
    return found


def drafter_form(path: Path, follows_text: bool) -> DrafterForm:
    """Return what kind of drafter lies at a path; by its tensors' names where they can be read.

    Args:
        path: a folder of safetensors, or any other file of a model.
        follows_text: whether its drafts depend on the text alone; a head's and a block drafter's do not.
    """
    names = set(_tensor_names(path))
    if JOINS in names:
        return next((form for start, form in FORMS.items() if any(n.startswith(start) for n in names)), "unknown")
    if IMITATES in names:
        return "unknown"
    return "model" if follows_text else "unknown"  # a block drafter is of no engine's form


def _tensor_names(path: Path) -> Iterator[str]:
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else ():
        with file.open("rb") as opened:
            start = opened.read(8)
            size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if 0 < size <= MOST_HEADER_BYTES:
                yield from json.loads(opened.read(size))
