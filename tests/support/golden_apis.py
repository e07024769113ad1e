"""Goldens of the two services: the store's OpenAPI document, and what a target's endpoint takes and answers.

The endpoint describes itself nowhere. Its golden holds its routes, the JSON Schemas of what is asked, and the keys of
what a tiny model answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.routing import Route
from starlette.testclient import TestClient

from spectune.service.text.app import TextEndpoint
from spectune.service.text.asked import AskedChat, AskedCompletion

from ..service.text.test_text import MODEL, SETTINGS, generator, served
from .golden_screens import lines
from .sent_bodies import described

ASKED = (AskedCompletion, AskedChat)
PROMPT: dict[str, Any] = {"model": MODEL, "prompt": "to be", "max_tokens": 3, "seed": 1}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "be"}], "max_tokens": 3, "seed": 1}
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
POSTED: dict[str, tuple[str, dict[str, Any]]] = {
    "a completion": ("/v1/completions", PROMPT),
    "a streamed completion": ("/v1/completions", PROMPT | STREAMED),
    "a chat": ("/v1/chat/completions", CHAT),
    "a streamed chat": ("/v1/chat/completions", CHAT | STREAMED),
    "a refusal": ("/v1/completions", PROMPT | {"max_tokens": 0}),
    "another model": ("/v1/completions", PROMPT | {"model": "another"}),
}
GOT = ("/v1/models", "/health")


def openapi_golden() -> dict[str, str]:
    """Return the document of the store's service, but for the version that it names."""
    document = described().document
    document["info"]["version"] = "VERSION"
    return {"openapi.json.gz": json.dumps(document, indent=1)}


def endpoint_golden() -> dict[str, str]:
    """Return the routes of a target's endpoint, what it is asked, and what it answers."""
    app = TextEndpoint(generator(), SETTINGS).app
    routes = [
        f"{' '.join(sorted(route.methods or ()))} {route.path}\n" for route in app.routes if isinstance(route, Route)
    ]
    schemas = [f"{kind.__name__} {json.dumps(kind.model_json_schema(), indent=1)}\n" for kind in ASKED]
    with served() as client:
        parts = [*routes, *schemas, *answers(client), *metrics(client)]
    return {"endpoint.txt": "".join(parts)}


def answers(client: TestClient) -> Iterator[str]:
    """Yield the keys of what is answered."""
    for path in GOT:
        yield f"{path}\n{''.join(lines(client.get(path).json()))}"
    for name, (path, body) in POSTED.items():
        answer = client.post(path, json=body)
        told = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        parts = [json.loads(line) for line in told if line != "[DONE]"] if "stream" in body else answer.json()
        end = f"{told[-1]}\n" if "stream" in body else ""
        yield f"{name}: {answer.status_code} {answer.headers['content-type']}\n{''.join(lines(parts))}{end}"


def metrics(client: TestClient) -> Iterator[str]:
    """Yield what is counted of requests, without the counts."""
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("#"):
            yield f"{line}\n"
