"""A server's command as an argument list: options are read, taken out and hidden; no shell reads it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Sequence

from ..errors import RequestError

SECRET = re.compile(r"--[\w-]*(api-?key|token|password)|-hft")  # an option, its "_" read as "-"
VARIABLE = re.compile(r"[A-Z0-9_]*(KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]*")  # of `env` or `docker run -e`
SHORTEST = 8  # characters of a key; "false" of TOKENIZERS_PARALLELISM is none
HIDDEN = "..."


def is_named(word: str, names: Collection[str]) -> bool:
    """Return whether a word is one of some options, alone or with its value behind `=`."""
    return word.partition("=")[0] in names


def value_of(command: Sequence[str], names: Collection[str]) -> str | None:
    """Return the value of the last of some options; None where none is there."""
    found = None
    for place, word in enumerate(command):
        if is_named(word, names):
            _, separator, behind = word.partition("=")
            following = command[place + 1] if place + 1 < len(command) else ""
            found = behind if separator else following
    return found


def without(command: Sequence[str], names: Collection[str], flags: Collection[str] = ()) -> list[str]:
    """Return a command without some options: `names` take a value, `flags` none."""
    found, is_value = [], False
    for word in command:
        if is_value:
            is_value = False
        elif is_named(word, names):
            is_value = "=" not in word
        elif not is_named(word, flags):
            found.append(word)
    return found


def hidden(command: Sequence[str]) -> list[str]:
    """Return a command whose keys are hidden: what may be printed, saved and compared.

    An API key may be several words, as vLLM takes them.
    """
    found, is_value, may_follow = [], False, False
    for word in command:
        if is_value or (may_follow and not word.startswith("-")):
            found.append(HIDDEN)
            is_value = False
            continue
        name, separator, _ = word.partition("=")
        option = SECRET.fullmatch(name.replace("_", "-"))
        found.append(f"{name}={HIDDEN}" if separator and (option or VARIABLE.fullmatch(name)) else word)
        is_value = option is not None and not separator
        may_follow = is_value and name.endswith("key")
    return found


def secrets(command: Sequence[str]) -> list[str]:
    """Return the words of a command that `hidden` hides, longest first."""
    pairs = zip(command, hidden(command), strict=True)
    found = {word if shown == HIDDEN else word.partition("=")[2] for word, shown in pairs if word != shown}
    return sorted(found - {""}, key=len, reverse=True)


def environment_secrets() -> list[str]:
    """Return this process's variables that are named as keys, which a server inherits and may log; longest first."""
    found = {value for name, value in os.environ.items() if VARIABLE.fullmatch(name) and len(value) >= SHORTEST}
    return sorted(found, key=len, reverse=True)


def typed(command: Sequence[str]) -> str:
    """Return a command as it is typed, its keys hidden."""
    return shlex.join(hidden(command))


def port_of(command: Sequence[str]) -> int | None:
    """Return the port that a command names; RequestError where it is no number."""
    text = value_of(command, ("--port",))
    if text is None:
        return None
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise RequestError(f"the command's --port is {text!r}; give a number from 1 to 65535, or leave it out")
    return int(text)
