"""`resolve` over HTTP: the plan for a device, and how well it fits."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from fastapi import APIRouter, Request, Response

from ..db.wire import Resolved, Resolving, is_known
from ..errors import PlanError
from ..profiler.records.device import Device
from ..profiler.records.match import DeviceMatch
from . import examples
from .body import read_body, record_of, require_json
from .documents import SCHEMAS, gives, not_modified, takes
from .parameters import LONGEST_WORD, Key, KnownTag, Temperature, Word
from .problem import conflict, invalid, not_found
from .resolver import Question, Ready
from .settings import KIB
from .state import Service, service_of

router = APIRouter(prefix="/v1/resolve", tags=["resolve"])

MOST_BYTES = 256 * KIB  # of a question; a device takes 2 KiB, and it is read where everybody is answered
ANSWER = gives(
    Resolved,
    {
        "plan_id": 7,
        "rung": "this device",
        "match": asdict(DeviceMatch(grade="same")),
        "passed": [],
        "plan": {"version": 2, "cells": []},
    },
)
PLAN = {"additionalProperties": True, "title": "Plan", "type": "object"}  # no text: an answer holds the plan itself
SCHEMAS.definitions["Resolved"]["properties"]["plan"] = PLAN
ASKED = Resolving(device=examples.DEVICE, target=examples.MODEL.key)


@router.get("", responses={**ANSWER, **not_modified()})
async def get_resolved(
    request: Request,
    device: Key,
    target: Key,
    workload: Word = None,
    temperature: Temperature = 0.0,
    dtype: Word = None,
    known: KnownTag = None,
) -> Response:
    """Return the best plan for a device the store knows; cached until the target's plans change."""
    service = service_of(request)
    await service.freshen(service.index)
    found = service.index.devices.get(device)
    if found is None:
        raise not_found(f"the store knows no device {device!r}; PUT it to /v1/devices, or POST it to /v1/resolve")
    asked = _question(found, target, workload, temperature, dtype)
    ready = await _answered(service, asked)
    service.resolver.remember(request.scope["query_string"], asked)
    headers = {"ETag": ready.tag.decode(), "Cache-Control": "no-cache"}
    if is_known(known, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(ready.body, headers=headers, media_type="application/json")


@router.post("", responses=ANSWER, **takes(Resolving, ASKED))
async def post_resolved(request: Request) -> Response:
    """Return the best plan for a device that is described here."""
    require_json(request)
    service = service_of(request)
    bounded = replace(service.settings, body_bytes=min(service.settings.body_bytes, MOST_BYTES))
    wanted = record_of(Resolving, await read_body(request, bounded))
    named = {"target": wanted.target, "workload": wanted.workload or "", "dtype": wanted.dtype or ""}
    for what, name in named.items():
        if len(name) > LONGEST_WORD:
            raise invalid(f"a {what} has at most {LONGEST_WORD} characters, got {len(name)}")
    if not 0.0 <= wanted.temperature < math.inf:
        raise invalid(f"a temperature is finite and at least 0, got {wanted.temperature}")
    await service.freshen(service.index)
    asked = _question(wanted.device, wanted.target, wanted.workload, wanted.temperature, wanted.dtype)
    ready = await _answered(service, asked)
    return Response(ready.body, headers={"ETag": ready.tag.decode()}, media_type="application/json")


def _question(device: Device, target: str, workload: str | None, temperature: float, dtype: str | None) -> Question:
    """Return a question in which empty words mean any."""
    return Question(
        device=device, target=target, workload=workload or None, temperature=temperature, dtype=dtype or None
    )


async def _answered(service: Service, asked: Question) -> Ready:
    is_kept = service.resolver.is_kept(asked)
    service.metrics.events["resolve_cache_hits" if is_kept else "resolve_cache_misses"] += 1
    try:
        return await service.resolve(service.resolver.answer, asked)
    except PlanError as error:
        raise conflict(f"there are plans, and none can be used: {error}") from error
