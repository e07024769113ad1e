"""How a store's method travels: said once where it is declared, read by the client and by the service's routes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

Method = TypeVar("Method", bound=Callable[..., Any])
Verb = Literal["GET", "POST", "PUT"]
Arguments = dict[str, Any]  # of one call, by name
IN_PATH = re.compile(r"{(\w+)(?::path)?}")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of a store over HTTP; `sends` and `gives` are classes of records."""

    declared: Callable[..., Any]
    verb: Verb
    path: str  # names arguments, or fields of the record that is sent, in braces
    operation: str
    sends: Any = None  # what the other arguments make; where None, a single one is that record
    gives: Any = None  # the answer's, where it is another one than the method returns: then it has that or names it
    status: int = 200
    said: str = "As asked."  # of a success, in the OpenAPI document
    scope: Literal["read", "write", "admin"] = "read"  # that the caller's token needs
    absent: str = ""  # what a service says where the method returns None, with the names of arguments in braces
    is_paged: bool = False  # whether a list without numbers travels in pages
    is_cached: bool = False  # whether a client keeps the answer for when the service is away
    is_news: bool = False  # whether it changes what is known of plans, devices or models
    may_be_large: bool = False  # whether an upload may stand for it

    @property
    def about(self) -> str:
        """What it does: the first paragraph of the method's docstring."""
        return (inspect.getdoc(self.declared) or "").partition("\n\n")[0]

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The types of the arguments by name, in their order, and of what is returned."""
        return get_type_hints(self.declared)

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The arguments but `self`."""
        return dict(list(inspect.signature(self.declared).parameters.items())[1:])

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(IN_PATH.findall(self.path))

    @cached_property
    def body(self) -> Any:
        """The class of what is sent, None for what is only read."""
        if self.verb == "GET" or self.sends is not None:
            return self.sends
        (name,) = (name for name in self.parameters if name not in self.in_path)
        return self.hints[name]

    @cached_property
    def returns(self) -> Any:
        """What the method returns: the class of a record, or of each where it is a list; None for nothing."""
        (kind, *_) = get_args(self.hints["return"]) or (self.hints["return"],)
        return None if kind is type(None) else kind

    @cached_property
    def is_list(self) -> bool:
        """Whether the method returns a list."""
        return get_origin(self.hints["return"]) is list

    @cached_property
    def is_optional(self) -> bool:
        """Whether the method returns None where there is nothing."""
        return not self.is_list and type(None) in get_args(self.hints["return"])

    def bound(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call by name, as they travel: numbers and sequences of the declared kind."""
        call = inspect.signature(self.declared).bind(None, *arguments, **named)
        call.apply_defaults()
        return {name: _plain(call.arguments[name], self.hints[name]) for name in self.parameters}

    def place(self, arguments: Arguments, sent: object = None) -> str:
        """Return the path of a call."""
        return IN_PATH.sub(lambda found: quote(_named(found[1], arguments, sent), safe=""), self.path)

    def query(self, arguments: Arguments) -> Arguments:
        """Return a call's query behind its path; of several models each as `model`."""
        free = ((name, value) for name, value in arguments.items() if name not in self.in_path)
        return {name.removesuffix("s") if isinstance(value, tuple) else name: value for name, value in free}

    def record(self, arguments: Arguments) -> Any:
        """Return the record that a call sends."""
        free = {name: value for name, value in arguments.items() if name not in self.in_path}
        return next(iter(free.values())) if self.sends is None else self.sends(**free)


ENDPOINTS: dict[str, Endpoint] = {}  # by the name of the store's method, in the order of the OpenAPI document


def endpoint(verb: Verb, path: str, operation: str, **facts: Any) -> Callable[[Method], Method]:
    """Declare a method of a store: whoever does not override it answers by `_call(endpoint, arguments)`."""

    def declare(declared: Method) -> Method:
        own = Endpoint(declared=declared, verb=verb, path=path, operation=operation, **facts)
        ENDPOINTS[declared.__name__] = own

        @wraps(declared)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            return self._call(own, own.bound(arguments, named))

        return cast(Method, call)

    return declare


def _named(name: str, arguments: Arguments, sent: object) -> str:
    return str(arguments[name] if name in arguments else getattr(sent, name))


def _plain(value: Any, hint: Any) -> Any:
    if value is None:
        return None
    if float in (hint, *get_args(hint)):
        return float(value)
    is_sequence = get_origin(hint) in (Iterable, Sequence)
    return tuple(value) if is_sequence else value
