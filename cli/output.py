"""The file behind `-o`."""

from __future__ import annotations

from pathlib import Path

import click

from ..report.file import require_writable, write_whole

__all__ = ["option", "require_writable", "write_whole"]

option = click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the JSON document to this file."
)
