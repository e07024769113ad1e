"""`spectune doctor`: is everything there that spectune needs?"""

from __future__ import annotations

from dataclasses import asdict

import click

from . import options
from .report import Table, print_json, print_table


@click.command()
@options.store
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Check this device, versions and store.

    Says what is missing and what to do about it; exits 1 only where something is broken. Nothing is
    created or changed.

    \b
        spectune doctor
        spectune doctor --json
    """
    from .findings import examine

    found = examine(store)
    broken = [finding.name for finding in found if finding.verdict == "broken"]
    if as_json:
        print_json({"is_sound": not broken, "findings": [asdict(finding) for finding in found]})
    else:
        rows = [(finding.verdict, finding.name, finding.seen, finding.advice) for finding in found]
        print_table(Table(title="spectune doctor", columns=("", "what", "seen", "do"), rows=rows))
    if broken:
        click.echo(f"Error: broken: {', '.join(broken)}; see what to do about each above", err=True)
        ctx.exit(1)
