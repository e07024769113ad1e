"""The sandbox in which chat templates are written: what they may call, and with which names.

Source: transformers' `render_jinja_template`, whose environment, filters and functions templates are written for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class ChatSandbox(ImmutableSandboxedEnvironment):
    """An environment for templates of strangers."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _json
        self.globals |= {"dict": _Dicts(), "namespace": _PublicNames, "raise_exception": _refused, "strftime_now": _now}

    def is_safe_callable(self, obj: Any) -> bool:
        """Say whether a template may call this; jinja2 calls a `__call__` that lies in an instance without asking."""
        return callable(obj) and super().is_safe_callable(obj)


class _Generation(Extension):
    """A block around what a model said, of which only trainers take note."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dicts:
    """`dict` without its methods that change what they are given."""

    def __call__(self, /, *pairs: Any, **named: Any) -> dict[Any, Any]:
        return dict(*pairs, **named)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _PublicNames(Namespace):
    """A namespace without names that Python gives a meaning."""

    def __init__(self, given: Any = (), /, **more: Any) -> None:
        super().__init__()
        for name, value in dict(given, **more).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace takes no name that begins with an underscore, such as {name}")
        super().__setitem__(name, value)


def _json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:  # jinja2's own escapes HTML, and json's would call what it is given
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refused(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
