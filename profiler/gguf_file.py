"""What a GGUF file says of its model, and where its tensors lie; no tensor is read.

The package gguf makes an array of every token's text, some ten seconds for a vocabulary of 150,000. This reader steps
over texts in arrays and only counts them.

Source: ggml's docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import ModelError

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
ALIGNMENT = 32  # bytes, where a file tells none
PLAIN = ("F64", "F32", "F16", "BF16")  # formats that are no quantisation
MOST_DIMENSIONS = 8

Value = bool | int | float | str | tuple[bool | int | float, ...]  # of an array of texts, their number


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor of a GGUF file."""

    shape: tuple[int, ...]  # as torch has it
    format: str  # ggml's name: "F32", "Q4_K"
    offset: int  # bytes, from the file's start
    row_bytes: int  # of its last dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A GGUF file."""

    path: Path
    said: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]

    @property
    def family(self) -> str:
        """Its architecture, as llama.cpp calls it."""
        return str(self.said.get("general.architecture", ""))

    @property
    def format(self) -> str:
        """How its weights are stored: "Q4_K_M"; by most of its numbers where it does not say."""
        from gguf import LlamaFileType

        told = self.said.get("general.file_type")
        if isinstance(told, int) and told in LlamaFileType._value2member_map_:
            return LlamaFileType(told).name.removeprefix("MOSTLY_").removeprefix("ALL_")
        counts: Counter[str] = Counter()
        for tensor in self.tensors.values():
            counts[tensor.format] += math.prod(tensor.shape)
        return counts.most_common(1)[0][0] if counts else "nothing"

    @property
    def reading(self) -> str:
        """How our decoder reads it, where it does not read what is stored: "dequantised from Q4_K_M to bfloat16"."""
        is_quantised = any(tensor.format not in PLAIN for tensor in self.tensors.values())
        return f"dequantised from {self.format} to bfloat16" if is_quantised else ""


def is_gguf(location: str | Path) -> bool:
    """Whether a model's location is the path of a GGUF file, by its name."""
    return str(location).endswith(".gguf")


def read_gguf(path: Path) -> GgufFile:
    """Return what a GGUF file says, read once until it changes; ModelError where it is damaged, cut off or a part."""
    try:
        place = path.resolve()
        seen = place.stat()
        return _read(place, seen.st_size, seen.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"no GGUF file at {path} ({error.strerror}); give its path, or a model folder") from error


@lru_cache(maxsize=8)
def _read(path: Path, size: int, _written_ns: int) -> GgufFile:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = _parsed(path, _Cursor(data))
    except (ValueError, struct.error, OverflowError, MemoryError) as error:  # ValueError: an empty file, no UTF-8
        raise ModelError(f"{path} is no GGUF file that can be read ({error}); copy or download it again") from error
    end = max((one.offset + _bytes(one) for one in found.tensors.values()), default=0)
    if end > size:
        raise ModelError(f"{path} ends after {size} bytes of {end}; finish the download")
    parts = found.said.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise ModelError(f"{path} is one of {parts} parts; join them with llama.cpp's llama-gguf-split --merge")
    return found


def _parsed(path: Path, cursor: _Cursor) -> GgufFile:
    magic, version, tensors, entries = cursor.numbers("4sIQQ")
    if magic != MAGIC or version not in VERSIONS:
        raise ValueError(f"it starts with {magic!r} and version {version}, not with {MAGIC!r} and 2 or 3")
    said: dict[str, Value] = {}
    for _ in range(entries):
        name = cursor.text()
        said[name] = cursor.value(*cursor.numbers("I"))
    table = [cursor.tensor() for _ in range(tensors)]
    alignment = said.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment!r}")
    start = -(-cursor.place // alignment) * alignment
    found = {name: _tensor(path, name, shape, kind, start + offset) for name, shape, kind, offset in table}
    return GgufFile(path=path, said=said, tensors=found)


def _tensor(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        raise ModelError(
            f"{path} stores {name} in ggml's format {kind}, which the package gguf does not know; upgrade it: "
            "pip install --upgrade gguf"
        ) from None
    numbers, size = GGML_QUANT_SIZES[known]
    if not shape or shape[-1] % numbers:
        raise ValueError(f"{name} of {shape} is stored in blocks of {numbers}")
    return GgufTensor(shape=shape, format=known.name, offset=offset, row_bytes=shape[-1] // numbers * size)


def _bytes(tensor: GgufTensor) -> int:
    return math.prod(tensor.shape[:-1]) * tensor.row_bytes


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.place = data, 0

    def numbers(self, codes: str) -> tuple[Any, ...]:  # Any: of the codes' types
        found: tuple[Any, ...] = struct.unpack_from(f"<{codes}", self._data, self.place)
        self.place += struct.calcsize(f"<{codes}")
        return found

    def text(self) -> str:
        start = self._step_over_text()
        return self._data[start : self.place].decode("utf-8")

    def value(self, kind: int) -> Value:
        """Return the next value of a kind; of an array of texts, their number."""
        if kind in NUMBERS:
            number: Value = self.numbers(NUMBERS[kind])[0]
            return number
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise ValueError(f"it holds a value of kind {kind}")
        inner: int
        count: int
        inner, count = self.numbers("IQ")
        if inner == TEXT:
            for _ in range(count):
                self._step_over_text()
            return count
        if inner not in NUMBERS:
            raise ValueError(f"it holds an array of kind {inner}")
        if count > len(self._data):
            raise ValueError(f"it holds an array of {count} numbers")
        numbers: Value = self.numbers(f"{count}{NUMBERS[inner]}")
        return numbers

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text()
        (dimensions,) = self.numbers("I")
        if dimensions > MOST_DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions")
        *sizes, kind, offset = self.numbers(f"{dimensions}QIQ")
        return name, tuple(reversed(sizes)), kind, offset

    def _step_over_text(self) -> int:
        (size,) = self.numbers("Q")
        start = self.place
        self.place += size
        if self.place > len(self._data):
            raise ValueError(f"a text of {size} bytes starts at {start} of {len(self._data)}")
        return start
