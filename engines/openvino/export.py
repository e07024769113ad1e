"""OpenVINO GenAI: a generation configuration, and a draft model or prompt lookup in the pipeline.

`num_assistant_tokens` excludes the root; a tree of b branches and d layers has at most b^2 (d - 1) + b of them. An
EAGLE-2 tree that verifies n tokens d + 1 deep has n - 1, and `tree_depth` d + 1.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...planner.strategies import TreePolicy
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ..base import ExportEngine, Option, Rule, Written, values_of
from ..conversion import conversions, drafter_named
from ..grids import CHAINS, CONFIDENT, FIRST_LOOKUPS, TREES
from ..one_sequence import first_lookup
from ..schema import schema_of
from ..setting import PADS, EngineConditions, EngineDrafter, Knobs, Schedule, Setting, Value
from .model_format import MODEL_FORMAT, openvino_of

if TYPE_CHECKING:
    from ...planner.strategies.eagle2 import Eagle2Policy

DTYPE = "OpenVINO's files hold float32 or float16, and INFERENCE_PRECISION_HINT says what it computes in"
ON_CPU = "the plan was made on {gpu}, and this program computes on a CPU, where another one may be faster"
SCRIPT, FILE = "generate.py", "generation.json"
FILLS = PADS.format(who="OpenVINO")
FIRST = f"OpenVINO copies behind the first occurrence of the n-gram, what was priced behind the latest; {FILLS}"
UNBOUNDED = "OpenVINO's threshold has no length beside it; its chains end at doubt alone"
NO_LENGTH = max(
    (one.draft_forwards for one in CONFIDENT), default=0
)  # stands for that of a chain that ends at doubt alone
DEAF = "OpenVINO GenAI 2026 drafts one token a round with any threshold (measured on 2026.4.1)"
DOUBTS = ("2025",)  # recorded versions that are not known to be so
DRAWS_NO_TREES = "OpenVINO searches trees of drafts for greedy decoding only"
THRESHOLD = "assistant_confidence_threshold"
# Else a CPU keeps 8 bits of keys and values.
EXACT: Mapping[str, Value] = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PROGRAM = '''\
"""Decode a prompt as planned; usage: python generate.py PROMPT"""

import json
import sys

import openvino_genai

config = openvino_genai.GenerationConfig(max_new_tokens=128, {sampling})
for name, value in json.load(open("generation.json")).items():
    setattr(config, name, value)
if hasattr(config, "apply_chat_template"):  # 2025.0 has none and applies none
    config.apply_chat_template = False  # prompts are continued as they are, as in the plan's measurements
properties = {properties}  # of the target and of a draft model
scheduler = openvino_genai.SchedulerConfig()  # with it the pipeline batches continuously
pipeline = openvino_genai.LLMPipeline({target}, "CPU", scheduler_config=scheduler{drafting}, **properties)
print(pipeline.generate(sys.argv[1], config))
'''


class OpenVINO(ExportEngine):
    """OpenVINO GenAI's pipeline with continuous batching."""

    name = "openvino"

    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how OpenVINO GenAI runs a policy, or why it cannot."""
        if isinstance(policy, LookupPolicy):
            return _lookup(policy)
        if drafter is None or (policy.kind != "chain" and policy.kind != "confident-chain" and policy.kind != "eagle2"):
            return f"OpenVINO has no {policy.kind} drafting: chains, trees of EAGLE-3 heads, and prompt lookup"
        if drafter.form not in ("model", "eagle3"):
            return f"{drafter.name} is no language model and no EAGLE-3 head, as far as its files tell"
        if drafter.form == "eagle3" and not self._has_trees(version):
            return f"OpenVINO GenAI {version} takes no EAGLE-3 heads"
        if policy.kind == "eagle2":
            return _tree(policy, drafter)
        if isinstance(policy, ChainPolicy):
            return Setting(method="draft model", drafter=drafter, knobs=(), length=policy.length)
        if drafter.form != "model":
            return "OpenVINO's confidence threshold is not for EAGLE heads"
        if version not in DOUBTS:
            return DEAF
        return Setting(
            method="draft model",
            drafter=drafter,
            knobs=((THRESHOLD, policy.confidence),),
            length=NO_LENGTH,
            differs=UNBOUNDED,
            distance=abs(NO_LENGTH - policy.length),
        )

    def sampled(self, setting: Setting, version: str) -> Setting | str:
        """Return the setting, whose drafts are sampled, too; trees cannot be."""
        return DRAWS_NO_TREES if dict(setting.knobs).get("tree_depth") else setting

    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return chains and beams of a model, and its longest confident chains; n-grams of the text."""
        if drafter is None:
            return FIRST_LOOKUPS
        return (*CHAINS, *TREES, *(one for one in CONFIDENT if one.draft_forwards == NO_LENGTH))

    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return a program and the generation configuration it reads."""
        setting, serving, drawn = schedule.setting, schedule.serving, _drawn(schedule.temperature)
        values: dict[str, Value] = {} if setting is None else dict(setting.knobs)
        if setting is not None and THRESHOLD not in values:  # they exclude each other
            values["num_assistant_tokens"] = int(values.get("num_assistant_tokens", schedule.longest))
        program = PROGRAM.format(
            target=json.dumps(openvino_of(target)),
            drafting=_drafting(setting, target),
            sampling=", ".join(f"{name}={value}" for name, value in drawn.items()),
            properties=json.dumps({} if serving is None else properties_of(serving)),
        )
        options: list[Option] = [("generation", name, value) for name, value in (drawn | values).items()]
        return Written(
            files=((SCRIPT, program), (FILE, json.dumps(values, indent=1) + "\n")),
            command=shlex.join(("python", SCRIPT, "a prompt")),
            options=tuple(options),
            notes=(
                *conversions(MODEL_FORMAT, schedule, target),
                *(() if serving is None else serving.notes),
                *schedule.priced_in(DTYPE),
                *((ON_CPU.format(gpu=schedule.gpu),) if schedule.gpu else ()),
            ),
        )

    def rules(self, options: Sequence[Option]) -> Iterator[Rule]:
        """Yield OpenVINO GenAI's rules.

        Source: src/cpp/include/openvino/genai/generation_config.hpp, and validate() of
        src/cpp/src/generation_config.cpp.
        """
        told = values_of(options)
        drafted, depth, width = (
            told.get("num_assistant_tokens"),
            told.get("tree_depth", 0),
            told.get("branching_factor", 1),
        )
        is_one = drafted is None or "assistant_confidence_threshold" not in told
        yield is_one, "num_assistant_tokens and assistant_confidence_threshold exclude each other"
        if depth:
            most = width**2 * (depth - 1) + width
            fits = drafted is not None and depth <= drafted <= most
            yield fits, f"a tree of {depth} layers and {width} branches has {depth} to {most} tokens: {drafted}"
            yield not told.get("do_sample"), f"trees are searched for greedy decoding only: do_sample, {depth} layers"

    def _has_trees(self, version: str) -> bool:
        return schema_of(self.name).knows("generation", "branching_factor", version)


EXPORT = OpenVINO()


def _drawn(temperature: float) -> dict[str, Value]:
    return {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}


def properties_of(serving: EngineConditions) -> dict[str, Value]:
    """Return the properties by which a pipeline runs as it was measured."""
    threads: dict[str, Value] = {} if serving.threads is None else {"INFERENCE_NUM_THREADS": serving.threads}
    return {**threads, **(EXACT if serving.dtype == "float32" else {})}


def _lookup(policy: LookupPolicy) -> Setting | str:
    found = first_lookup(policy, "OpenVINO", "max_ngram_size")
    if isinstance(found, str):
        return found
    return replace(found, differs=FIRST if found.distance else FILLS, is_padded=True)


def _tree(policy: Eagle2Policy, drafter: EngineDrafter) -> Setting | str:
    if drafter.form != "eagle3":
        return "OpenVINO drafts trees with EAGLE-3 heads only"
    drafted, layers, width = policy.max_verify_tokens - 1, policy.depth + 1, policy.top_k
    if not layers <= drafted <= width**2 * (layers - 1) + width:
        return f"a tree of {width} branches and {layers} layers cannot hold {drafted} drafted tokens"
    knobs: Knobs = (("branching_factor", width), ("tree_depth", layers), ("num_assistant_tokens", drafted))
    return Setting(method="draft model", drafter=drafter, knobs=knobs, length=layers)


def _drafting(setting: Setting | None, target: str) -> str:
    if setting is None:
        return ""
    if setting.drafter is None:
        return ", prompt_lookup=True"
    drafter = json.dumps(drafter_named(setting.drafter, target, openvino_of))
    return f', draft_model=openvino_genai.draft_model({drafter}, "CPU", **properties)'
