"""TensorRT-LLM: `speculative_config` in the YAML of `--config`.

`max_draft_len` and `max_total_draft_tokens` exclude the root: an EAGLE-2 tree that verifies n tokens has n - 1. A key
of `draft_len_schedule` is the last batch of its length (the first in versions older than those recorded here). Beyond
the largest key there are no drafts, and the smallest key's length is `max_draft_len`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from ...planner.strategies import TreePolicy
from ...planner.strategies.lookup import LookupPolicy
from ..base import ExportEngine, Option, Rule, Written, values_of
from ..grids import CHAINS, FIRST_LOOKUPS, LOOKUPS, TREES
from ..setting import OF_LLAMA_CPP, PADS, EngineDrafter, Knobs, Schedule, Setting, Value, with_likeliest

if TYPE_CHECKING:
    from ...planner.strategies.eagle2 import Eagle2Policy


FILE = "speculative.yaml"
DTYPE = "TensorRT-LLM computes in what the checkpoint's config.json says, unless the YAML's own dtype says otherwise"
WARM = (
    "where nothing is scheduled TensorRT-LLM drafts nothing, or one token with a draft model: its sources since summer "
    "2026 keep the cache of one filled so; its statistics tell which"
)


class TensorRTLLM(ExportEngine):
    """TensorRT-LLM's server, PyTorch backend."""

    name = "tensorrt-llm"

    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how TensorRT-LLM runs a policy, or why it cannot."""
        if isinstance(policy, LookupPolicy):
            if policy.occurrence == "mapped":
                return OF_LLAMA_CPP
            return _lookup(policy)
        if drafter is None or (policy.kind != "chain" and policy.kind != "eagle2"):
            return f"TensorRT-LLM has no {policy.kind} drafting: chains, dynamic trees of EAGLE-3 heads, and n-grams"
        if drafter.form == "model":
            if policy.kind == "eagle2":
                return "TensorRT-LLM drafts trees with EAGLE-3 heads only"
            return _chain("Draft_Target", drafter, policy.length)
        if drafter.form != "eagle3":
            return f"{drafter.name} is no language model and no EAGLE-3 head, as far as its files tell"
        if policy.kind == "eagle2":
            return _tree(policy, drafter)
        return _chain("Eagle3", drafter, policy.length)

    def sampled(self, setting: Setting, version: str) -> Setting | str:
        """Return the setting: drafters draft the likeliest tokens, matched against the target's own draws."""
        return with_likeliest(setting, "TensorRT-LLM")

    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return chains and beams of a model, n-grams of the text."""
        return (*LOOKUPS, *FIRST_LOOKUPS) if drafter is None else (*CHAINS, *TREES)

    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return the YAML file and the command that reads it."""
        setting, start = schedule.setting, ("trtllm-serve", target)
        if setting is None:
            return Written(command=shlex.join(start), notes=schedule.priced_in(DTYPE))
        values: dict[str, object] = {"decoding_type": setting.method, "max_draft_len": schedule.longest}
        if setting.drafter is not None:
            values["speculative_model"] = setting.drafter.path
        values |= dict(setting.knobs)
        options: list[Option] = [("config", name, value) for name, value in values.items() if _is_plain(value)]
        notes: tuple[str, ...] = ()
        if len(schedule.stages) > 1:
            more, option, notes = _by_batch(schedule, setting)
            values |= more
            options.append(option)
        flags = ("--config", FILE)
        return Written(
            flags=flags,
            files=((FILE, yaml_of({"speculative_config": values})),),
            command=shlex.join((*start, *flags)),
            options=tuple(options),
            notes=(*notes, *schedule.priced_in(DTYPE), *schedule.asked),
        )

    def rules(self, options: Sequence[Option]) -> Iterator[Rule]:
        """Yield TensorRT-LLM's rules.

        Source: `DecodingBaseConfig` and `Eagle3DecodingConfig` of tensorrt_llm/llmapi/llm_args.py.
        """
        told = values_of(options)
        rows, longest = told.get("draft_len_schedule"), told.get("max_draft_len")
        if rows is not None:
            lengths = [length for _, length in rows]
            yield lengths[0] == longest, f"the smallest batch drafts max_draft_len: {lengths[0]}, {longest}"
            yield max(lengths) == longest, f"no batch drafts more than max_draft_len: {max(lengths)}, {longest}"
            yield "max_concurrency" not in told, "max_concurrency and draft_len_schedule exclude each other"
        if told.get("use_dynamic_tree"):
            names = ("max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens")
            yield set(names) <= set(told), f"a dynamic tree has {', '.join(names)}"
            longest, width, tokens = (told[name] for name in names)
            most = width * longest
            yield (
                longest <= tokens <= most,
                f"{longest} layers of width {width} have {longest} to {most} tokens: {tokens}",
            )


