"""What a reader must do before a command runs that reads models in an engine's own format."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from .setting import EngineDrafter, Schedule, Serving


def conversions(
    engine: str, schedule: Schedule, target: str, named: Callable[[str], str], for_heads: str
) -> tuple[str, ...]:
    """Return how each model is made that is not in an engine's format yet.

    Args:
        engine: by name.
        schedule: whose drafter is meant.
        target: path of the target.
        named: what the command calls a model at a path; the path itself where it is in the format already.
        for_heads: what converts heads, which `spectune convert` does not.
    """
    return tuple(_conversions(engine, schedule, target, named, for_heads))


def drafter_named(drafter: EngineDrafter, target: str, named: Callable[[str], str]) -> str:
    """Return what the command calls a drafter: never as it calls the target, whose folder may have the same name."""
    own = named(drafter.path)
    return named(f"{drafter.name}-drafter") if own == named(target) and drafter.path != target else own


def _conversions(
    engine: str, schedule: Schedule, target: str, named: Callable[[str], str], for_heads: str
) -> Iterator[str]:
    if named(target) != target:
        yield _converted(engine, target, named(target), schedule.serving)
    drafter = None if schedule.setting is None else schedule.setting.drafter
    if drafter is None or named(drafter.path) == drafter.path:
        return
    out = drafter_named(drafter, target, named)
    if drafter.form == "model":
        yield _converted(engine, drafter.path, out, schedule.serving)
    else:
        yield f"{engine} does not read {drafter.path}; make {out} of it with {for_heads}"


def _converted(engine: str, path: str, out: str, serving: Serving | None) -> str:
    """Say how one model is converted: to the number format it was measured in."""
    dtype = () if serving is None else ("--dtype", serving.dtype)
    words = shlex.join(("spectune", "convert", path, "--engine", engine, *dtype, "-o", out))
    return f"{engine} does not read {path}; where the command is to run, first: {words}"
