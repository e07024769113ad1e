"""What `watch` sees, as lines, JSON and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .report import facts_of, print_json

if TYPE_CHECKING:
    from ..runtime.watch.prometheus import MetricFamily, Sample
    from ..tuning.engines.watch import FleetObservation


def print_seen(seen: FleetObservation, moment: str, *, as_json: bool) -> None:
    """Print what was seen until a moment, and what happened meanwhile."""
    if as_json:
        print_json({"moment": moment, **facts_of(seen), "has_left": seen.has_left})
        return
    click.echo(f"{moment}  servers: {seen.servers}, {seen.generated:,.0f} tokens")
    if seen.tokens_per_round is not None:
        planned = "" if seen.planned is None else f", planned {seen.planned[0]:.2f} to {seen.planned[1]:.2f}"
        click.echo(f"  tokens a round that drafts: {seen.tokens_per_round:.2f}{planned}: {seen.accepted}")
    if seen.batch is not None:
        shares = ", ".join(f"{share:.0%} near {at}" for at, share in seen.shares.items() if share)
        click.echo(f"  running batch of a busy server: {seen.batch:.1f} ({shares}): {seen.mix}")
    if seen.gain is None:
        click.echo("  a new plan: unknown, what is served has no price at every batch")
    else:
        click.echo(f"  a new plan: {seen.gain:.2f} times as fast")
    for one in seen.better:
        click.echo(
            f"    at {one.concurrency} at once {one.instead} instead of {one.now}: {one.tokens_per_s:,.1f} for "
            f"{one.now_tokens_per_s:,.1f} tokens/s"
        )
    for event in seen.events:
        click.echo(f"  event: {event}")


def families(seen: FleetObservation, events: int) -> list[MetricFamily]:
    """Return what was seen last as metrics."""
    from ..runtime.watch.prometheus import MetricFamily

    def gauge(name: str, about: str, samples: Sequence[Sample]) -> MetricFamily:
        return MetricFamily(name=f"spectune_watch_{name}", kind="gauge", about=about, samples=samples)

    ends = (
        []
        if seen.planned is None
        else [({"end": end}, v) for end, v in zip(("low", "high"), seen.planned, strict=True)]
    )
    verdicts = {"acceptance": seen.accepted, "batch": seen.mix}
    left = [
        ({"what": what, "direction": way}, float(found == way))
        for what, found in verdicts.items()
        for way in ("lower", "higher")
    ]
    return [
        gauge("servers", "Servers that answered.", [({}, seen.servers)]),
        gauge("tokens_per_round", "Of rounds that draft.", _one(seen.tokens_per_round)),
        gauge("planned_tokens_per_round", "Ends of the plan's 90 % interval.", ends),
        gauge(
            "acceptance",
            "Share of drafting rounds that accepted so many tokens.",
            [({"position": str(place)}, rate) for place, rate in enumerate(seen.acceptance, 1)],
        ),
        gauge("batch", "Mean running batch of a busy server.", _one(seen.batch)),
        gauge("left_plan", "1 where the last interval lies outside the plan.", left),
        gauge("gain", "Speed of a new plan over this one's.", _one(seen.gain)),
        MetricFamily(
            name="spectune_watch_events_total", kind="counter", about="Events told.", samples=[({}, float(events))]
        ),
    ]


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [({}, value)]
