"""`spectune doctor`: is everything there that spectune needs, and what is this device?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from . import options
from .report import Settings, Table, facts_of, print_json, print_table

if TYPE_CHECKING:
    from .findings import Examination
    from .inspection import Inspection
    from .kept_devices import KeptDevice
    from .readings import Finding

Json = dict[str, Any]  # JSON values


@click.command()
@click.option("--target", metavar="MODEL", help="Say whether this target can be computed.")
@options.drafters
@options.store
@click.option("--no-measure", is_flag=True, help="Measure no memory bandwidth, even where it is not known yet.")
@click.option("--commands", is_flag=True, help="Name the vendor's command that shows each reading.")
@options.as_json
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    target: str | None,
    drafters: dict[str, str],
    store: str | None,
    no_measure: bool,
    commands: bool,
    as_json: bool,
) -> None:
    """Check this device, versions and store.

    Says what this machine is, what is missing and what to do about it. Compares it with the devices in the store;
    with spectune -v it names each difference. The first time it measures the memory bandwidth, about a second. It
    saves that in the user's cache folder (or SPECTUNE_CACHE) and changes nothing else. Exits 1 only where something
    is broken. With --target and --drafter it says whether these models can be computed, without reading weights.

    \b
        spectune doctor
        spectune doctor --target path/to/target --drafter small=path/to/small
        spectune doctor --commands
        spectune doctor --no-measure --json
    """
    from .findings import examine

    found = examine(store, measure=not no_measure, target=target, drafters=drafters)
    broken = [finding.name for finding in found.findings if finding.verdict == "broken"]
    if as_json:
        print_json({"is_sound": not broken} | _facts(found))
    else:
        _print_findings(found, commands, is_brief=not (isinstance(ctx.obj, Settings) and ctx.obj.verbose))
    if broken:
        click.echo(f"Error: broken: {', '.join(broken)}; see what to do about each above", err=True)
        ctx.exit(1)


def _print_findings(found: Examination, commands: bool, *, is_brief: bool) -> None:
    columns = ("", "what", "seen", "do", *(["the same from"] if commands else []))
    rows = [
        (
            each.verdict,
            each.name,
            (is_brief and each.in_brief) or each.seen,
            each.advice,
            *([each.command] if commands else []),
        )
        for each in found.findings
    ]
    print_table(Table(title="spectune doctor", columns=columns, rows=rows))


def _facts(found: Examination) -> Json:
    return {
        "findings": [_finding_facts(finding) for finding in found.findings],
        "devices": [_device_facts(each) for each in found.devices],
        "kept_devices": [_kept_facts(each) for each in found.kept],
    }


def _finding_facts(finding: Finding) -> Json:
    return {name: value for name, value in asdict(finding).items() if name != "in_brief"}


def _device_facts(found: Inspection) -> Json:
    bandwidth = found.bandwidth
    rates = None if bandwidth is None else {"bytes_per_s": bandwidth.bytes_per_s} | facts_of(bandwidth)
    identity = {"label": found.device.label, "fingerprint": found.device.fingerprint} | facts_of(found.device)
    return {"device": identity, "state": facts_of(found.state), "bandwidth": rates}


def _kept_facts(kept: KeptDevice) -> Json:
    return {
        "device": kept.device.fingerprint,
        "label": kept.device.label,
        "nearest_here": kept.here.fingerprint,
        "grade": kept.match.grade,
        "differences": [facts_of(difference) for difference in kept.match.differences],
    }
