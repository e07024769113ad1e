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
    """Write a document (JSON, `what` in a word) to a file where the block fails to store it, and say where it is.

    The file is `output`, else a new one in the current folder or that of temporary files. StoreError: the block's, with
    that place.
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
