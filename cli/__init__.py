"""The command line: one file per command, imported only when that command runs."""

from __future__ import annotations

import os

import click

from .commands import GROUPS
from .group import LazyGroup
from .report import Settings


@click.group(cls=LazyGroup, groups=GROUPS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only, no progress.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print more: what differs, value by value, and where an error came from."
)
@click.version_option(package_name="spectune", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context, quiet: bool, verbose: bool) -> None:
    """Find the fastest lossless speculative decoding for your model, device and batch size.

    \b
        spectune demo
        spectune profile --target MODEL --drafter small=DRAFT_MODEL
        spectune plan --target MODEL
        spectune export --engine vllm
    """
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other; give one of them")
    if quiet:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # of models that are fetched
    ctx.obj = Settings(quiet=quiet, verbose=verbose)