EXPORT = TensorRTLLM()


def _lookup(policy: LookupPolicy) -> Setting | str:
    """Return the n-grams of a size and a length.

    Source: `pad_draft_tokens_for_cuda_graph` of tensorrt_llm/_torch/speculative/drafter.py pads every draft.
    """
    if policy.min_ngram > 1:
        return "TensorRT-LLM's n-grams have a longest size, and always look down to 1"
    knobs: Knobs = (
        ("max_matching_ngram_size", policy.max_ngram),
        ("is_keep_all", True),
        ("is_use_oldest", policy.occurrence == "first"),
        ("is_public_pool", False),  # of this request alone, as was replayed
    )
    return Setting(
        method="NGram",
        drafter=None,
        knobs=knobs,
        length=policy.length,
        off="above",
        differs=PADS.format(who="TensorRT-LLM"),
        is_padded=True,
    )


def _chain(method: str, drafter: EngineDrafter, length: int) -> Setting:
    """Return a chain whose length follows the batch.

    Source: `support_dynamic_draft_len` of tensorrt_llm/_torch/speculative/interface.py, since pull request 12262.
    """
    return Setting(
        method=method, drafter=drafter, knobs=(), length=length, by_batch=True, off="any", longest_first=True
    )


def _tree(policy: Eagle2Policy, drafter: EngineDrafter) -> Setting | str:
    drafted, layers = policy.max_verify_tokens - 1, policy.depth + 1
    if not layers <= drafted <= policy.top_k * layers:
        return f"a dynamic tree holds {layers} to {policy.top_k * layers} drafted tokens at this depth and width"
    knobs: Knobs = (
        ("use_dynamic_tree", True),
        ("dynamic_tree_max_topK", policy.top_k),
        ("max_total_draft_tokens", drafted),
    )
    return Setting(method="Eagle3", drafter=drafter, knobs=knobs, length=layers)


def _by_batch(schedule: Schedule, setting: Setting) -> tuple[dict[str, object], Option, tuple[str, ...]]:
    """Return the option that makes lengths follow the batch: a schedule, or the last batch with n-grams."""
    if not setting.by_batch:
        last = schedule.stages[0].last
        assert last is not None and len(schedule.stages) == 2, "drafting that ends has two stages"
        return {"max_concurrency": last}, ("config", "max_concurrency", last), ()
    lengths = [(stage.last or schedule.most_batch, stage.length) for stage in schedule.stages]
    notes: tuple[str, ...] = ()
    if lengths[-1][1] == 0:
        lengths.pop()
    else:
        notes = (f"beyond batch {lengths[-1][0]}, the largest that was planned, TensorRT-LLM drafts nothing",)
    if setting.drafter is not None and setting.drafter.form == "model":
        notes = (*notes, WARM)
    rows = dict(lengths)
    return {"draft_len_schedule": rows}, ("config", "draft_len_schedule", tuple(lengths)), notes


def _is_plain(value: object) -> TypeGuard[Value]:
    return isinstance(value, int | float | str)


Yaml = Mapping[str, object]


def yaml_of(values: Yaml) -> str:
    """Return a mapping as YAML text; values are mappings, texts, numbers and booleans, quoted as in JSON."""
    return "\n".join(_lines(values, "")) + "\n"


def _lines(values: Mapping[str, object], indent: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {json.dumps(value)}"
