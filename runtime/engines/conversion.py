"""Conversions that a command needs first, for engines with a model form of their own."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...errors import ModelError
from .setting import EngineDrafter, Schedule


class Elsewhere(Protocol):
    """The command of an engine's own converter."""

    def __call__(self, path: str, out: str, dtype: str | None) -> str:
        """Return the command that writes a model in a number format; None: the converter's choice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModelFormat:
    """An engine's own form of models, and its converters.

    Attributes:
        named: how a command names a model at a path; the path itself where it has the form already.
        require: raises ModelError for a folder that `spectune convert` cannot convert.
        elsewhere: command of the engine's own converter.
        for_heads: what converts heads, which `spectune convert` does not.
        dtypes: number formats that `spectune convert` writes.
    """

    engine: str
    named: Callable[[str], str]  # how a command names a model at a path; the path itself where it has the form already
    require: Callable[[Path], object]  # raises ModelError for a folder that `spectune convert` cannot convert
    elsewhere: Elsewhere  # command of the engine's own converter
    for_heads: str  # what converts heads, which `spectune convert` does not
    dtypes: tuple[str, ...]  # number formats that `spectune convert` writes


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
