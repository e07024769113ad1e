"""What every engine's file offers: how it would run a policy, and its own configuration of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...planner.strategies import TreePolicy
from ...profiler.snapshot import snapshot_at
from .setting import EngineDrafter, Schedule, Setting, Value

Option = tuple[str, str, Value | tuple[tuple[int, ...], ...]]  # section of the schema, name, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A schedule as one engine's configuration.

    Attributes:
        flags: of its command line, as typed.
        files: name and text of each.
        command: to be typed in the folder that holds the files.
        options: all that was set, for the check against the recorded schema.
        notes: what a reader must know or do.
    """

    flags: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    command: str
    options: tuple[Option, ...] = ()
    notes: tuple[str, ...] = ()


def served(target: str) -> tuple[str, ...]:
    """Return how a server's command names its model: a snapshot of the hub's cache by its id and revision."""
    snapshot = snapshot_at(target)
    return (target,) if snapshot is None or snapshot.file else (snapshot.repo, "--revision", snapshot.commit)


class Engine(Protocol):
    """One engine; a new one is a file with this and a line in `table.py`, and a schema of its options."""

    @property
    def name(self) -> str:
        """What people call it, and the name of its schema."""
        ...

    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how the engine runs a policy that drafts, or in one clause why it cannot.

        Args:
            policy: any but plain decoding.
            drafter: the model that drafts; None where the text does.
            version: a recorded one.
        """
        ...

    def sampled(self, setting: Setting, version: str) -> Setting | str:
        """Return how the engine runs a setting where tokens are drawn at a temperature, or why it cannot there.

        Our own drafters draw with the target's noise. An engine's do otherwise, so either its setting says so in
        `differs`, or it keeps at least as many drafts.
        """
        ...

    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return the policies worth a look with a drafter, or with the text where None."""
        ...

    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return the configuration of a schedule.

        Args:
            schedule: of settings this engine returned for this version, and how it ran where it was measured: the
                configuration then makes it run so again.
            target: path of the model.
            version: a recorded one.
        """
        ...
