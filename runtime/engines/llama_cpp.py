"""llama.cpp: flags of its server.

Counts: draft lengths leave the root out, as ours do. A server drafts one length for all of its slots.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ...planner.policies import ChainPolicy, ConfidentChainPolicy, LookupPolicy, TreePolicy
from .engine import Option, Written
from .grids import CHAINS, CONFIDENT, LOOKUPS
from .schema import schema_of
from .setting import EngineDrafter, Schedule, Setting

TYPES = {"model": "draft-simple", "eagle3": "draft-eagle3"}
DOUBT = "llama.cpp does not verify the token it doubts, the chain that was priced does"
OLD = {"spec-draft-n-max": "draft-max", "spec-draft-n-min": "draft-min", "spec-draft-p-min": "draft-p-min"}
NGRAM, MAPPED = "ngram-simple", "ngram-map-k"


class LlamaCpp:
    """llama.cpp's server."""

    name = "llama.cpp"

    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how llama.cpp runs a policy, or why it cannot."""
        if isinstance(policy, LookupPolicy):
            return self._lookup(policy, version)
        if drafter is None or not isinstance(policy, ChainPolicy | ConfidentChainPolicy):
            return f"llama.cpp has no {policy.kind} drafting: chains, chains that stop at doubt, and n-grams"
        kind = TYPES.get(drafter.form)
        if kind is None or (kind != "draft-simple" and not self._has_types(version)):
            return f"llama.cpp {version} does not draft with {drafter.name}, of form {drafter.form}"
        if isinstance(policy, ChainPolicy):
            return Setting(method=kind, drafter=drafter, knobs=(("p_min", 0.0),), length=policy.length)
        knobs = (("p_min", policy.confidence),)
        return Setting(method=kind, drafter=drafter, knobs=knobs, length=policy.length, differs=DOUBT)

    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return chains of a model, stopped by doubt or not; n-grams of the text."""
        return LOOKUPS if drafter is None else (*CHAINS, *CONFIDENT)

    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return the server's flags."""
        setting, start = schedule.setting, ("llama-server", "--model", gguf_of(target))
        options = [] if setting is None else self._options(setting, schedule.longest, version)
        flags = [part for _, name, value in options for part in (f"--{name}", str(value))]
        converted = [path for path in (target, *_drafter_paths(setting)) if not path.endswith(".gguf")]
        notes = (f"llama.cpp reads GGUF files: convert {' and '.join(converted)} first",) if converted else ()
        return Written(flags=tuple(flags), command=shlex.join([*start, *flags]), options=tuple(options), notes=notes)

    def _has_types(self, version: str) -> bool:
        return schema_of(self.name).knows("flags", "spec-type", version)

    def _lookup(self, policy: LookupPolicy, version: str) -> Setting | str:
        if not self._has_types(version):
            return f"llama.cpp {version} has no n-gram drafting in its server"
        if policy.max_ngram != policy.min_ngram:
            return "llama.cpp looks for one size of n-gram"
        if policy.occurrence == "first":
            return "llama.cpp's ngram-simple copies behind the latest occurrence of the n-gram"
        knobs, method = (("size_n", policy.max_ngram),), MAPPED if policy.occurrence == "mapped" else NGRAM
        return Setting(method=method, drafter=None, knobs=knobs, length=policy.length)

    def _options(self, setting: Setting, length: int, version: str) -> list[Option]:
        found: list[Option] = [("flags", "spec-type", setting.method)] if self._has_types(version) else []
        if setting.drafter is None:
            return [
                *found,
                ("flags", f"spec-{setting.method}-size-n", setting.knob("size_n")),
                ("flags", f"spec-{setting.method}-size-m", length),
            ]
        own = {"spec-draft-n-max": length, "spec-draft-n-min": 0, "spec-draft-p-min": setting.knob("p_min")}
        named = own if self._has_types(version) else {OLD[name]: value for name, value in own.items()}
        where = "spec-draft-model" if self._has_types(version) else "model-draft"
        return [
            *found,
            ("flags", where, gguf_of(setting.drafter.path)),
            *(("flags", name, value) for name, value in named.items()),
        ]


def gguf_of(path: str) -> str:
    """Return the GGUF file of a model: the path itself, or what its folder is called."""
    return path if path.endswith(".gguf") else f"{Path(path).name}.gguf"


def _drafter_paths(setting: Setting | None) -> tuple[str, ...]:
    return () if setting is None or setting.drafter is None else (setting.drafter.path,)
