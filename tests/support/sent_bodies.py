"""An example of every JSON body that the API of a service takes or answers, nulls included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi.routing import APIRoute

from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.service.app import ROUTERS, create_app
from spectune.service.documents import document_of
from spectune.service.settings import ServiceSettings

REF = "#/components/schemas/"


@dataclass(frozen=True, kw_only=True)
class Described:
    """What an API says of itself.

    Attributes:
        document: of OpenAPI; examples in it lack their nulls.
        bodies: by "METHOD path status", or "request" instead: the name of the "schema", and an "example".
    """

    document: dict[str, Any]
    bodies: dict[str, dict[str, Any]]


def described() -> Described:
    """Return what this version's API says of itself."""
    routes = (route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute))
    bodies = {place: body for route in routes for place, body in _bodies(route)}
    with SqlStore(resolve_url("sqlite://")) as store:
        return Described(document=document_of(create_app(store, ServiceSettings())), bodies=bodies)


def _bodies(route: APIRoute) -> Iterator[tuple[str, dict[str, Any]]]:
    request = (route.openapi_extra or {}).get("requestBody", {})
    for place, body in {"request": request, **route.responses}.items():
        for content in body.get("content", {}).values():
            if (name := content["schema"].get("$ref", "")).startswith(REF):
                for method in route.methods or ():
                    told = {"schema": name.removeprefix(REF), "example": content["example"]}
                    yield f"{method} {route.path_format} {place}", told
