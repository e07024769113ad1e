"""Results that a store does not take: they are written elsewhere, so that no work is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from ..errors import RequestError, StoreError
from ..report.file import write_whole


@contextmanager
def rescued(what: str, document: str, output: Path | None = None) -> Iterator[None]:
    """Write a document to a file where the block cannot keep it in a store, and say where it is.

    Args:
        what: the document is, in a word.
        document: JSON.
        output: file that was asked for; else one is made in the current folder, or in that of temporary files.

    Raises:
        StoreError: the block's own, and where the document is.
    """
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{error}; the {what} is not lost: it is {_place(what, document, output)}") from error


def _place(what: str, document: str, output: Path | None) -> str:
    name = f"spectune-{what}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.json"
    for path in (output, Path.cwd() / name, Path(tempfile.gettempdir()) / name):
        if path is None:
            continue
        try:
            write_whole(path, document)
        except RequestError:  # full, or not to be written: the next one may do
            continue
        return f"in {path}"
    click.echo(document)
    return "on stdout"
