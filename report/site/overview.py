"""The first page: devices, targets, the plans that count, and what drifted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...planner.strategies.naming import name_of
from .contents import Contents
from .drift import Standing, standings
from .grid import number, table, words
from .links import DRIFT, HOME, PLANS, Links, device_page, plan_page, trace_page
from .markup import Child, Html, joined, tag
from .page import SitePage, head, link, note, part, tiles
from .words import NONE, apart, count, moment, plain_device, sampling, status, times, verdict

MOST_SETUPS = 24  # of which plans are read
MOST_TRACES = 60


def overview_page(contents: Contents, links: Links) -> SitePage:
    """Return the overview of a store."""
    found = standings(contents, MOST_SETUPS)
    drifted = sum(bool(each.drifted) for each in found)
    targets = {setup.target for setup in contents.setups} | {row.target for row in contents.traces}
    body = joined(
        head(None, "Overview", "What was measured, which plan counts for what, and whether plans keep their promises."),
        tiles(
            [
                (f"{len(contents.devices):,}", "devices" if len(contents.devices) != 1 else "device", False),
                (f"{len(targets):,}", "targets" if len(targets) != 1 else "target", False),
                (
                    f"{len(contents.setups):,}",
                    "setups with a plan" if len(contents.setups) != 1 else "setup with a plan",
                    False,
                ),
                (f"{drifted:,}", f"drifted{_among(contents, found)}", drifted > 0),
            ]
        ),
        _plans(contents, links, found),
        _drift(contents, links, found),
        _devices(contents, links),
        _traces(contents, links),
    )
    return SitePage(name=HOME, title="Overview", body=body)


def _plans(contents: Contents, links: Links, found: Sequence[Standing]) -> Html:
    if not found:
        return part(
            HOME,
            "plans",
            "Plans that count",
            note("There is no plan yet; ", tag("code", "spectune plan"), " makes one."),
        )
    left = len(contents.setups) - len(found)
    more = note(f"{count(left, 'older setup')} not shown; ", link(links, PLANS, "all plans"), ".") if left else None
    every = tag("p", link(links, PLANS, "All plans"), class_="small") if links.to(PLANS) and not left else None
    rows = [tag("li", standing_row(contents, links, each)) for each in found]
    explained = note(
        "Of every device, target, workload and temperature one plan counts: the one that decoders follow, or that "
        "another engine is set by."
    )
    return part(HOME, "plans", "Plans that count", explained, tag("ul", rows, class_="rows"), more, every)


def standing_row(contents: Contents, links: Links, each: Standing) -> Html:
    """Return a setup, what its plan promises, and what became of that."""
    setup = each.setup
    title: Child = f"{contents.model_name(setup.target)} on {contents.device_name(setup.device)}"
    about = [setup.workload, sampling(setup.temperature)]
    if each.row is not None:
        title = link(links, plan_page(each.row.id), title)
        about += [f"plan {each.row.id}", f"version {each.row.version}"]
    when = joined(", ", moment(each.row.created)) if each.row is not None else None
    filed = apart(setup.device, setup.workload)
    sign = tag("div", status(filed, "open")) if filed else None
    left = tag("div", tag("div", title, class_="title"), tag("div", ", ".join(about), when, class_="faint small"), sign)
    return tag("div", left, tag("div", _promise(each)), tag("div", _outcome(each)), class_="setup")


def _promise(each: Standing) -> Child:
    if each.row is None:
        return status("every plan is retired", "open")
    if each.plan is None:
        return [status("cannot be read", "warning"), tag("div", each.fault, class_="faint small")]
    factors = [cell.prediction.speedup_over_plain for cell in each.plan.cells]
    span = _span(factors)
    said = f"predicted over plain decoding, {count(len(factors), 'cell')}"
    return [tag("div", span, class_="strong"), tag("div", said, class_="faint small")]


def _outcome(each: Standing) -> Child:
    if each.plan is None:
        return None
    measured, drifted = each.measured, each.drifted
    if not measured:
        return verdict("unseen")
    factors = [factor for cell in measured if (factor := cell.measured_speedup) is not None]
    span = f"measured {_span(factors)}" if factors else "measured"
    kept = sum(cell.verdict == "kept" for cell in measured)
    if drifted:
        sign = status(f"{count(len(drifted), 'cell')} drifted", "warning")
    else:
        sign = status(
            f"{kept} of {count(len(measured), 'measured cell')} as promised",
            "good" if kept == len(measured) else "open",
        )
    return [sign, tag("div", span, class_="faint small")]


def _span(factors: Sequence[float]) -> str:
    least, greatest = times(min(factors)), times(max(factors))
    return least if least == greatest else f"{least} to {greatest}"


def _drift(contents: Contents, links: Links, found: Sequence[Standing]) -> Html:
    rows = [
        (
            link(links, plan_page(each.row.id), f"plan {each.row.id}"),
            contents.device_name(each.setup.device),
            f"{kept.cell.batch:,}",
            f"{kept.cell.context:,}",
            name_of(kept.cell.policy.code, kept.cell.drafter),
            verdict(kept.verdict),
        )
        for each in found
        if each.row is not None
        for kept in each.drifted
    ]
    title, among = "What drifted", _among(contents, found)
    if not rows:
        return part(
            HOME,
            "drift",
            title,
            note(
                f"No plan that counts{among} was seen to leave what it promised. ",
                link(links, DRIFT, "Promise and outcome, cell by cell"),
            ),
        )
    columns = [words("Plan"), words("Device"), number("Batch"), number("Context"), words("Policy"), words("Outcome")]
    more = tag("p", link(links, DRIFT, "Promise and outcome, cell by cell"), class_="small")
    caption = f"Cells whose measured speed left the promised interval{among}"
    return part(HOME, "drift", title, table(caption, columns, rows), more)


def _among(contents: Contents, found: Sequence[Standing]) -> str:
    return f" among the newest {len(found)} setups" if len(found) < len(contents.setups) else ""


def _devices(contents: Contents, links: Links) -> Html:
    surfaces = Counter(entry.key.device for entry in contents.surfaces)
    plans = Counter[str]()
    for setup, row in contents.setups.items():
        plans[plain_device(setup.device)] += row.plans
    newest: dict[str, str] = {}
    for entry in contents.surfaces:
        newest[entry.key.device] = max(newest.get(entry.key.device, ""), entry.newest)
    rows = [
        (
            link(links, device_page(fingerprint), contents.label(device)),
            device.kind,
            f"{device.memory_gib:,} GiB",
            f"{surfaces[fingerprint]:,}",
            f"{plans[fingerprint]:,}",
            moment(newest[fingerprint]) if newest.get(fingerprint) else NONE,
        )
        for fingerprint, device in contents.devices.items()
    ]
    columns = [
        words("Device"),
        words("Kind"),
        number("Memory"),
        number("Surfaces"),
        number("Plans"),
        number("Last measured"),
    ]
    said = table("Devices and what is known of them", columns, rows) if rows else note("No device was measured yet.")
    return part(HOME, "devices", "Devices", said)


def _traces(contents: Contents, links: Links) -> Html:
    newest = list(reversed(contents.traces))[:MOST_TRACES]
    if not newest:
        return part(HOME, "traces", "Targets and drafters", note("No acceptance was recorded yet."))
    rows = [
        (
            contents.model_name(row.target),
            contents.model_name(row.drafter),
            row.workload,
            sampling(row.temperature),
            moment(row.created),
            link(links, trace_page(row.id), f"trace {row.id}"),
        )
        for row in newest
    ]
    columns = [
        words("Target"),
        words("Drafter"),
        words("Workload"),
        words("Sampling"),
        number("Recorded"),
        words("Acceptance"),
    ]
    left = len(contents.traces) - len(newest)
    more = note(f"{count(left, 'older trace')} not shown.") if left else None
    return part(HOME, "traces", "Targets and drafters", table("Recorded acceptance, newest first", columns, rows), more)
