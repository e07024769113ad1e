"""What lies in nested arguments of an operation: torch's own walk takes longer than most of the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NESTED = (tuple, list, dict)


def mapped(change: Callable[[Any], Any], one: Any) -> Any:
    """Return tuples, lists and dicts as they are nested, whatever else lies in them changed."""
    kind = type(one)
    if kind is tuple:
        return tuple([mapped(change, each) if type(each) in NESTED else change(each) for each in one])
    if kind is list:
        return [mapped(change, each) if type(each) in NESTED else change(each) for each in one]
    if kind is dict:
        return {name: mapped(change, each) for name, each in one.items()}
    return change(one)


def leaves_of(*nested: Any) -> list[Any]:
    """Return what lies in tuples, lists and dicts, in order."""
    found: list[Any] = []
    for one in nested:
        _gather(one, found)
    return found


def _gather(one: Any, found: list[Any]) -> None:
    kind = type(one)
    if kind is tuple or kind is list:
        for each in one:
            if type(each) in NESTED:
                _gather(each, found)
            else:
                found.append(each)
    elif kind is dict:
        for each in one.values():
            _gather(each, found)
    else:
        found.append(one)
