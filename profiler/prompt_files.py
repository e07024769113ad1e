"""Files of prompts, read entry by entry: no more than one entry and a block of text lie in memory.

| file | an entry is |
|---|---|
| `.jsonl`, `.ndjson` | a line |
| `.json` | an element of the array; or of the one array that an object holds; or the object, or each of several |
| `.csv`, `.tsv` | a row, by the names in the first |
| `.parquet` | a row; needs pyarrow |
| any other | a block of text, between blank lines |

Each may be compressed by gzip, `.gz` behind its name, but for `.parquet`, which is compressed by itself. A folder holds
whatever of these lies in it, text left out but for `.txt`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ..errors import RequestError
from .prompt_forms import is_known

BLOCK = 2**20  # characters read at once
LONGEST = 2**24  # characters of an entry
ROWS = 256  # of a .parquet file, read at once
SPACE = re.compile(r"[ \t\n\r]*")
NEAR_END = 16  # characters: a value that breaks off so near to the end of what was read may go on behind it
SEPARATORS = ",;\t"
TABLES = (".csv", ".tsv")
DATA = (".jsonl", ".ndjson", ".json", *TABLES, ".parquet")
Tell = Callable[[str], None]
Json = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One of a file's entries."""

    place: str  # where it lies, in words
    value: Json
    folder: Path  # of the file


def kind_of(path: Path) -> str:
    """Return a file's last suffix, that of compression apart."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


def is_data(path: Path) -> bool:
    """Return whether a file holds entries, by its name; else it is text."""
    return kind_of(path) in DATA


def entries_of(path: Path, tell: Tell) -> Iterator[Entry]:
    """Yield the entries of a file, or of a folder's files by name; RequestError names a place that cannot be read."""
    if not path.is_dir():
        yield from _entries(path, tell)
        return
    files = sorted(file for file in path.rglob("*") if kind_of(file) in (*DATA, ".txt") and file.is_file())
    if not files:
        raise RequestError(f"the folder {path} holds no file of prompts; give files named {', '.join(DATA)} or .txt")
    for file in files:
        yield from _entries(file, tell)


