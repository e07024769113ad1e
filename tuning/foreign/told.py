"""What a file, or the person who imports it, says of measurements of other software."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import RequestError, SpectuneError
from ...profiler.identity import identify
from ...profiler.records.device import Device
from ...profiler.records.model import ModelIdentity

Record = TypeVar("Record")
Named = TypeVar("Named", Device, ModelIdentity)

PREFIX = "imported:"
NAME = re.compile(r"\S{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a person says about a file because the file does not; None is left to the file."""

    device: Device | None = None
    model: ModelIdentity | None = None
    regime_name: str | None = None

    def __post_init__(self) -> None:
        if self.regime_name is not None:
            imported_regime(self.regime_name)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that were given."""
        given = {"--device": self.device, "--model": self.model, "--regime-name": self.regime_name}
        return tuple(name for name, value in given.items() if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel:
    """A model as a file names it: by its folder, or by name, weights hash and parameters."""

    name: str = ""
    weights_hash: str = ""
    parameters: int = 0
    config_hash: str = ""
    tokenizer_hash: str = ""
    folder: str = ""  # relative to the folder of the file that names it

    def identity(self, beside: Path) -> ModelIdentity:
        """Return the model's identity, hashing its files where a folder is named, relative to `beside`.

        ModelError where there is no model in the folder, or a fact is missing or malformed; RequestError where the
        folder holds other weights than the file says.
        """
        if not self.folder:
            facts = {name: getattr(self, name) for name in self.__slots__ if name != "folder"}
            return ModelIdentity(**facts, location="")
        found = identify(beside / self.folder, self.name or None)
        if self.weights_hash not in ("", found.weights_hash):
            raise RequestError(
                f"the model in {beside / self.folder} has the weights hash {found.weights_hash}, the file says "
                f"{self.weights_hash}; correct the folder or the hash"
            )
        return found


def told_once(what: str, in_file: Named | None, given: Named | None) -> Named:
    """Return the device or model (`what`) that either file or option names; RequestError where neither or both do."""
    if in_file is None and given is None:
        raise RequestError(f"{what}: the file names none; add it to the file or give --{what}")
    if in_file is not None and given is not None:
        raise RequestError(f"{what}: the file names {in_file.name} and --{what} {given.name}; leave one of them out")
    found = in_file if given is None else given
    assert found is not None
    return found


def imported_regime(name: str) -> str:
    """Return the regime of foreign measurements, never spectune's; RequestError for no single word (up to 100)."""
    word = name.removeprefix(PREFIX)
    if not NAME.fullmatch(word):
        raise RequestError(f"{name!r} is no name of a regime; write one word of at most 100 characters, e.g. vllm-0.9")
    return f"{PREFIX}{word}"


def record_of_texts(kind: type[Record], texts: Mapping[str, str], prefix: str) -> Record:
    """Return a record of texts by field name; "8" becomes 8 where the field is a number.

    RequestError where a text is missing, does not fit its field, or the record refuses it; the column is named.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(dict(texts))
    except ValidationError as error:
        fault: Any = error.errors()[0]  # Any: pydantic's ErrorDetails
        column = f"{prefix}{fault['loc'][0]}"
        seen = f", seen {fault['input']!r}" if isinstance(fault["input"], str) else ""
        raise RequestError(f"column {column}: {fault['msg'].lower()}{seen}; write it again") from error
    except SpectuneError as error:
        raise RequestError(f"columns {prefix}*: {error}") from error
