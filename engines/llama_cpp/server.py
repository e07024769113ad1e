"""llama.cpp's server: one length for all slots, so another length is another start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import RequestError
from ...planner.strategies.lookup import LookupPolicy
from ..command import value_of, without
from ..load import Address
from ..schema import nearest_recorded, require_known, schema_of
from ..server_engine import Lengths, ServerEngine, Source, drafter_named, json_at
from ..setting import EngineDrafter, Setting
from .counters import COUNTERS
from .export import EXPORT

MODEL = ("--spec-draft-model", "-md", "--model-draft")
TYPE = ("--spec-type",)
HUB = ("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft")
DRAFTING = (  # options of how drafts are made, each with a value; where a draft model runs is the user's business
    *MODEL,
    *(*TYPE, "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min", "--draft-p-min"),
    *("--draft", "--draft-n", "--draft-max", "--draft-min", "--draft-n-min"),
    *(f"--spec-ngram-{way}-{end}" for way in ("simple", "map-k", "map-k4v") for end in ("size-n", "size-m")),
)
DEFAULT = ("--spec-default",)  # n-grams of llama.cpp's own choice
MODELS = tuple(f"draft-{way}" for way in ("simple", "eagle3", "mtp", "dflash", "dspark"))
SEARCHES = tuple(f"ngram-{way}" for way in ("simple", "map-k", "map-k4v"))  # whose length is an option
BESIDE = ("ngram-mod", "ngram-cache")  # searches without a length to choose, taken beside a model alone
NGRAM = 3  # tokens of an n-gram that is searched
CHECKED, PARSED = "b9993 and b11549", "parsed only"


class LlamaCppServer(ServerEngine):
    """`llama-server`."""

    name = "llama.cpp"
    takes_table = False
    counters = COUNTERS
    example = "llama-server -m target.gguf"

    def plain(self, command: Sequence[str]) -> list[str]:
        """Return a command without anything that drafts."""
        return self.counted(without(command, DRAFTING, DEFAULT))

    def counted(self, command: Sequence[str]) -> list[str]:
        """Return a command whose server shows its counters."""
        return [*command, *(() if "--metrics" in command else ("--metrics",))]

    def sources(
        self, command: Sequence[str], drafters: Sequence[EngineDrafter], longest: int, version: str
    ) -> tuple[Source, ...]:
        """Return draft models, what the command itself drafts with, and llama.cpp's plain n-gram search."""
        if value_of(command, HUB) is not None:
            raise RequestError(f"{HUB[0]} loads a draft model at every start; give its file with --spec-draft-model")
        own, types = value_of(command, MODEL), value_of(command, TYPE) or "none"
        is_simple = types in ("none", "draft-simple") and own is not None
        named = [*drafters, *([drafter_named(Path(str(own)).stem, str(own))] if is_simple else [])]
        found = [
            Source(
                name=drafter.name,
                is_model=True,
                setting=Setting(method="draft-simple", drafter=drafter, knobs=(("p_min", 0.0),), length=longest),
                checked=CHECKED,
            )
            for drafter in named
        ]
        if types not in ("none", "draft-simple", "ngram-simple"):
            found.append(_own(command, types.split(","), longest))
        policy = LookupPolicy(length=longest, max_ngram=NGRAM, min_ngram=NGRAM)
        search = EXPORT.setting(policy, None, recorded(version))
        if isinstance(search, Setting):
            found.append(Source(name="n-grams", is_model=False, setting=search, checked=CHECKED))
        return tuple(found)

    def flags(self, source: Source, lengths: Lengths, version: str) -> tuple[str, ...]:
        """Return the flags of a source; every slot drafts the same length."""
        if source.checked == PARSED:
            return _flags_of_own(source, max(lengths.values()))
        known = recorded(version)
        setting = replace(source.setting, length=max(lengths.values()))
        options = EXPORT.drafting(setting, setting.length, known)
        require_known(self.name, known, options)
        return tuple(part for _, name, value in options for part in (f"--{name}", str(value)))

    def version(self, address: Address) -> str:
        """Return the build that the server names."""
        told = json_at(address, "/props") or {}
        return str(told.get("build_info", "")).partition("-")[0]

    def body(self) -> Mapping[str, Any]:
        """Turn off the prompt cache, so that prompts are read in full."""
        return {"cache_prompt": False}


def _own(command: Sequence[str], types: Sequence[str], longest: int) -> Source:
    """Return a command's own draft types, with another length.

    Of a model beside n-grams the length is the model's. RequestError where the length cannot be chosen.
    """
    models = [one for one in types if one in MODELS]
    others = [one for one in types if one not in models]
    able = (*SEARCHES, *BESIDE) if models else SEARCHES
    if len(models) > 1 or any(one not in able for one in others):
        raise RequestError(
            f"how --spec-type {','.join(types)} takes a length is not known here; leave it out, or give one of "
            f"{', '.join(MODELS)}, with {', '.join((*SEARCHES, *BESIDE))} beside it or not, or n-grams with a length"
        )
    path = value_of(command, MODEL) if models else None
    kept = {name: value for name in DRAFTING[len(MODEL) :] if (value := value_of(command, (name,))) is not None}
    return Source(
        name="+".join(types) if path is None else Path(path).stem,
        is_model=bool(models),
        setting=Setting(
            method=",".join(types),
            drafter=None if path is None else drafter_named(Path(path).stem, path),
            knobs=(),
            length=longest,
        ),
        checked=PARSED,
        kept={name: value for name, value in kept.items() if name.startswith("--spec-ngram-")},
    )


def _flags_of_own(source: Source, length: int) -> tuple[str, ...]:
    types, drafter = source.setting.method.split(","), source.setting.drafter
    flags = {TYPE[0]: source.setting.method, **source.kept}
    if any(one in MODELS for one in types):
        flags |= {} if drafter is None else {MODEL[0]: drafter.path}
        flags |= {"--spec-draft-n-max": str(length), "--spec-draft-n-min": "0", "--spec-draft-p-min": "0.0"}
    else:
        flags |= {f"--spec-{one}-size-m": str(length) for one in types}
    return tuple(part for pair in flags.items() for part in pair)


def recorded(version: str) -> str:
    """Return the recorded version whose options hold; a build without a known number counts as the newest."""
    is_known = any(letter in "123456789" for letter in version)
    return nearest_recorded("llama.cpp", version) if is_known else schema_of("llama.cpp").versions[-1]


SERVER = LlamaCppServer()