def _entries(path: Path, tell: Tell) -> Iterator[Entry]:
    kind = kind_of(path)
    with _told(path):
        if kind == ".parquet":
            yield from _rows_of_parquet(path)
            return
        with _opened(path) as file:
            if kind in TABLES:
                yield from _rows(path, file)
            elif kind == ".json":
                yield from _values(path, file, tell)
            elif kind in DATA:
                yield from _lines(path, file)
            else:
                yield from _blocks(path, file)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise RequestError(
            f"cannot read prompts from {path}: it is no UTF-8 text ({error.reason}); convert it"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RequestError(
            f"cannot read prompts from {path}: its compression is broken ({error}); get it again"
        ) from error
    except OSError as error:
        raise RequestError(f"cannot read prompts from {path} ({error}); give a file that can be read") from error


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    with path.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        inside = gzip.GzipFile(fileobj=raw) if is_packed else raw
        yield io.TextIOWrapper(inside, encoding="utf-8-sig", newline="\n")


def _text_lines(path: Path, file: TextIO) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(LONGEST):
        number += 1
        if len(line) == LONGEST:
            raise RequestError(f"{path} line {number} has more than {LONGEST:,} characters, too many for a prompt")
        if "\0" in line:
            raise RequestError(
                f"{path} is no text: line {number} holds a zero byte; give UTF-8 text or {', '.join(DATA)}"
            )
        yield number, line


def _lines(path: Path, file: TextIO) -> Iterator[Entry]:
    for number, line in _text_lines(path, file):
        if line.strip():
            place = f"{path} line {number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise RequestError(f"{place} is not JSON ({_why(error)}); mend or remove it") from error
            if not isinstance(value, dict):
                raise RequestError(f"{place}: need a JSON object per line, got {str(value)[:40]!r}")
            yield Entry(place=place, value=value, folder=path.parent)


def _blocks(path: Path, file: TextIO) -> Iterator[Entry]:
    held: list[str] = []
    first = size = 0
    for number, line in _text_lines(path, file):
        text = line.removesuffix("\n").removesuffix("\r")
        if text.strip():
            first = first if held else number
            held.append(text)
            size += len(line)
            if size > LONGEST:
                raise RequestError(f"{path} line {first}: a block has more than {LONGEST:,} characters, too many")
        elif held:
            yield Entry(place=f"{path} line {first}", value="\n".join(held), folder=path.parent)
            held, size = [], 0
    if held:
        yield Entry(place=f"{path} line {first}", value="\n".join(held), folder=path.parent)


def _rows(path: Path, file: TextIO) -> Iterator[Entry]:
    before = csv.field_size_limit(LONGEST)
    try:
        header = file.readline(LONGEST)
        separator = max(SEPARATORS, key=header.count)
        names = [name.strip().lower() for name in next(csv.reader([header], delimiter=separator), [])]
        _require_known(path, names)
        rows = csv.reader(file, delimiter=separator, strict=True)
        for row in rows:
            if any(cell.strip() for cell in row[len(names) :]):
                raise RequestError(
                    f"{path} line {rows.line_num + 1} has {len(row)} cells, and its first line names {len(names)}; put "
                    f"quotes around every cell that holds a {separator!r}"
                )
            cells = {name: cell for name, cell in zip(names, row, strict=False) if cell.strip()}
            if cells:
                yield Entry(place=f"{path} line {rows.line_num + 1}", value=cells, folder=path.parent)
    except csv.Error as error:
        raise RequestError(f"{path} is not CSV ({error}); close every quote, or save it again") from error
    finally:
        csv.field_size_limit(before)


def _require_known(path: Path, names: Sequence[str]) -> None:
    if not any(map(is_known, names)):
        seen = ", ".join(repr(name[:40]) for name in names[:12]) or "none"
        raise RequestError(
            f"{path} has the columns {seen}, and no prompt is known by them; name one prompt or question"
        )


def _rows_of_parquet(path: Path) -> Iterator[Entry]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RequestError(f"{path} needs pyarrow; install it: pip install 'spectune[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            _require_known(path, names)
            number, wanted = 0, [name for name in names if is_known(name)]
            for batch in file.iter_batches(batch_size=ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    cells = {name: cell for name, cell in row.items() if cell is not None}
                    yield Entry(place=f"{path} row {number}", value=cells, folder=path.parent)
    except pyarrow.ArrowException as error:
        raise RequestError(f"{path} is no Parquet file that can be read ({error}); write it again") from error


def _values(path: Path, file: TextIO, tell: Tell) -> Iterator[Entry]:
    text, number = _JsonText(path, file), 0
    is_array = text.skip("[")
    while text.more() and not (is_array and text.skip("]")):
        number += 1
        try:
            value = text.value()
        except _BrokenOffError:
            if number == 1:
                raise
            tell(f"{path} breaks off within entry {number}; the {number - 1} before it are read")
            return
        is_alone = number == 1 and not is_array and not text.more()
        for inner in _unwrapped(value) if is_alone else [value]:
            yield Entry(place=f"{path} entry {number}", value=inner, folder=path.parent)
        text.skip(",")


def _unwrapped(value: Json) -> list[Json]:
    """Return what an object such as {"data": [...]} is about: its one array, unless it is a prompt itself."""
    lists = [each for each in value.values() if isinstance(each, list)] if isinstance(value, dict) else []
    return [value] if len(lists) != 1 or any(map(is_known, value)) else lists[0]


class _BrokenOffError(RequestError):
    """The file ends within a value."""


class _JsonText:
    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file
        self._text, self._place, self._is_whole = "", 0, False
        self._decoder = json.JSONDecoder()

    def more(self) -> bool:
        while True:
            space = SPACE.match(self._text, self._place)
            assert space is not None, "no space at all matches, too"
            self._place = space.end()
            if self._place < len(self._text):
                return True
            if not self._read():
                return False

    def skip(self, mark: str) -> bool:
        is_there = self.more() and self._text[self._place] == mark
        self._place += is_there
        return is_there

    def value(self) -> Json:
        """Return the next value; raise RequestError where it is not JSON, or longer than a prompt may be."""
        while True:
            try:
                value, self._place = self._decoder.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                breaks_off = error.pos >= len(self._text) - NEAR_END or error.msg.startswith("Unterminated string")
                if breaks_off and self._read():
                    continue
                kind = _BrokenOffError if breaks_off else RequestError
                near = self._text[max(error.pos - 20, 0) : error.pos + 20]
                raise kind(f"{self._path} is not JSON ({error.msg}, near {near!r}); mend it or get it again") from error
            except (ValueError, RecursionError) as error:
                raise RequestError(f"{self._path} is not JSON ({_why(error)}); mend it") from error
            else:
                return value

    def _read(self) -> bool:
        left = self._text[self._place :]
        if len(left) > LONGEST:
            raise RequestError(f"{self._path}: an entry has more than {LONGEST:,} characters, too many for a prompt")
        more = "" if self._is_whole else self._file.read(max(BLOCK, len(left)))
        self._text, self._place, self._is_whole = left + more, 0, not more
        return bool(more)


def _why(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply or a number is too long"
