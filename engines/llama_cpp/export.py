"""llama.cpp: flags of its server."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...planner.strategies import TreePolicy
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ..base import ExportEngine, Option, Written
from ..conversion import conversions, drafter_named
from ..grids import CHAINS, CONFIDENT, LOOKUPS
from ..schema import schema_of
from ..setting import EngineDrafter, Schedule, Setting, with_likeliest
from .model_format import MODEL_FORMAT, gguf_of

TYPES = {"model": "draft-simple", "eagle3": "draft-eagle3"}
DOUBT = "llama.cpp does not verify the token it doubts, the chain that was priced does"
WHOLE = "llama.cpp drafts nothing in loops that are no longer than the n-gram; the lookup that was priced does"
SHARED = "{slots} slots share the context: give --ctx-size {slots} times the tokens of the longest text"
DTYPE = "llama.cpp computes with what its GGUF files hold"
OLD = {  # names before draft types had one
    "spec-draft-model": "model-draft",
    "spec-draft-n-max": "draft-max",
    "spec-draft-n-min": "draft-min",
    "spec-draft-p-min": "draft-p-min",
    "spec-draft-ngl": "n-gpu-layers-draft",
    "spec-draft-type-k": "cache-type-k-draft",
    "spec-draft-type-v": "cache-type-v-draft",
}
NGRAM, MAPPED = "ngram-simple", "ngram-map-k"


class LlamaCpp(ExportEngine):
    """llama.cpp's server."""

    name = "llama.cpp"

    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how llama.cpp runs a policy, or why it cannot."""
        if isinstance(policy, LookupPolicy):
            return self._lookup(policy, version)
        if drafter is None or (policy.kind != "chain" and policy.kind != "confident-chain"):
            return f"llama.cpp has no {policy.kind} drafting: chains, chains that stop at doubt, and n-grams"
        kind = TYPES.get(drafter.form)
        if kind is None or (kind != "draft-simple" and not self._has_types(version)):
            return f"llama.cpp {version} does not draft with {drafter.name}, of form {drafter.form}"
        if isinstance(policy, ChainPolicy):
            return Setting(method=kind, drafter=drafter, knobs=(("p_min", 0.0),), length=policy.length)
        knobs = (("p_min", policy.confidence),)
        return Setting(method=kind, drafter=drafter, knobs=knobs, length=policy.length, differs=DOUBT, distance=1)

    def sampled(self, setting: Setting, version: str) -> Setting | str:
        """Return the setting: drafters draft the likeliest tokens, matched against the target's own draws."""
        return with_likeliest(setting, "llama.cpp")

    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return chains of a model, stopped by doubt or not; n-grams of the text."""
        return LOOKUPS if drafter is None else (*CHAINS, *CONFIDENT)

    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return the server's flags."""
        options = self._all_options(schedule, target, version)
        flags = self.flags(schedule, target, version)
        return Written(
            flags=flags,
            command=shlex.join(["llama-server", "--model", gguf_of(target), *flags]),
            options=tuple(options),
            notes=(*conversions(MODEL_FORMAT, schedule, target), *_remarks(schedule)),
        )

    def flags(self, schedule: Schedule, target: str, version: str) -> tuple[str, ...]:
        """Return the server's flags behind its model."""
        options = self._all_options(schedule, target, version)
        return tuple(part for _, name, value in options for part in (f"--{name}", str(value)))

    def drafting(self, setting: Setting, length: int, version: str) -> list[Option]:
        """Return the options that draft, and no others; the drafter's path is that of a file."""
        drafter = setting.drafter
        path = "" if drafter is None else drafter.path
        return self._named(self._options(setting, length, path, version), version)

    def _has_types(self, version: str) -> bool:
        return schema_of(self.name).knows("flags", "spec-type", version)

    def _lookup(self, policy: LookupPolicy, version: str) -> Setting | str:
        if not self._has_types(version):
            return f"llama.cpp {version} has no n-gram drafting in its server"
        if policy.max_ngram != policy.min_ngram:
            return "llama.cpp looks for one size of n-gram"
        if policy.occurrence == "first":
            return "llama.cpp's ngram-simple copies behind the latest occurrence of the n-gram"
        knobs = (("size_n", policy.max_ngram),)
        if policy.occurrence == "mapped":
            return Setting(method=MAPPED, drafter=None, knobs=knobs, length=policy.length)
        return Setting(method=NGRAM, drafter=None, knobs=knobs, length=policy.length, differs=WHOLE)

    def _all_options(self, schedule: Schedule, target: str, version: str) -> list[Option]:
        setting = schedule.setting
        drafting = [] if setting is None else self._options(setting, schedule.longest, target, version)
        return self._named([*drafting, *_serving(schedule)], version)

    def _options(self, setting: Setting, length: int, target: str, version: str) -> list[Option]:
        found: list[Option] = [("flags", "spec-type", setting.method)] if self._has_types(version) else []
        if not setting.knobs:  # a search with default sizes
            return found
        if setting.drafter is None:
            return [
                *found,
                ("flags", f"spec-{setting.method}-size-n", setting.knob("size_n")),
                ("flags", f"spec-{setting.method}-size-m", length),
            ]
        return [
            *found,
            ("flags", "spec-draft-model", drafter_named(setting.drafter, target, gguf_of)),
            ("flags", "spec-draft-n-max", length),
            ("flags", "spec-draft-n-min", 0),
            ("flags", "spec-draft-p-min", setting.knob("p_min")),
        ]

    def _named(self, options: Sequence[Option], version: str) -> list[Option]:
        if self._has_types(version):
            return list(options)
        return [(section, OLD.get(name, name), value) for section, name, value in options]


EXPORT = LlamaCpp()


def _serving(schedule: Schedule) -> list[Option]:
    """Return a slot per sequence, and, for a plan measured in this server, the options it ran with."""
    slots: list[Option] = [("flags", "parallel", schedule.most_batch)]
    serving = schedule.serving
    if serving is None:
        return slots
    is_drafted = schedule.setting is not None and schedule.setting.drafter is not None
    names = ["n-gpu-layers", *(["spec-draft-ngl"] if is_drafted else [])]
    caches = ["cache-type-k", "cache-type-v", *(["spec-draft-type-k", "spec-draft-type-v"] if is_drafted else [])]
    return [
        *slots,
        *([] if serving.threads is None else [("flags", "threads", serving.threads)]),
        *(("flags", name, 0) for name in names),
        *(("flags", name, "f32") for name in (caches if serving.dtype == "float32" else ())),
    ]


def _remarks(schedule: Schedule) -> tuple[str, ...]:
    shared = (SHARED.format(slots=schedule.most_batch),) if schedule.most_batch > 1 else ()
    serving = () if schedule.serving is None else schedule.serving.notes
    return (*shared, *serving, *schedule.priced_in(DTYPE), *schedule.asked)
