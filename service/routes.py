"""The store's methods over HTTP: from each endpoint its route, with bounded parameters, examples and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import Parameter, Signature, getdoc
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response

from ..db.endpoint import ENDPOINTS, IN_PATH, Arguments, Endpoint
from ..db.jobs.receipts import Receipt
from ..db.wire import TOO_MANY_TIMINGS, Added, Document, NewMeasurements, Page
from . import examples
from .body import record_of
from .documents import gives, gives_nothing, not_modified, takes
from .parameters import (
    LONGEST_WORD,
    MOST_ID,
    USUAL_LIMIT,
    After,
    Hash,
    Key,
    KeyPath,
    Limit,
    Name,
    Number,
    Once,
    OptionalTemperature,
    PartName,
    Temperature,
    Word,
    page_by_id,
    page_by_place,
    whole,
)
from .plans import CHECKS, get_observations, get_plan, get_validations
from .problem import ProblemError, invalid, not_found, required
from .state import Service, service_of
from .writes import NOTHING, Prepare, Work, answer_of, receipt_of, written

MOST_TIMINGS = 200_000  # of the surfaces that one request reads
Names = Annotated[
    list[Annotated[str, Query(min_length=1, max_length=120)]], Query(alias="model", min_length=1, max_length=64)
]
States = Annotated[Literal["kept", "promoted", "retired", "restored"] | None, Query()]
IN_PATHS = {"plan_id": Number, "trace_id": Number, "profile_id": Number, "name": PartName}  # all others are keys
IN_QUERIES = {"models": Names, "state": States, "limit": Limit, "after": After}
KEYS = ("device", "device_kind", "target", "model")  # all other texts are words
TAGS = {"devices": "devices and models", "models": "devices and models", "plans": "plans"} | dict.fromkeys(
    ("measurements", "surfaces", "overheads"), "measurements"
)
UPLOADS: dict[re.Pattern[str], Prepare] = {}  # what finishing an upload does, by method and path
BY_HAND: dict[str, Callable[..., Any]] = {
    "plan": get_plan,
    "observations": get_observations,
    "validations": get_validations,
}


def add_endpoint(router: APIRouter, name: str, endpoint: Endpoint) -> None:
    """Add the route of a store's method."""
    kind = endpoint.gives or endpoint.returns
    place = endpoint.path.split("/")
    tag = "outcomes" if place[-1] in ("observations", "validations") else TAGS.get(place[2], "traces and records")
    facts: dict[str, Any] = {"name": endpoint.operation, "description": endpoint.about, "status_code": endpoint.status}
    facts["tags"] = [tag]
    if endpoint.verb != "GET":
        facts |= takes(endpoint.body, _example(endpoint, endpoint.body))
        facts["responses"] = gives_nothing(endpoint.said) if endpoint.status == 204 else _given(endpoint, kind or Added)
        facts |= {"is_news": endpoint.is_news, "may_be_large": endpoint.may_be_large}
        _add_write(router, endpoint.verb, endpoint.path, partial(_prepare, name, endpoint), **facts)
        return
    if kind is str:
        facts["responses"] = {**gives(dict[str, object], {"version": 2, "cells": []}), **not_modified()}
    else:
        facts["responses"] = _given(endpoint, _page_of(kind) if endpoint.is_list else kind)
    answer = BY_HAND.get(name) or _reader(name, endpoint)
    router.add_api_route(endpoint.path, answer, methods=["GET"], **facts)


def writes(router: APIRouter, verb: str, path: str, **facts: Any) -> Callable[[Prepare], Prepare]:
    """Declare a function that prepares a write, named and described as in the OpenAPI document."""

    def declare(prepare: Prepare) -> Prepare:
        _add_write(router, verb, path, prepare, name=prepare.__name__, description=getdoc(prepare), **facts)
        return prepare

    return declare


def _add_write(router: APIRouter, verb: str, path: str, prepare: Prepare, **facts: Any) -> None:
    """Add a route whose facts are the OpenAPI document's, and whether it `is_json`, `is_news` and `may_be_large`."""
    is_json, is_news = facts.pop("is_json", True), facts.pop("is_news", True)

    async def answer(request: Request, once: str | None = None, **place: Any) -> Response:
        return await written(request, partial(prepare, **place), is_json=is_json, is_news=is_news)

    whole_path = f"{router.prefix}{path}"
    _sign(answer, {name: _in_path(name) for name in IN_PATH.findall(path)}, once=(Once, None))
    if facts.pop("may_be_large", False):
        UPLOADS[re.compile(f"{verb} {IN_PATH.sub(_pattern, whole_path)}", re.DOTALL)] = prepare
    router.add_api_route(path, answer, methods=[verb], **facts)


def prepare_of_upload(target: str) -> Prepare:
    """Return what finishing an upload for a request prepares; ProblemError (422) where none may stand for it."""
    for pattern, prepare in UPLOADS.items():
        if (found := pattern.fullmatch(target)) is not None:
            return partial(prepare, **{name: _value(name, text) for name, text in found.groupdict().items()})
    raise invalid(f"an upload cannot stand for {target[:200]!r}; see docs/reference/http.md for those it can")


def _pattern(found: re.Match[str]) -> str:
    name = found[1]
    return f"(?P<{name}>{'[1-9][0-9]{0,9}' if IN_PATHS.get(name) is Number else '.+'})"


def _value(name: str, text: str) -> int | str:
    if IN_PATHS.get(name) is Number:
        if int(text) > MOST_ID:
            raise invalid(f"{text} is no number of anything here")
        return int(text)
    if len(unquote(text)) > LONGEST_WORD:
        raise invalid(f"a part's name has at most {LONGEST_WORD} characters, got {len(unquote(text))}")
    return unquote(text)


