"""llama.cpp's server: one length for all slots, so another length is another start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..planner.strategies.lookup import LookupPolicy
from ..runtime.engines.llama_cpp import LlamaCpp
from ..runtime.engines.schema import nearest_recorded, require_known, schema_of
from ..runtime.engines.setting import EngineDrafter, Setting
from .base import Lengths, PagedServer, Source, drafter_named, json_at
from .command import value_of, without
from .counters import NAMES
from .load import Address

MODEL = ("--spec-draft-model", "-md", "--model-draft")
HUB = ("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft")
DRAFTING = (  # options of how drafts are made, each with a value; where a draft model runs is the user's business
    *MODEL,
    *("--spec-type", "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min", "--draft-p-min"),
    *("--draft", "--draft-n", "--draft-max", "--draft-min", "--draft-n-min"),
    *(f"--spec-ngram-{way}-{end}" for way in ("simple", "map-k", "map-k4v") for end in ("size-n", "size-m")),
)
NGRAM = 3  # tokens of an n-gram that is searched
CHECKED = "b9993 and b11549"


class LlamaCppServer(PagedServer):
    """`llama-server`; a `ServerEngine`."""

    name = "llama.cpp"
    takes_table = False
    counters = NAMES["llama.cpp"]
    example = "llama-server -m target.gguf"

    def plain(self, command: Sequence[str]) -> list[str]:
        """Return a command without anything that drafts."""
        return self.counted(without(command, DRAFTING))

    def counted(self, command: Sequence[str]) -> list[str]:
        """Return a command whose server shows its counters."""
        return [*command, *(() if "--metrics" in command else ("--metrics",))]

    def sources(
        self, command: Sequence[str], drafters: Sequence[EngineDrafter], longest: int, version: str
    ) -> tuple[Source, ...]:
        """Return draft models, and llama.cpp's plain n-gram search."""
        if value_of(command, HUB) is not None:
            raise RequestError(f"{HUB[0]} loads a draft model at every start; give its file with --spec-draft-model")
        own = value_of(command, MODEL)
        named = [*drafters, *([] if own is None else [drafter_named(Path(own).stem, own)])]
        found = [
            Source(
                name=drafter.name,
                is_model=True,
                setting=Setting(method="draft-simple", drafter=drafter, knobs=(("p_min", 0.0),), length=longest),
                checked=CHECKED,
            )
            for drafter in named
        ]
        policy = LookupPolicy(length=longest, max_ngram=NGRAM, min_ngram=NGRAM)
        search = LlamaCpp().setting(policy, None, recorded(version))
        if isinstance(search, Setting):
            found.append(Source(name="n-grams", is_model=False, setting=search, checked=CHECKED))
        return tuple(found)

    def flags(self, source: Source, lengths: Lengths, version: str) -> tuple[str, ...]:
        """Return the flags of a source; every slot drafts the same length."""
        known = recorded(version)
        setting = replace(source.setting, length=max(lengths.values()))
        options = LlamaCpp().drafting(setting, setting.length, known)
        require_known(self.name, known, options)
        return tuple(part for _, name, value in options for part in (f"--{name}", str(value)))

    def version(self, address: Address) -> str:
        """Return the build that the server names."""
        told = json_at(address, "/props") or {}
        return str(told.get("build_info", "")).partition("-")[0]

    def body(self) -> Mapping[str, Any]:
        """Turn off the prompt cache, so that prompts are read in full."""
        return {"cache_prompt": False}


def recorded(version: str) -> str:
    """Return the recorded version whose options hold; a build without a known number counts as the newest."""
    is_known = any(letter in "123456789" for letter in version)
    return nearest_recorded("llama.cpp", version) if is_known else schema_of("llama.cpp").versions[-1]
