"""How an engine runs one policy, and what of it may change while a server runs.

Lengths here count drafted tokens alone, the root left out; each engine's own file turns them into its own count.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ...errors import PlanError

Value: TypeAlias = int | float | str | bool
Off = Literal["never", "above", "any"]
DrafterForm = Literal["model", "eagle", "eagle3", "unknown"]
Knobs = tuple[tuple[str, Value], ...]

ASKED = (
    "what is kept of drafts was recorded at temperature {temperature:g}: let requests ask for it, since the server's "
    "own sampling, or that of the model's generation_config.json, holds for those that ask for nothing"
)
SERVED = ("float32", "bfloat16", "float16")  # number formats that servers have a word for
NO_WORD = "the server has no word for that, and computes in what the checkpoint's config.json says"
PRICED_IN = "the plan was priced with models in {dtype}: {who}"
LIKELIEST = (
    "{who} drafts its drafter's likeliest tokens at any temperature; what was priced draws them with the target's own "
    "noise, and the nearer a drafter is to its target, the more of these are kept: what rounds keep here was not "
    "recorded, the server's own counters tell it"
)
PADS = "{who} verifies its full length in every round, whatever its lookup found; our own decoder, what it found"
PADDED = (
    "{engine} takes no draft model whose table of tokens is of another size than the target's, and that of {name} has "
    "{tables[0]} rows for {tables[1]}; pad it to them"
)
OF_LLAMA_CPP = "that is llama.cpp's own search, which remembers what it decoded before"  # why others lack a lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDrafter:
    """A plan's drafter as an engine sees it.

    Attributes:
        name: in the plan.
        path: where it lies.
        form: a language model of its own, a head of EAGLE's forms, or not known because its files are not there.
        refused: why no engine runs it; empty where nothing speaks against it but its form.
        architecture: that its config.json names; empty where it names none.
        has_bias: whether what joins the two inputs of an EAGLE head adds one.
        tables: rows of its table of tokens and of the target's where they are known to differ, by what pads them.
    """

    name: str
    path: str
    form: DrafterForm
    refused: str = ""
    architecture: str = ""
    has_bias: bool = False
    tables: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How an engine runs one policy.

    Settings of equal method, drafter and knobs can stand in one server, as far as `by_batch` and `off` say. Several
    policies may be written as one setting: SGLang has one trie, whatever sizes of n-grams a lookup looks for.

    Attributes:
        method: the engine's own name for how it drafts.
        drafter: who drafts, None where the text does.
        knobs: what is fixed while a server runs, by the engine's own names.
        length: drafted tokens on the longest path.
        by_batch: whether other lengths may stand beside this one, by batch.
        off: where nothing may be drafted instead: never, above some batch, or at any batch.
        longest_first: the smallest batch must have the longest length.
        most_batch: the largest batch it works at; None for any.
        differs: how the engine's way differs from the policy as our own decoder runs it; empty where it does not. It is
            a remark: settings that differ in it alone are equal.
        is_padded: whether every round verifies the full length, however little there was to draft.
        distance: how far the policy is from what the engine does, 0 where none is nearer. Of all policies that are
            written as this setting, the price of the nearest one is the setting's.
    """

    method: str
    drafter: EngineDrafter | None
    knobs: Knobs
    length: int
    by_batch: bool = False
    off: Off = "never"
    longest_first: bool = False
    most_batch: int | None = None
    differs: str = field(default="", compare=False)
    is_padded: bool = False
    distance: int = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise PlanError(f"a setting drafts at least 1 token, got {self.length}; nothing drafted is no setting")

    @property
    def group(self) -> tuple[str, str | None, Knobs]:
        """What all settings of one server share."""
        return self.method, None if self.drafter is None else self.drafter.name, self.knobs

    @property
    def told(self) -> tuple[str, str | None, Knobs, int]:
        """All that the engine is told: equal for policies that it cannot tell apart."""
        return *self.group, self.length

    def knob(self, name: str) -> Value:
        """Return the value of a knob."""
        return dict(self.knobs)[name]

    def differing(self, way: str) -> Setting:
        """Return the setting with one more way in which the engine's differs."""
        return replace(self, differs=f"{self.differs}; {way}" if self.differs else way)


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
class Serving:
    """How an engine ran when a plan for it was measured: on the CPU, always.

    Attributes:
        dtype: number format of weights; with "float32" keys and values were kept in it, too.
        threads: that computed, None where the plan does not say.
    """

    dtype: str
    threads: int | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must add by hand."""
        if self.threads is not None:
            return ()
        return ("the plan does not say how many threads computed when it was measured; set as many by hand",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What one server does at every batch.

    Attributes:
        setting: of the longest stage; None where nothing is ever drafted.
        stages: by rising batch, without gaps, neighbours different.
        most_batch: the largest batch that was planned.
        serving: how it ran when the plan was measured in it; None where it was not.
        temperature: at which acceptance was measured; 0 is greedy.
        dtype: number format of the models that were planned for; None where nobody says.
        gpu: that was planned for, by name; empty for a CPU.
    """

    setting: Setting | None
    stages: tuple[Stage, ...]
    most_batch: int
    serving: Serving | None = None
    temperature: float = 0.0
    dtype: str | None = None
    gpu: str = ""

    @property
    def asked(self) -> tuple[str, ...]:
        """What requests to a server must ask for: their own temperature, since servers sample unless told."""
        return () if self.setting is None else (ASKED.format(temperature=self.temperature),)

    @property
    def served_dtype(self) -> str | None:
        """The number format as servers are told it; None where they have no word for it."""
        return self.dtype if self.dtype in SERVED else None

    def priced_in(self, who: str) -> tuple[str, ...]:
        """Say in which number format models must be, and who decides that; nothing where it was measured so."""
        is_told = self.dtype is None or self.serving is not None
        return () if is_told else (PRICED_IN.format(dtype=self.dtype, who=who),)

    @property
    def unserved(self) -> tuple[str, ...]:
        """What a reader must know where a server cannot be told the number format."""
        return () if self.served_dtype else self.priced_in(NO_WORD)

    @property
    def longest(self) -> int:
        """The longest length of all stages, 0 where nothing is drafted."""
        return max(stage.length for stage in self.stages)


def with_likeliest(setting: Setting, who: str) -> Setting:
    """Return the setting of an engine that draws tokens, but no drafts: copies of the text are the same ones anyway.

    Args:
        setting: as the engine runs it where nothing is drawn.
        who: the engine, as people call it.
    """
    return setting if setting.drafter is None else setting.differing(LIKELIEST.format(who=who))