def _given(endpoint: Endpoint, kind: Any) -> dict[int | str, Any]:  # Any: a class; JSON
    is_page = get_origin(kind) is Page
    example = _example(endpoint, get_args(kind)[0] if is_page else kind)
    return gives(kind, Page(items=(example,)) if is_page else example, endpoint.status, endpoint.said)


def _page_of(kind: Any) -> Any:  # Any: a class
    return Page[kind]


def _example(endpoint: Endpoint, kind: object) -> object:
    is_validation = kind is Document and endpoint.path.endswith("validations")
    return examples.VALIDATED if is_validation else examples.OF[kind]


def _in_path(name: str) -> tuple[Any, Any]:
    return IN_PATHS.get(name, KeyPath), Parameter.empty


def _in_query(endpoint: Endpoint, name: str) -> tuple[Any, Any]:
    """Return the bounds of a parameter by its name, and what it is where it is not given."""
    is_needed = endpoint.parameters[name].default is Parameter.empty
    if name == "temperature":
        return (Temperature, 0.0) if is_needed else (OptionalTemperature, None)
    needed, optional = (Key, Hash) if name in KEYS else (Name, Word)
    bounds = IN_QUERIES.get(name, needed if is_needed else optional)
    return bounds, USUAL_LIMIT if name == "limit" else Parameter.empty if is_needed else None


def _sign(answer: Callable[..., Any], parameters: dict[str, tuple[Any, Any]], **last: tuple[Any, Any]) -> None:
    """Let FastAPI see which parameters there are: their bounds and defaults by name."""
    own = {"request": (Request, Parameter.empty), **parameters, **last}
    seen = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=bounds, default=default)
        for name, (bounds, default) in own.items()
    ]
    answer.__signature__ = Signature(seen, return_annotation=Response)  # type: ignore[attr-defined]


def _reader(name: str, endpoint: Endpoint) -> Callable[..., Any]:
    async def answer(request: Request, **asked: Any) -> Response:
        service = service_of(request)
        return answer_of(await service.read(_read, service, name, endpoint, asked))

    own = {
        each: _in_path(each) if each in endpoint.in_path else _in_query(endpoint, each) for each in endpoint.parameters
    }
    _sign(answer, own | ({"limit": (Limit, USUAL_LIMIT), "after": (After, None)} if endpoint.is_paged else {}))
    return answer


def _read(service: Service, name: str, endpoint: Endpoint, asked: Arguments) -> Receipt:
    """Return the answer of a method that reads, with pages of what may be long."""
    if name == "surfaces":
        _require_few_timings(service, asked)
    if name == "find_plan" and (asked["device"] is None) == (asked["device_kind"] is None):
        raise invalid("give device or device_kind, one of them")
    method, kind = getattr(service.store, name), endpoint.returns
    if endpoint.is_paged:
        return receipt_of(page_by_place(method(), **asked), kind=_page_of(kind))
    if "limit" in asked:
        rows = method(**{**asked, "limit": asked["limit"] + 1})
        return receipt_of(page_by_id(rows, asked["limit"]), kind=_page_of(kind))
    found = required(method, **asked) if endpoint.in_path and not endpoint.is_optional else method(**asked)
    if found is None:
        raise not_found(endpoint.absent.format(**asked))
    return receipt_of(whole(found), kind=_page_of(kind)) if endpoint.is_list else receipt_of(found)


def _require_few_timings(service: Service, wanted: Arguments) -> None:
    timings = service.store.timings_of(**wanted)
    if timings > MOST_TIMINGS:
        told = f"these surfaces have {timings} timings, more than {MOST_TIMINGS}; name device, model, dtype and role"
        raise ProblemError(422, TOO_MANY_TIMINGS, told)


def _prepare(name: str, endpoint: Endpoint, service: Service, caller: str, body: bytes, **place: Any) -> Work:
    """Check what is sent, and return what a method that writes does with it."""
    sent = record_of(endpoint.body, body)
    for own, given in place.items():
        if own not in endpoint.parameters and getattr(sent, own) != given:
            what = endpoint.path.split("/")[2].removesuffix("s")
            told = f"the {what} has {own} {getattr(sent, own)}, the path says {given}; correct the path"
            raise invalid(told)
    if (check := CHECKS.get(endpoint.body)) is not None:
        check(name, sent, place)
    if endpoint.sends is None:
        (only,) = endpoint.parameters
        arguments = {only: sent}
    else:
        arguments = place | {field.name: getattr(sent, field.name) for field in fields(sent)}
        arguments |= {"by": arguments["by"] or caller} if "by" in arguments else {}
    return partial(_write, service, name, endpoint, arguments)


def _write(service: Service, name: str, endpoint: Endpoint, arguments: Arguments) -> Receipt:
    store = service.store
    if "plan_id" in arguments:
        required(store.plan_row, arguments["plan_id"])
    told = getattr(store, name)(**arguments)
    if endpoint.status == 204:
        return NOTHING
    if endpoint.gives is not None:
        told = store.plan_row(arguments.get("plan_id", told))
    if told is None:
        told = Added(added=len(arguments["measurements"]) if endpoint.sends is NewMeasurements else 1)
    return receipt_of(told, endpoint.status)


records, plans = APIRouter(), APIRouter()
for own_name, own_endpoint in ENDPOINTS.items():
    add_endpoint(plans if own_endpoint.path.startswith("/v1/plans") else records, own_name, own_endpoint)
