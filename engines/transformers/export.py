"""transformers: fields of the assistant's generation configuration, or of `generate` itself for n-grams.

`num_assistant_tokens` and `prompt_lookup_num_tokens` exclude the root, as our lengths do. Assisted generation takes one
sequence at a time, so larger batches decode plainly.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace

from ...planner.strategies import TreePolicy
from ...planner.strategies.lookup import LookupPolicy
from ..base import ExportEngine, Option, Written
from ..grids import CHAINS, CONFIDENT, FIRST_LOOKUPS
from ..one_sequence import first_lookup
from ..schema import schema_of
from ..setting import PADDED, SERVED, EngineDrafter, Knobs, Schedule, Setting, Value

SCRIPT, FILE = "generate.py", "generation.json"
FIRST = "transformers copies behind the first occurrence of the n-gram; the lookup that was priced behind the latest"
MOVES = "where scikit-learn is installed, transformers moves assistant_confidence_threshold while it decodes"
DRAWS = (
    "transformers doubts by its drafter's own chance of the token that it drew; the chain that was priced, by how sure "
    "the drafter is of the target's draw"
)
THRESHOLD = "assistant_confidence_threshold"
START = '''\
"""Decode prompts as planned; usage: python generate.py PROMPT [PROMPT ...]"""

import json
import sys

{torch}from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def loaded(path):
    """Return a model without penalties and sampling of its own: the plan was made {how}."""
    model = AutoModelForCausalLM.from_pretrained(path{dtype}){device}
    own = model.generation_config
    ends = {{name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}}
    model.generation_config = GenerationConfig(**ends)
    return model


{threads}prompts = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained({target}, padding_side="left")
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
target = loaded({target})
extra = {{}}
'''
ASSISTED = """\
if len(prompts) == 1:  # assisted generation takes one sequence
    assistant = loaded({drafter})
    assistant.generation_config.update(**json.load(open("generation.json")))
    extra = {{"assistant_model": assistant}}
"""
LOOKUP = """\
if len(prompts) == 1:  # assisted generation takes one sequence
    extra = json.load(open("generation.json"))
"""
END = """\
inputs = tokenizer(prompts, return_tensors="pt", padding=True).to(target.device)
written = target.generate(**inputs, **extra, max_new_tokens=128, {sampling})
print("\\n".join(tokenizer.batch_decode(written, skip_special_tokens=True)))
"""
LOADED = (*SERVED, "float64")  # number formats that torch has
NOT_LOADED = "torch has no such format, and the program computes in what the checkpoint's config.json says"


class Transformers(ExportEngine):
    """transformers' `generate`."""

    name = "transformers"

    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how transformers runs a policy, or why it cannot."""
        if isinstance(policy, LookupPolicy):
            return _lookup(policy)
        if drafter is None or (policy.kind != "chain" and policy.kind != "confident-chain"):
            return f"transformers has no {policy.kind} drafting: chains, confident chains and prompt lookup"
        if drafter.form != "model":
            return f"transformers assists with language models, which {drafter.name} is not, as far as its files tell"
        if drafter.tables:
            return PADDED.format(engine="transformers", name=drafter.name, tables=drafter.tables)
        threshold = policy.confidence if policy.kind == "confident-chain" else 0.0
        knobs: Knobs = (("num_assistant_tokens_schedule", "constant"), (THRESHOLD, threshold))
        return Setting(method="assistant", drafter=drafter, knobs=knobs, length=policy.length, off="any", most_batch=1)

    def sampled(self, setting: Setting, version: str) -> Setting | str:
        """Return the setting: assistants sample their drafts, accepted by the ratio of probabilities.

        That accepts at least as many as the target's own noise does; but the drafter's doubt is measured differently.
        """
        return setting.differing(DRAWS) if dict(setting.knobs).get(THRESHOLD) else setting

    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return chains of a model, stopped by doubt or not; n-grams of the text."""
        return FIRST_LOOKUPS if drafter is None else (*CHAINS, *CONFIDENT)

    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return a program and the generation configuration it reads."""
        setting, loading = schedule.setting, self._loading(schedule, version)
        values: dict[str, Value] = {}
        middle, drafter = "", ""
        if setting is not None and setting.drafter is not None:
            values, middle, drafter = {"num_assistant_tokens": schedule.longest}, ASSISTED, setting.drafter.path
        elif setting is not None:
            values, middle = {"prompt_lookup_num_tokens": schedule.longest}, LOOKUP
        values |= {} if setting is None else dict(setting.knobs)
        parts = {
            "target": json.dumps(target),
            "drafter": json.dumps(drafter),
            **_program(schedule, loading),
            **_drawn(schedule.temperature),
        }
        configuration = ((FILE, json.dumps(values, indent=1) + "\n"),) if values else ()
        return Written(
            files=((SCRIPT, (START + middle + END).format(**parts)), *configuration),
            command=shlex.join(("python", SCRIPT, "a prompt")),
            options=(*(("generation", name, value) for name, value in values.items()), *loading),
            notes=(
                *((MOVES,) if values.get(THRESHOLD) else ()),
                *(() if schedule.serving is None else schedule.serving.notes),
                *(() if schedule.dtype in LOADED else schedule.priced_in(NOT_LOADED)),
            ),
        )

    def _loading(self, schedule: Schedule, version: str) -> tuple[Option, ...]:
        """Return a version's option for the number format; empty where torch has none."""
        if schedule.dtype not in LOADED:
            return ()
        name = "dtype" if schema_of(self.name).knows("loading", "dtype", version) else "torch_dtype"
        return (("loading", name, schedule.dtype),)


EXPORT = Transformers()


def _lookup(policy: LookupPolicy) -> Setting | str:
    found = first_lookup(policy, "transformers", "max_matching_ngram_size")
    if isinstance(found, str):
        return found
    return replace(found, off="any", most_batch=1, differs=FIRST if found.distance else "")


def _drawn(temperature: float) -> dict[str, str]:
    if not temperature:
        return {"how": "for greedy decoding", "sampling": "do_sample=False"}
    sampling = f"do_sample=True, temperature={temperature}, top_k=0"
    return {"how": f"for temperature {temperature:g}", "sampling": sampling}


def _program(schedule: Schedule, loading: Sequence[Option]) -> dict[str, str]:
    threads = None if schedule.serving is None else schedule.serving.threads
    return {
        "torch": "import torch\n" if loading else "",
        "threads": f"torch.set_num_threads({threads})\n" if threads is not None else "",
        "dtype": "".join(f", {name}=torch.{value}" for _, name, value in loading),
        "device": '.to("cuda")' if schedule.gpu else "",
    }
