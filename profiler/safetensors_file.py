"""The tensors of a safetensors file, by its header: none is read, and the package safetensors is not needed.

Source: the format as github.com/huggingface/safetensors describes it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from ..errors import ModelError

LENGTH = struct.Struct("<Q")  # of the header, in front of it
MOST_HEADER_BYTES = 100_000_000  # as the package has it
METADATA = "__metadata__"  # the one name that is no tensor's


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor as the header of its file describes it."""

    shape: tuple[int, ...]
    dtype: str  # as headers name it: "BF16", "F8_E4M3"


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name.

    ModelError where it is no such file, not a whole one, or may not be read; OSError where it cannot be opened.
    """
    try:
        with path.open("rb") as file:
            behind = os.fstat(file.fileno()).st_size - LENGTH.size
            (length,) = LENGTH.unpack(file.read(LENGTH.size))
            if length > min(behind, MOST_HEADER_BYTES):
                raise ValueError(f"its header of {length} bytes does not fit")
            said: dict[str, Any] = json.loads(file.read(length))
        described = {name: one for name, one in said.items() if name != METADATA}
        _require_whole([one["data_offsets"] for one in described.values()], behind - length)
        return {name: _tensor(one) for name, one in described.items()}
    except PermissionError as error:
        raise ModelError(f"{path} may not be read ({error.strerror}); change its permissions") from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError, struct.error) as error:
        raise ModelError(f"{path} is not a safetensors file ({error}); copy or save it again") from error


def _require_whole(places: Iterable[tuple[int, int]], size: int) -> None:
    """Raise ValueError unless tensors lie one behind the other and fill what is behind the header."""
    end = 0
    for start, stop in sorted((index(start), index(stop)) for start, stop in places):
        if start != end or stop < start:
            raise ValueError(f"a tensor lies at byte {start} and the one before it ends at {end}")
        end = stop
    if end != size:
        raise ValueError(f"its tensors end at byte {end} of {size}")


def _tensor(said: dict[str, Any]) -> StoredTensor:
    return StoredTensor(shape=tuple(map(index, said["shape"])), dtype=str(said["dtype"]))
