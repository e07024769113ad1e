"""YAML of nested mappings with plain values: all that an engine's options need."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

Yaml = Mapping[str, object]


def yaml_of(values: Yaml) -> str:
    """Return a mapping as YAML text; values are mappings, texts, numbers and booleans, quoted as in JSON."""
    return "\n".join(_lines(values, "")) + "\n"


def _lines(values: Mapping[str, object], indent: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {json.dumps(value)}"
