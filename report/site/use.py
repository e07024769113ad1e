"""A plan in other engines: the command that each is started with, or why it cannot run the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...engines.drafter import listed_drafters, shared_name
from ...engines.export import export_plan
from ...engines.rates import rates_of_plan
from ...engines.table import ENGINES
from ...errors import SpectuneError
from ...planner.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """How one engine runs a plan, else `why_not`; `changed` counts cells that get something else than planned."""

    engine: str
    version: str = ""
    command: str = ""
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader must know or do
    changed: int = 0
    kept: float | None = None  # of the plan's speed; None where unknown
    why_not: str = ""


def uses_of(plan: Plan) -> Iterator[EngineUse]:
    """Yield every engine's way of running a plan, by what the plan lists; models have names, and none is opened."""
    drafters, rates, target = listed_drafters(plan), rates_of_plan(plan), shared_name(plan.target.location)
    for name, engine in ENGINES.items():
        try:
            found = export_plan(plan, engine, drafters, target=target, version=None, rates=rates)
        except SpectuneError as error:
            yield EngineUse(engine=name, why_not=str(error))
            continue
        yield EngineUse(
            engine=name,
            version=found.version,
            command=found.command,
            files=tuple(file for file, _ in found.files),
            notes=found.notes,
            changed=len(found.dropped),
            kept=found.kept,
        )
