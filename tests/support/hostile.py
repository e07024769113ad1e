"""Documents as an enemy, a broken disk or a careless script would send them, made from a good one."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Json = Any  # JSON values
Path = tuple[str | int, ...]

HOSTILE_TEXTS = (
    "",
    " ",
    "\0",
    "\x1b[2J",
    "\u202egnirts",
    "\ufeff",
    "\ud800",  # half of a pair: no text at all
    "\U0001f4a5" * 50,
    "x" * 100_000,
    "'; DROP TABLE spectune_plan; --",
    "../../../../etc/passwd",
    "http://169.254.169.254/latest/meta-data/",
    "<script>alert(1)</script>",
    "{{7*7}}${7*7}%n%s",
    "NaN",
    "null",
    "plain",
    "lookup",
)
HOSTILE_NUMBERS = (
    0,
    -0.0,
    -1,
    1,
    2,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**300,
    10**4000,
    0.1,
    1e-320,
    1.7976931348623157e308,
    float("nan"),
    float("inf"),
    float("-inf"),
)
HOSTILE_VALUES: tuple[Json, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"__class__": "Plan"},
    {"kind": "plain"},
    *HOSTILE_TEXTS,
    *HOSTILE_NUMBERS,
)
MARKER = "a place that nothing else names"
DEPTHS = (50, 990, 1_000, 5_000, 100_000)


def mutated(text: str, draw: random.Random) -> str:
    """Return the document with one to three faults, drawn at random; now and then it still means the same."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        with suppress(RecursionError, OverflowError, ValueError):  # one fault made it too deep or large for another
            text = draw.choice(FAULTS)(text, draw)
    return text


def _with_value(text: str, draw: random.Random) -> str:
    """Put a hostile value somewhere."""
    return _changed(text, draw, lambda _: _hostile(draw))


def _with_other_number(text: str, draw: random.Random) -> str:
    """Scale, negate or retype a value."""

    def other(value: Json) -> Json:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return draw.choice(HOSTILE_NUMBERS)
        changes = (lambda: -value, lambda: value * 1.5, lambda: value * 10**6, lambda: str(value), lambda: float(value))
        return draw.choice(changes)()

    return _changed(text, draw, other)


def _without(text: str, draw: random.Random) -> str:
    """Leave something out."""
    document = _parsed(text)
    path = _place(document, draw)
    if path:
        del _container(document, path)[path[-1]]
    return _written(document, text)


def _with_extra(text: str, draw: random.Random) -> str:
    """Add what does not belong there, or something twice."""
    document = _parsed(text)
    path = _place(document, draw)
    there = _container(document, path) if path else document
    if isinstance(there, dict):
        there[draw.choice(("extra", "", "__proto__", "id", "\ud800", "version"))] = _hostile(draw)
    elif isinstance(there, list) and there:
        there.append(copy.deepcopy(draw.choice(there)))
    return _written(document, text)


def _swapped(text: str, draw: random.Random) -> str:
    """Put one part where another stood."""
    document = _parsed(text)
    other = _place(document, draw)
    value = copy.deepcopy(_container(document, other)[other[-1]]) if other else None
    return _changed(text, draw, lambda _: value)


def _with_double_key(text: str, draw: random.Random) -> str:
    """Say a thing twice, in two ways: JSON does not forbid it."""
    document = _parsed(text)
    if not isinstance(document, dict) or not document:
        return text
    key = draw.choice(list(document))
    first = draw.choice((document[key], _hostile(draw)))
    return f"{{{json.dumps(key)}: {json.dumps(first)}, {json.dumps(document)[1:]}"


def _raw(text: str, draw: random.Random) -> str:
    """Put in what no writer of JSON writes: nested deeper than anybody should follow, or numbers without end."""
    depth = draw.choice(DEPTHS)
    nested = ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth)
    raw = draw.choice(
        (*nested, "9" * 5000, "1e999999", "-Infinity", "0123", "0x10", "'text'", "undefined", "1_000", "-")
    )
    return _changed(text, draw, lambda _: MARKER).replace(json.dumps(MARKER), raw)


def _cut(text: str, draw: random.Random) -> str:
    """Lose the end, the beginning or a piece from the middle."""
    one, other = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    return draw.choice((text[:one], text[one:], text[:one] + text[other:]))


def _scribbled(text: str, draw: random.Random) -> str:
    """Overwrite some characters."""
    letters = list(text)
    for _ in range(draw.choice((1, 1, 2, 20)) if letters else 0):
        letters[draw.randrange(len(letters))] = draw.choice(
            '"{}[]:,0-+.eE\\/ \0\n\ufffd\u2028é' + chr(draw.randrange(1, 127))
        )
    return "".join(letters)


def _framed(text: str, draw: random.Random) -> str:
    """Put something before or after it, or send something else altogether."""
    frames = (
        lambda: "\ufeff" + text,
        lambda: text + text,
        lambda: text + "\n\n ",
        lambda: f"[{text}]",
        lambda: json.dumps(text),
        lambda: "//\n" + text,
        lambda: draw.choice(("", "null", "0", "NaN", "{}", "[]", '""', "{", "\0", "-", "1e999999", "9" * 5000)),
    )
    return draw.choice(frames)()


def _respaced(text: str, draw: random.Random) -> str:
    """Write the same in other white space or order: a good document that is not ours byte for byte."""
    document = _parsed(text)
    return json.dumps(document, indent=draw.choice((None, 0, 3)), sort_keys=draw.random() < 0.5)


FAULTS: tuple[Callable[[str, random.Random], str], ...] = (
    _with_value,
    _with_value,
    _with_value,
    _with_other_number,
    _with_other_number,
    _without,
    _with_extra,
    _swapped,
    _with_double_key,
    _raw,
    _cut,
    _scribbled,
    _scribbled,
    _framed,
    _respaced,
)


def _hostile(draw: random.Random) -> Json:
    return copy.deepcopy(draw.choice(HOSTILE_VALUES))


def _changed(text: str, draw: random.Random, change: Callable[[Json], Json]) -> str:
    document = _parsed(text)
    path = _place(document, draw)
    if not path:
        return _written(change(document), text)
    container = _container(document, path)
    container[path[-1]] = change(container[path[-1]])
    return _written(document, text)


def _parsed(text: str) -> Json:
    """Return what the text says, or the text where it says nothing any more."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _written(document: Json, text: str) -> str:
    return json.dumps(document, indent=1) if isinstance(document, dict | list) or document != text else text


def _place(document: Json, draw: random.Random) -> Path:
    """Draw the way to any value of a document, parts of every depth alike; () where there is none."""
    path: Path = ()
    here = document
    while isinstance(here, dict | list) and here and (not path or draw.random() < 0.8):
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        path, here = (*path, key), here[key]
    return path


def _container(document: Json, path: Path) -> Json:
    for key in path[:-1]:
        document = document[key]
    return document
