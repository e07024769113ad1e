"""How an engine runs one policy, and what of it may change while a server runs.

Lengths here count drafted tokens alone, the root left out; each engine's own file turns them into its own count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...errors import PlanError

Value: TypeAlias = int | float | str | bool
Off = Literal["never", "above", "any"]
DrafterForm = Literal["model", "eagle", "eagle3", "unknown"]
Knobs = tuple[tuple[str, Value], ...]

OF_LLAMA_CPP = "that is llama.cpp's own search, which remembers what it decoded before"  # why others lack a lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDrafter:
    """A plan's drafter as an engine sees it.

    Attributes:
        name: in the plan.
        path: where it lies.
        form: a language model of its own, a head of EAGLE's forms, or not known because its files are not there.
    """

    name: str
    path: str
    form: DrafterForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How an engine runs one policy.

    Settings of equal method, drafter and knobs can stand in one server, as far as `by_batch` and `off` say.

    Attributes:
        method: the engine's own name for how it drafts.
        drafter: who drafts, None where the text does.
        knobs: what is fixed while a server runs, by the engine's own names.
        length: drafted tokens on the longest path.
        by_batch: whether other lengths may stand beside this one, by batch.
        off: where nothing may be drafted instead: never, above some batch, or at any batch.
        longest_first: the smallest batch must have the longest length.
        most_batch: the largest batch it works at; None for any.
        differs: how the engine's way differs from the policy that was replayed; empty where it does not.
    """

    method: str
    drafter: EngineDrafter | None
    knobs: Knobs
    length: int
    by_batch: bool = False
    off: Off = "never"
    longest_first: bool = False
    most_batch: int | None = None
    differs: str = ""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise PlanError(f"a setting drafts at least 1 token, got {self.length}; nothing drafted is no setting")

    @property
    def group(self) -> tuple[str, str | None, Knobs]:
        """What all settings of one server share."""
        return self.method, None if self.drafter is None else self.drafter.name, self.knobs

    def knob(self, name: str) -> Value:
        """Return the value of a knob."""
        return dict(self.knobs)[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a server drafts over a range of batches.

    Attributes:
        first, last: batches, both included; `last` is None for the stage without an end.
        length: drafted tokens; 0 is off.
    """

    first: int
    last: int | None
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What one server does at every batch.

    Attributes:
        setting: of the longest stage; None where nothing is ever drafted.
        stages: by rising batch, without gaps, neighbours different.
        most_batch: the largest batch that was planned.
    """

    setting: Setting | None
    stages: tuple[Stage, ...]
    most_batch: int

    @property
    def longest(self) -> int:
        """The longest length of all stages, 0 where nothing is drafted."""
        return max(stage.length for stage in self.stages)
