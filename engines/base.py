"""What an engine exports: how it would run a policy, and its configuration of a schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..planner.strategies import TreePolicy
from ..profiler.snapshot import snapshot_at
from .setting import EngineDrafter, Schedule, Setting, Value

Option = tuple[str, str, Value | tuple[tuple[int, ...], ...]]  # section of the schema, name, value
Rule = tuple[bool, str]  # whether it holds, and what it says; none is asked for behind one that does not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A schedule as one engine's configuration."""

    flags: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()  # name and text of each, for the folder in which `command` is typed
    command: str
    options: tuple[Option, ...] = ()  # all that was set, for the check against the recorded schema
    notes: tuple[str, ...] = ()  # what a reader must know or do


def served(target: str) -> tuple[str, ...]:
    """Return how a server's command names its model: a snapshot of the hub's cache by its id and revision."""
    snapshot = snapshot_at(target)
    return (target,) if snapshot is None or snapshot.file else (snapshot.repo, "--revision", snapshot.commit)


def values_of(options: Sequence[Option]) -> Mapping[str, Any]:  # Any: each has its schema's type
    """Return the values of options by their names."""
    return {name: value for _, name, value in options}


class ExportEngine(ABC):
    """The part `export.py` of an engine's folder; its options stand in `schema.json` beside it."""

    name: ClassVar[str]  # as in `table.py`

    @abstractmethod
    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how the engine runs a policy that drafts, or in one clause why not; `drafter` None: text drafts."""

    @abstractmethod
    def sampled(self, setting: Setting, version: str) -> Setting | str:
        """Return how the engine runs a setting at a temperature, or why it cannot.

        Our own drafters draw with the target's noise. An engine's do not, so either its setting says so in `differs`,
        or it accepts at least as many drafts.
        """

    @abstractmethod
    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return the policies worth a try with a drafter, or with the text where None."""

    @abstractmethod
    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return the configuration of a schedule of the engine's settings; one measured in it runs the same way."""

    def rules(self, options: Sequence[Option]) -> Iterable[Rule]:
        """Return what options, each valid by its schema, must be to each other."""
        return ()
