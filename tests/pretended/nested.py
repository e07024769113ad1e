"""What lies in nested arguments of an operation: torch's own walk takes longer than most of the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mapped(change: Callable[[Any], Any], one: Any) -> Any:
    """Return tuples, lists and dicts as they are nested, whatever else lies in them changed."""
    kind = type(one)
    if kind is tuple:
        return tuple([mapped(change, each) for each in one])
    if kind is list:
        return [mapped(change, each) for each in one]
    if kind is dict:
        return {name: mapped(change, each) for name, each in one.items()}
    return change(one)


def leaves_of(*nested: Any) -> list[Any]:
    """Return what lies in tuples, lists and dicts, in order."""
    found: list[Any] = []
    waiting = list(nested[::-1])
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind is tuple or kind is list:
            waiting.extend(one[::-1])
        elif kind is dict:
            waiting.extend([*one.values()][::-1])
        else:
            found.append(one)
    return found
