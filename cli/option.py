"""How a parameter of a command is declared: once, as the default of the field that holds what was typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parameter:
    """A parameter of commands: its flags, its name where no flag says it, and what click needs besides.

    It is the default of a field of `Args`, whose name it then has.
    """

    flags: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)  # Any: as click types them
    is_argument: bool = False
    beside: tuple[Parameter, ...] = ()  # declared with it, and read first

    def but(self, **changes: Any) -> Any:
        """Return the same parameter with other attributes; a `default` is shown, None takes it away."""
        if "default" in changes:
            changes["show_default"] = changes["default"] is not None
        return replace(self, attributes={**self.attributes, **changes})

    def made(self, name: str = "") -> list[click.Parameter]:
        """Return click's parameters, the first of which has a name."""
        own = next((each for each in self.flags if each.isidentifier()), "")
        assert own in ("", name) or not name, f"the field of {own} is called {name}"
        if self.is_argument:
            return [click.Argument([name], **self.attributes)]
        flags = self.flags or ("--" + name.replace("_", "-"),)
        first = click.Option((*flags, name) if name and not own else flags, **self.attributes)
        return [first, *(one for each in self.beside for one in each.made())]


# Any: a parameter is the default of a field that has another type, that of what is typed.
def option(text: str, *flags: str, absent: Any = None, beside: Sequence[Parameter] = (), **attributes: Any) -> Any:
    """Return an option with a help text; without flags its field's name is the flag.

    A `default` is shown in the help; `absent` is the value where the option is left out, and is not shown.
    """
    shown = {"show_default": True} if "default" in attributes else {} if absent is None else {"default": absent}
    return Parameter(flags=flags, attributes={"help": text, **shown, **attributes}, beside=tuple(beside))


def flag(text: str, *flags: str, **attributes: Any) -> Any:
    """Return an option without a value."""
    return option(text, *flags, is_flag=True, **attributes)


def whole(text: str, *flags: str, least: int = 1, most: int | None = None, **attributes: Any) -> Any:
    """Return an option whose value is a whole number within bounds."""
    return option(text, *flags, type=click.IntRange(least, most), **attributes)


def real(
    text: str, *flags: str, least: float = 0.0, most: float | None = None, is_open: str = "", **attributes: Any
) -> Any:
    """Return an option whose value is a number within bounds; `is_open` names those ("least", "most") left out."""
    bounds = click.FloatRange(least, most, min_open="least" in is_open, max_open="most" in is_open)
    return option(text, *flags, type=bounds, **attributes)


def path_option(text: str, *flags: str, metavar: str = "FILE", **attributes: Any) -> Any:
    """Return an option whose value is a path."""
    return option(text, *flags, metavar=metavar, type=click.Path(path_type=Path), **attributes)


def choice(text: str, names: Sequence[str], *flags: str, **attributes: Any) -> Any:
    """Return an option whose value is one of some names."""
    return option(text, *flags, type=click.Choice(names), **attributes)


def argument(**attributes: Any) -> Any:
    """Return a parameter without a flag."""
    return Parameter(attributes=attributes, is_argument=True)
