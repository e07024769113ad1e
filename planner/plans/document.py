"""A plan as JSON: one document in which every cell also carries what readers look for first.

`drafters`, `predicted_tokens_per_s`, `interval` and `predicted_speedup` repeat the record. A document where they
disagree with it was edited by hand and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...errors import PlanError, SpectuneError
from ...profiler.records.wire import from_json, to_json
from ..strategies import POLICY_KINDS
from .plan import LOSSY_VERSION, VERSION, Plan, PlanCell

RARE = ("quality", "latency_ms", "priced_at")  # left out where they say nothing: versions that lack them read the rest
KEYS = ("version", "device", "target", "cells", "provenance")

Json = dict[str, Any]  # JSON values


def plan_to_json(plan: Plan) -> str:
    """Return the plan as an indented JSON document; numbers come back bit for bit."""
    document = json.loads(to_json(plan))
    for entry, cell in zip(document["cells"], plan.cells, strict=True):
        entry.update(_headline(cell))
        for name in RARE:
            if entry[name] is None:
                del entry[name]
    first = {"version": document.pop("version")} | ({"lossy": True} if plan.is_lossy else {})
    return json.dumps({**first, **document}, indent=1)


def plan_from_json(text: str) -> Plan:
    """Return the plan of a document.

    PlanError, one line: no JSON, another version, or a part that is missing, unknown, mistyped or contradicts the rest.
    """
    document = _read(text)
    _require_known_kinds(document["cells"])
    said_lossy = document.pop("lossy", False)
    headlines = [_without_headline(entry, place) for place, entry in enumerate(document["cells"])]
    try:
        plan = from_json(Plan, json.dumps(document, allow_nan=False))
    except (SpectuneError, ValueError, RecursionError) as error:  # ValueError: a number beyond all floats
        raise PlanError(f"this plan cannot be read: {' '.join(str(error).split())}") from error
    if said_lossy is not plan.is_lossy:
        raise PlanError(f"the plan says lossy: {said_lossy!r}, and its cells say otherwise; make the plan again")
    for place, (cell, seen) in enumerate(zip(plan.cells, headlines, strict=True)):
        if seen != _headline(cell):
            raise PlanError(f"cell {place} of the plan contradicts itself: it says {seen}; make the plan again")
    return plan


def _headline(cell: PlanCell) -> Json:
    label = {"lossy": True} if cell.is_lossy else {}
    return {
        **label,
        "drafters": list(cell.drafters),
        "predicted_tokens_per_s": cell.prediction.tokens_per_s,
        "interval": [cell.prediction.low, cell.prediction.high],
        "predicted_speedup": cell.prediction.speedup_over_plain,
    }


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _read(text: str) -> Json:
    try:
        document = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or an integer of thousands of digits
        raise PlanError(f"a plan must be JSON ({error}); write one with spectune plan -o FILE") from error
    if not isinstance(document, dict):
        raise PlanError(
            f"a plan must be a JSON object, got {type(document).__name__}; write one with spectune plan -o FILE"
        )
    missing = [key for key in KEYS if key not in document]
    if missing:
        raise PlanError(f"the plan lacks {', '.join(missing)}; make the plan again")
    if document["version"] not in (VERSION, LOSSY_VERSION):
        raise PlanError(
            f"this is a plan of version {document['version']!r}, spectune reads {VERSION}; make the plan again"
        )
    if not isinstance(document["cells"], list) or not all(isinstance(entry, dict) for entry in document["cells"]):
        raise PlanError("the plan's cells must be a list of objects; make the plan again")
    return document


def _require_known_kinds(cells: list[Json]) -> None:
    for place, entry in enumerate(cells):
        others = entry.get("alternatives")
        ways = [entry, entry.get("runner_up"), *(others if isinstance(others, list) else ())]
        for kind in (kind for way in ways if isinstance(way, dict) for kind in _kinds(way.get("policy"))):
            if kind not in POLICY_KINDS:
                raise PlanError(
                    f"cell {place} of the plan has a policy of the unknown kind {kind!r}; known are "
                    f"{', '.join(POLICY_KINDS)}; make the plan again, or install the version of spectune that made it"
                )


def _kinds(policy: object) -> Iterator[object]:
    if isinstance(policy, list):
        for part in policy:
            yield from _kinds(part)
    elif isinstance(policy, dict):
        if "kind" in policy:
            yield policy["kind"]
        for part in policy.values():
            yield from _kinds(part)


def _without_headline(entry: Json, place: int) -> Json:
    names = ("drafters", "predicted_tokens_per_s", "interval", "predicted_speedup")
    missing = [name for name in names if name not in entry]
    if missing:
        raise PlanError(f"cell {place} of the plan lacks {', '.join(missing)}; make the plan again")
    label = {"lossy": entry.pop("lossy")} if "lossy" in entry else {}
    return {**label, **{name: entry.pop(name) for name in names}}
