"""The OpenAPI document: what every operation takes and answers, with an example; no network is needed to read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ..db import wire
from ..db.exchange.published import ARRAY, Json, json_schema
from ..profiler.records.wire import to_json
from .problem import MEDIA_TYPE

BARE_ARRAY = {name: value for name, value in ARRAY.items() if name != "description"}
REFUSALS = {
    400: "The request is no HTTP that can be understood.",
    401: "No token, or one that is unknown, expired or revoked.",
    403: "The token is not enough.",
    404: "There is no such thing.",
    408: "The body took too long.",
    409: "It does not fit to what is stored.",
    413: "The body is too large.",
    415: "The body is not of the kind that is needed.",
    422: "A parameter or the body is invalid; the detail says where.",
    429: "Too many requests, or too much at once; Retry-After says when to ask again.",
    503: "The database is away; Retry-After says when to ask again.",
}
PROBLEM = wire.Problem(
    type="urn:spectune:problem:invalid",
    title="Unprocessable Entity",
    status=422,
    detail="what is wrong, the value seen, what to do",
    instance="/v1/plans",
    request_id="4f1d2c3b4a596877",
)


class Schemas:
    """The JSON Schemas of all records that travel, by name."""

    def __init__(self) -> None:
        self.definitions: Json = {}

    def of(self, kind: Any) -> Json:
        """Return the schema of a type; those of records are put among the definitions and referred to."""
        schema = json_schema(tuple[kind], BARE_ARRAY, ref_template="#/components/schemas/{model}")
        self.definitions.update(schema.pop("$defs", {}))
        found: Json = schema["prefixItems"][0]
        return found


SCHEMAS = Schemas()


def takes(kind: Any, example: object) -> Json:
    """Return how an operation with a JSON body is declared."""
    content = {"schema": SCHEMAS.of(kind), "example": _plain(example, kind)}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {"application/json": content}}}}


def takes_bytes(media_type: str, example: str) -> Json:
    """Return how an operation with another body is declared."""
    content = {"schema": {"type": "string", "format": "binary"}, "example": example}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {media_type: content}}}}


def gives(kind: Any, example: object, status: int = 200, about: str = "As asked.") -> dict[int | str, Json]:
    """Return the `responses` of an operation that answers a record, and its refusals."""
    content = {"schema": SCHEMAS.of(kind), "example": _plain(example, kind)}
    return {status: {"description": about, "content": {"application/json": content}}, **refusals()}


def gives_text(media_type: str, example: str, about: str = "As asked.") -> dict[int | str, Json]:
    """Return the `responses` of an operation that answers a text, and its refusals."""
    content = {"schema": {"type": "string"}, "example": example}
    return {200: {"description": about, "content": {media_type: content}}, **refusals()}


def gives_nothing(about: str = "Done.") -> dict[int | str, Json]:
    """Return the `responses` of an operation that answers with a status alone, and its refusals."""
    return {204: {"description": about}, **refusals()}


def not_modified() -> dict[int | str, Json]:
    """Return the answer to who has it already."""
    return {304: {"description": "The ETag of If-None-Match still holds."}}


def refusals() -> dict[int | str, Json]:
    """Return how any operation may refuse."""
    content = {MEDIA_TYPE: {"schema": SCHEMAS.of(wire.Problem), "example": _plain(PROBLEM, wire.Problem)}}
    return {status: {"description": about, "content": content} for status, about in REFUSALS.items()}


def document_of(app: FastAPI) -> Json:
    """Return the whole document, made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = document.setdefault("components", {})
        parts["schemas"] = dict(sorted((SCHEMAS.definitions | parts.get("schemas", {})).items()))
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = [] if path in ("/healthz", "/readyz") else [{"token": []}]
        app.openapi_schema = document
    return app.openapi_schema


def _plain(example: object, kind: Any) -> Any:  # Any: JSON
    if isinstance(example, Mapping | list | str) or example is None:
        return example
    return json.loads(to_json(example, kind))
