"""`spectune doctor`: is everything there that spectune needs, and what is this device?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .command import Args, command
from .option import flag
from .prompts import named_prompts
from .report import Table, facts_of, print_facts

if TYPE_CHECKING:
    from ..tuning.doctor.checkup import Checkup
    from .findings import Examination
    from .inspection import Inspection
    from .kept_devices import KeptDevice
    from .readings import Finding

Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, kw_only=True)
class DoctorArgs(Args):
    """What was typed."""

    target: str | None = options.target.but(required=False, help="Say whether this target can be computed.")
    drafters: dict[str, str] = options.drafters
    prompts: Path | None = options.prompts
    store: str | None = options.store
    no_measure: bool = flag("Measure no memory bandwidth, and compare no drafts.")
    commands: bool = flag("Name the vendor's command that shows each reading.")
    as_json: bool = options.as_json


@command(DoctorArgs)
def doctor(args: DoctorArgs) -> None:
    """Check this device, versions and store.

    Says what this machine is, what is missing and what to do about it. Compares it with the devices in the store;
    with spectune -v it names each difference. The first time it measures the memory bandwidth, about a second. It
    saves that in the user's cache folder (or SPECTUNE_CACHE) and changes nothing else. Exits 1 only where something
    is broken.

    With --target and --drafter it checks their files against each other. Then the target writes some 200 tokens behind
    --prompts: it says how often the drafter agrees at each depth, what is usual, and which other reading of the drafter
    would agree more (layers, states, norms, prompts, RoPE).

    \b
        spectune doctor
        spectune doctor --target path/to/target --drafter small=path/to/small
        spectune doctor --commands
        spectune doctor --no-measure --json
    """
    from .findings import examine

    found = examine(
        args.store,
        measure=not args.no_measure,
        target=args.target,
        drafters=args.drafters,
        prompts=None if args.no_measure else lambda: named_prompts(args.settings, args.prompts, "calibration"),
    )
    broken = [finding.name for finding in found.findings if finding.verdict == "broken"]
    facts = _facts(found)
    shown = [_table(found, args.commands, is_brief=not args.settings.verbose)]
    if found.checkups:
        shown.append(_agreement(facts["agreement"]))
    print_facts({"is_sound": not broken} | facts, shown, as_json=args.as_json)
    if broken:
        click.echo(f"Error: broken: {', '.join(broken)}; see what to do about each above", err=True)
        click.get_current_context().exit(1)


def _table(found: Examination, commands: bool, *, is_brief: bool) -> Table:
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
    return Table(title="spectune doctor", columns=columns, rows=rows)


def _agreement(facts: list[Json]) -> Table:
    columns = ("drafter", "depth", "agrees", "of", "usual", "source")
    rows = [
        (
            each["drafter"],
            each["depth"],
            f"{each['agrees']:.0%}",
            each["positions"],
            f"{each['usual_low']:.0%} to {each['usual_high']:.0%}",
            each["source"],
        )
        for each in facts
    ]
    return Table(title="drafted tokens that are the target's, where those before them are", columns=columns, rows=rows)


def _facts(found: Examination) -> Json:
    return {
        "findings": [_finding_facts(finding) for finding in found.findings],
        "devices": [_device_facts(each) for each in found.devices],
        "kept_devices": [_kept_facts(each) for each in found.kept],
        "agreement": [facts for each in found.checkups for facts in _agreement_facts(each)],
    }


def _agreement_facts(done: Checkup) -> Iterator[Json]:
    for depth, (share, reached) in enumerate(zip(done.found.shares, done.found.reached, strict=True), start=1):
        low, high = done.usual.at(depth)
        yield {
            "drafter": done.name,
            "depth": depth,
            "agrees": share,
            "positions": reached,
            "usual_low": low,
            "usual_high": high,
            "source": done.usual.source,
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
