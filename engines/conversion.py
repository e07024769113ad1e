"""Engines with a form of models of their own: its converters, and the conversions that a command needs first."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from ..profiler.identity import identify
from .setting import EngineDrafter, Schedule

KNOWN_BY = 12  # digits of a hash


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModelFormat:
    """An engine's own form of models, and its converters."""

    engine: str
    ending: str  # of the names of converted models
    named: Callable[[str], str]  # how a command names a model at a path; the path itself where it has the form already
    require: Callable[[Path], object]  # raises ModelError for a folder that `spectune convert` cannot convert
    write: Callable[[Path, Path, str], Path]  # writes a folder of Hugging Face to a path in a dtype; returns the path
    elsewhere: Callable[
        [str, str, str | None], str
    ]  # the engine's own command for a path, a result and a dtype or None
    for_heads: str  # what converts heads, which `spectune convert` does not
    dtypes: tuple[str, ...]  # number formats that `spectune convert` writes


def converted_path(model: Path, folder: Path, ending: str) -> Path:
    """Return the path of a model's other form, unique by its weights' hash; ModelError if it is not a model folder."""
    who = identify(model)
    return folder / f"{who.name}.{who.weights_hash[:KNOWN_BY]}.{ending}"


def conversions(form: EngineModelFormat, schedule: Schedule, target: str) -> tuple[str, ...]:
    """Return the conversions of the target and of the schedule's drafter, where they are needed."""
    return tuple(_conversions(form, schedule, target))


def drafter_named(drafter: EngineDrafter, target: str, named: Callable[[str], str]) -> str:
    """Return the command's name of a drafter, never the target's, whose folder may have the same name."""
    own = named(drafter.path)
    return named(f"{drafter.name}-drafter") if own == named(target) and drafter.path != target else own


def _conversions(form: EngineModelFormat, schedule: Schedule, target: str) -> Iterator[str]:
    named = form.named
    dtype = schedule.dtype if schedule.dtype in form.dtypes else None
    if named(target) != target:
        yield _converted(form, target, named(target), dtype)
    drafter = None if schedule.setting is None else schedule.setting.drafter
    if drafter is None or named(drafter.path) == drafter.path:
        return
    out = drafter_named(drafter, target, named)
    if drafter.form == "model":
        yield _converted(form, drafter.path, out, dtype)
    else:
        yield f"{form.engine} does not read {drafter.path}; make {out} of it with {form.for_heads}"


def _converted(form: EngineModelFormat, path: str, out: str, dtype: str | None) -> str:
    told = () if dtype is None else ("--dtype", dtype)
    ours = shlex.join(("spectune", "convert", path, "--engine", form.engine, *told, "-o", out))
    theirs = form.elsewhere(path, out, dtype)
    start = f"{form.engine} does not read {path}; where the command is to run, first: "
    either = f"{start}{ours}; if it refuses that model: {theirs}"
    if not Path(path).is_dir():
        return either
    try:
        form.require(Path(path))
    except ModelError:
        return start + theirs
    except ModuleNotFoundError:  # what reads models is not installed here
        return either
    return start + ours
