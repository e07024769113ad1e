"""How an engine runs one policy, and what may change while a server runs; lengths exclude the root."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ..errors import PlanError

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
    """A plan's drafter as an engine sees it."""

    name: str
    path: str
    form: DrafterForm  # "unknown" where its files are missing
    refused: str = ""  # why no engine runs it; empty unless something beside its form is wrong
    architecture: str = ""  # the first in its config.json; empty where it has none
    has_bias: bool = False  # whether the layer that joins an EAGLE head's two inputs has one
    tables: tuple[int, int] | None = None  # vocabulary sizes of it and the target where they are known to differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How an engine runs one policy.

    One server can have several settings of equal method, drafter and knobs, as far as `by_batch` and `off` allow.
    Several policies may have one setting: SGLang has one trie for all sizes of n-grams.

    Attributes:
        method, knobs: by the engine's own names; knobs are fixed while a server runs.
        differs: how the engine deviates from the policy in our own decoder; not part of equality.
    """

    method: str
    drafter: EngineDrafter | None  # None where the text drafts
    knobs: Knobs
    length: int  # drafted tokens on the longest path
    by_batch: bool = False  # whether the length may differ by batch
    off: Off = "never"  # where drafting may be off: never, above some batch, or at any batch
    longest_first: bool = False  # the smallest batch must have the longest length
    most_batch: int | None = None  # the largest batch it works at; None for any
    differs: str = field(default="", compare=False)
    is_padded: bool = False  # whether every round verifies the full length, even of a shorter draft
    distance: int = 0  # of the policy from what the engine does. A setting has the price of its nearest policy

    def __post_init__(self) -> None:
        if self.length < 1:
            raise PlanError(f"a setting drafts at least 1 token, got {self.length}; nothing drafted is no setting")

    @property
    def group(self) -> tuple[str, str | None, Knobs]:
        """What all settings of one server share."""
        return self.method, None if self.drafter is None else self.drafter.name, self.knobs

    @property
    def told(self) -> tuple[str, str | None, Knobs, int]:
        """All that the engine receives: equal for policies that it cannot distinguish."""
        return *self.group, self.length

    def knob(self, name: str) -> Value:
        """Return the value of a knob."""
        return dict(self.knobs)[name]

    def differing(self, way: str) -> Setting:
        """Return the setting with one more deviation."""
        return replace(self, differs=f"{self.differs}; {way}" if self.differs else way)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The length of drafts, 0 for off, over batches `first` to `last`, inclusive; None has no end."""

    first: int
    last: int | None
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConditions:
    """How an engine ran when it measured a plan, always on the CPU; "float32" includes keys and values."""

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
    """What one server does at every batch."""

    setting: Setting | None  # of the longest stage; None where it never drafts
    stages: tuple[Stage, ...]  # by rising batch, without gaps, neighbours different
    most_batch: int  # the largest batch that was planned
    serving: EngineConditions | None = None  # how the engine ran when it measured the plan; None where it did not
    temperature: float = 0.0  # at which acceptance was measured; 0 is greedy
    dtype: str | None = None  # number format of the planned models; None where unknown
    gpu: str = ""  # that was planned for; empty for a CPU

    @property
    def asked(self) -> tuple[str, ...]:
        """The note on the temperature that requests must set, since servers sample by default."""
        return () if self.setting is None else (ASKED.format(temperature=self.temperature),)

    @property
    def served_dtype(self) -> str | None:
        """The number format as a server option; None where servers have none for it."""
        return self.dtype if self.dtype in SERVED else None

    def priced_in(self, who: str) -> tuple[str, ...]:
        """Return the note on the models' number format and what decides it; empty where it was measured so."""
        is_told = self.dtype is None or self.serving is not None
        return () if is_told else (PRICED_IN.format(dtype=self.dtype, who=who),)

    @property
    def unserved(self) -> tuple[str, ...]:
        """The note on a number format that servers have no option for."""
        return () if self.served_dtype else self.priced_in(NO_WORD)

    @property
    def longest(self) -> int:
        """The longest length of all stages, 0 without drafts."""
        return max(stage.length for stage in self.stages)


def with_likeliest(setting: Setting, who: str) -> Setting:
    """Return the setting of an engine that samples, but not drafts; copies of the text stay the same."""
    return setting if setting.drafter is None else setting.differing(LIKELIEST.format(who=who))
