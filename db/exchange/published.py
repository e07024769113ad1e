"""The JSON Schemas of what stores exchange, one per kind; `python -m spectune.db.exchange.published` writes them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from ...planner.plans.plan import Plan
from .records import KINDS

Json = dict[str, Any]  # JSON values
DIALECT = "https://json-schema.org/draft/2020-12/schema"
ARRAY: Json = {
    "type": "object",
    "description": "an array: its shape, and its zlib-compressed little-endian bytes in base64",
    "properties": {
        "dtype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "data": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["dtype", "shape", "data"],
    "additionalProperties": False,
}


def schema_of(kind: str) -> Json:
    """Return the JSON Schema of one kind of record, e.g. "surface" or "plan"."""
    record: Any = KINDS[kind]
    whole = json_schema(tuple[record])
    (item,) = whole["prefixItems"]
    definitions = whole.get("$defs", {})
    body = definitions.pop(item["$ref"].rpartition("/")[2])
    if kind == "plan":
        plan = _without_words(json_schema(Plan, is_open=True))  # a document repeats the headline of each cell
        definitions |= plan.pop("$defs") | {"Plan": plan}
        body["properties"]["plan"] = {"anyOf": [{"$ref": "#/$defs/Plan"}, {"type": "null"}], "default": None}
    facts = {name: value for name, value in body.items() if name != "title"}
    return {"$schema": DIALECT, "title": f"spectune {kind}", **facts, "$defs": definitions}


def json_schema(kind: Any, array: Json = ARRAY, is_open: bool = False, **facts: Any) -> Json:  # Any: a type
    """Return the JSON Schema of a type as records are read, or where `is_open` with further fields."""

    class WithArrays(GenerateJsonSchema):
        def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
            return dict(array)

    config = None if is_open else ConfigDict(extra="forbid", strict=True)
    return TypeAdapter(kind, config=config).json_schema(schema_generator=WithArrays, **facts)


def _without_words(schema: Any) -> Any:  # Any: a JSON value
    """Return a schema without descriptions: the planner's docstrings may change more often than its records."""
    if isinstance(schema, dict):
        items = ((name, value) for name, value in schema.items() if name != "description" or not isinstance(value, str))
        return {name: _without_words(value) for name, value in items}
    return [_without_words(each) for each in schema] if isinstance(schema, list) else schema


def schema_text(kind: str) -> str:
    """Return a schema as its file holds it."""
    return json.dumps(schema_of(kind), indent=1) + "\n"


def published(kind: str) -> str:
    """Return the schema that came with this version."""
    return (files("spectune.db") / "schemas" / f"{kind}.json").read_text(encoding="utf-8")


def write_schemas(folder: Path) -> None:
    """Write every schema to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        (folder / f"{kind}.json").write_text(schema_text(kind), encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(__file__).parents[1] / "schemas")
