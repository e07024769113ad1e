"""A plan in other engines: the command that each is started with, or why it cannot run the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...engines.drafter import engine_drafters
from ...engines.export import export_plan
from ...engines.rates import rates_of_plan
from ...engines.table import ENGINES
from ...errors import SpectuneError
from ...planner.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """How one engine runs a plan: its command and the share of the plan's speed, where known; else `why_not`."""

    engine: str
    version: str = ""
    command: str = ""
    files: tuple[str, ...] = ()
    changed: int = 0  # cells that get something else than planned
    kept: float | None = None
    why_not: str = ""


def uses_of(plan: Plan) -> Iterator[EngineUse]:
    """Yield every engine's way of running a plan, chosen among the alternatives that the plan lists."""
    for name in ENGINES:
        try:
            found = export_plan(
                plan,
                ENGINES[name],
                engine_drafters(plan, {}),
                target=str(plan.target.location),
                version=None,
                rates=rates_of_plan(plan),
            )
        except SpectuneError as error:
            yield EngineUse(engine=name, why_not=str(error))
            continue
        yield EngineUse(
            engine=name,
            version=found.version,
            command=found.command,
            files=tuple(file for file, _ in found.files),
            changed=len(found.dropped),
            kept=found.kept,
        )
