"""vLLM: one JSON object behind `--speculative-config`.

`num_speculative_tokens` excludes the root, as our lengths do. Rows of `num_speculative_tokens_per_batch_size` hold
first batch, last batch, both included, and the length; 0 is off.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...planner.strategies import TreePolicy
from ...planner.strategies.automaton import LONGEST_MATCH
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ..base import ExportEngine, Option, Rule, Written, served, values_of
from ..grids import CHAINS, FIRST_LOOKUPS, SUFFIX_TREES
from ..schema import schema_of
from ..setting import OF_LLAMA_CPP, PADDED, EngineDrafter, Knobs, Off, Schedule, Setting, Stage, with_likeliest

if TYPE_CHECKING:
    from ...planner.strategies.suffix_tree import SuffixTreePolicy

EAGLE = "LlamaForCausalLMEagle"  # the architecture that SGLang knows heads of EAGLE-1 and 2 by
NO_SUCH_EAGLE = (
    "vLLM does not load {name}: its EAGLE heads are of the architecture LlamaForCausalLM and join their inputs without "
    "a bias; SGLang takes it"
)
ROWS = "num_speculative_tokens_per_batch_size"
METHODS = {"model": "draft_model", "eagle": "eagle", "eagle3": "eagle3"}
LAST_BATCH = 4096  # end of the last row; vLLM's own schedules end there
HELD, HELD_ON_CPU = 256, 128  # sequences that its server runs at once unless told otherwise; more on large GPUs
FIRST = "vLLM copies behind the first occurrence of the n-gram; the lookup that was priced behind the latest"
PATH = "vLLM's suffix decoding follows one path, the tree that was priced several"
NO_TREES = "vLLM accepts chains only: where 0.11 took a tree, it drafted one and verified no siblings"
SAMPLED = "draft_sample_method"
DRAWN = (
    "drafts are drawn too, and kept by the ratio of both chances: per place at least as often as drafts with the "
    "target's own noise, by which the plan was priced"
)
ANY_TABLE = "use_heterogeneous_vocab"
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"  # in its environment; 0 is the older one
CORES = "VLLM_CPU_OMP_THREADS_BIND"  # in its environment, those that it computes on
ON_CORES = (
    f"the server computes on the cores that {CORES} names, as many as were measured; name others where these are taken"
)
OLDER = f"{RUNNER}=0 belongs into the server's environment: its newer runner, the default wherever Triton runs, "
COPIES_LATEST = f"{OLDER}copies behind the latest occurrence and verifies the full length in every round"
DRAFTS_LONGEST = f"{OLDER}drafts the longest length at every batch and drops what is longer than its row"
READS_ON = (
    "where a row drafts nothing the drafter still reads every token, in one forward a round; plain decoding, without "
    "that, is what was priced there"
)
WRONG_DRAWS = (
    "on a CPU without triton-cpu vLLM draws wrong tokens where it drafts and a request has a temperature "
    "(github.com/vllm-project/vllm/issues/55005): do not serve this there while that is open"
)
ARCTIC = "vLLM refuses suffix decoding without Arctic Inference: pip install the release of arctic-inference it names"


class VLLM(ExportEngine):
    """vLLM's server."""

    name = "vllm"

    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how vLLM runs a policy, or why it cannot."""
        if isinstance(policy, LookupPolicy):
            if policy.occurrence == "mapped":
                return OF_LLAMA_CPP
            knobs: Knobs = (("prompt_lookup_max", policy.max_ngram), ("prompt_lookup_min", policy.min_ngram))
            found = self._by_batch("ngram", None, knobs, policy.length, version)
            return found if policy.occurrence == "first" else replace(found, differs=FIRST, distance=1)
        if policy.kind == "suffix-tree":
            return self._suffix(policy, version)
        if drafter is None:
            return f"vLLM has no drafting of the kind {policy.kind}; from the text it has n-grams and suffix trees"
        method = METHODS.get(drafter.form)
        if method is None:
            return f"the form of {drafter.name} is not known, because its files are not there"
        if method not in self._methods(version):
            return f"vLLM {version} takes no draft model of its own"
        if drafter.form == "eagle" and (drafter.has_bias or drafter.architecture == EAGLE):
            return NO_SUCH_EAGLE.format(name=drafter.name)
        is_padded = drafter.form == "model" and drafter.tables is not None
        if is_padded and not schema_of(self.name).knows("config", ANY_TABLE, version):
            return PADDED.format(engine=f"vLLM {version}", name=drafter.name, tables=drafter.tables)
        if policy.kind == "static":
            return NO_TREES
        if not isinstance(policy, ChainPolicy):
            return f"vLLM has no {policy.kind} drafting; with a model it drafts chains of one length"
        knobs = ((ANY_TABLE, True),) if is_padded else ()
        return self._by_batch(method, drafter, knobs, policy.length, version)

    def sampled(self, setting: Setting, version: str) -> Setting | str:
        """Return the setting with sampled drafts, accepted with probability sum(min(p, q)), else the likeliest ones."""
        if setting.drafter is None:
            return setting
        if not schema_of(self.name).knows("config", SAMPLED, version) or (ANY_TABLE, True) in setting.knobs:
            return with_likeliest(setting, f"vLLM {version}")
        return replace(setting, knobs=(*setting.knobs, (SAMPLED, "probabilistic")))

    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return chains of a model; n-grams and suffix trees of the text."""
        return (*FIRST_LOOKUPS, *SUFFIX_TREES) if drafter is None else CHAINS

    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return the configuration as a flag."""
        setting, told = schedule.setting, _served(schedule)
        beside = tuple(part for _, name, value in told for part in (f"--{name}", str(value)))
        environment = _computing(schedule)
        if setting is None:
            return Written(
                flags=beside,
                command=_command(environment, target, beside),
                options=(*told, *environment),
                notes=tuple(_notes(schedule)),
            )
        values = speculation(replace(setting, length=schedule.longest), schedule.stages)
        flags = (*beside, "--speculative-config", json.dumps(values))
        why_older = self._why_older(schedule, setting, version)
        if why_older:
            environment.append(("environment", RUNNER, 0))
        return Written(
            flags=flags,
            command=_command(environment, target, flags),
            options=(*told, *environment, *options_of(values)),
            notes=(*_notes_on(schedule, setting, why_older), *_notes(schedule), *schedule.asked),
        )

    def rules(self, options: Sequence[Option]) -> Iterator[Rule]:
        """Yield vLLM's rules.

        Source: vllm/config/speculative.py, and vllm/v1/spec_decode/dynamic/utils.py for rows. There a row longer than
        `num_speculative_tokens` is no error but is cut to it, so it would not be as planned. Rows beside suffix
        decoding end the engine in its first round (vllm/v1/spec_decode/suffix_decoding.py).
        """
        told = values_of(options)
        method = told.get("method")
        rows, most = told.get("num_speculative_tokens_per_batch_size"), told.get("num_speculative_tokens")
        if rows is not None:
            longest = max(length for *_, length in rows)
            yield method != "suffix", "suffix decoding has one length at every batch"
            yield rows[0][0] == 1, f"the first row begins at batch 1, not at {rows[0][0]}"
            yield (
                most is not None and longest <= most,
                f"no row drafts more than num_speculative_tokens: {longest}, {most}",
            )
        shortest, largest = told.get("prompt_lookup_min"), told.get("prompt_lookup_max")
        if shortest is not None and largest is not None:
            yield shortest <= largest, f"prompt_lookup_min is prompt_lookup_max at most: {shortest}, {largest}"
        if told.get("use_heterogeneous_vocab"):
            yield method == "draft_model", f"use_heterogeneous_vocab is of draft_model, not of {method}"
            drawn = told.get("draft_sample_method") == "probabilistic"
            yield not drawn, "use_heterogeneous_vocab and draft_sample_method probabilistic exclude each other"

    def _why_older(self, schedule: Schedule, setting: Setting, version: str) -> str:
        """Return what the newer runner would do differently; empty if nothing, or the version has one runner."""
        if not schema_of(self.name).knows("environment", RUNNER, version):
            return ""
        if setting.method == "ngram":
            return COPIES_LATEST
        return DRAFTS_LONGEST if setting.method == "draft_model" and len(schedule.stages) > 1 else ""

    def _methods(self, version: str) -> list[str]:
        schema = schema_of(self.name)
        return [name for name in schema.sections["methods"] if schema.knows("methods", name, version)]

    def _by_batch(self, method: str, drafter: EngineDrafter | None, knobs: Knobs, length: int, version: str) -> Setting:
        has_rows = schema_of(self.name).knows("config", ROWS, version)
        off: Off = "any" if has_rows else "never"
        return Setting(method=method, drafter=drafter, knobs=knobs, length=length, by_batch=has_rows, off=off)

    def _suffix(self, policy: SuffixTreePolicy, version: str) -> Setting | str:
        if "suffix" not in self._methods(version):
            return f"vLLM {version} has no suffix decoding"
        if policy.offset or not policy.factor:
            return "vLLM's suffix decoding has a factor of the match and no offset"
        if policy.min_match > 1 or policy.least_score:
            return "vLLM's suffix decoding copies behind every match, whatever its tree's score"
        knobs: Knobs = (
            ("suffix_decoding_max_tree_depth", LONGEST_MATCH + policy.nodes - 1),  # of a match and its draft together
            ("suffix_decoding_max_cached_requests", 0),  # the text of a request alone, as was replayed
            ("suffix_decoding_max_spec_factor", float(policy.factor)),
            ("suffix_decoding_min_token_prob", policy.least_chance),
        )
        return Setting(method="suffix", drafter=None, knobs=knobs, length=policy.nodes - 1, differs=PATH)


EXPORT = VLLM()


def _served(schedule: Schedule) -> list[Option]:
    """Return options beside drafting: the number format, and room for the plan's largest batch."""
    dtype, found = schedule.served_dtype, list[Option]()
    if dtype is not None:
        found.append(("flags", "dtype", dtype))
    if schedule.setting is not None and schedule.most_batch > (HELD if schedule.gpu else HELD_ON_CPU):
        found.append(("flags", "max-num-seqs", schedule.most_batch))
    return found


def _computing(schedule: Schedule) -> list[Option]:
    """Return the variable that lets a server on a CPU compute on as many cores as the plan's measurement did."""
    serving = schedule.serving
    if serving is None or serving.threads is None:
        return []
    return [("environment", CORES, f"0-{serving.threads - 1}")]


def _command(environment: Sequence[Option], target: str, flags: Sequence[str]) -> str:
    variables = [f"{name}={value}" for _, name, value in environment]
    return " ".join((*variables, shlex.join(("vllm", "serve", *served(target), *flags))))


def _notes(schedule: Schedule) -> Iterator[str]:
    if schedule.serving is not None:
        yield from (*schedule.serving.notes, *((ON_CORES,) if schedule.serving.threads else ()))
    yield from schedule.unserved


def _notes_on(schedule: Schedule, setting: Setting, why_older: str) -> Iterator[str]:
    if why_older:
        yield why_older
    if setting.method == "suffix":
        yield ARCTIC
    if setting.drafter is not None and any(not stage.length for stage in schedule.stages):
        yield READS_ON
    if SAMPLED in dict(setting.knobs):
        yield DRAWN
    if schedule.temperature and not schedule.gpu:
        yield WRONG_DRAWS


def speculation(setting: Setting, stages: Sequence[Stage]) -> dict[str, object]:
    """Return the JSON object behind `--speculative-config`, with rows where lengths differ by batch."""
    values: dict[str, object] = {"method": setting.method}
    if setting.drafter is not None:
        values["model"] = setting.drafter.path
    values |= {"num_speculative_tokens": setting.length, **dict(setting.knobs)}
    return values | {ROWS: _rows(stages)} if len(stages) > 1 else values


def _rows(stages: Sequence[Stage]) -> list[list[int]]:
    rows = [[stage.first, stage.last or 0, stage.length] for stage in stages]
    rows[-1][1] = max(LAST_BATCH, rows[-1][0])
    return rows


def options_of(values: dict[str, object]) -> list[Option]:
    """Return such an object as options of the schema."""
    found: list[Option] = [("methods", str(values["method"]), True)]
    for name, value in values.items():
        if isinstance(value, list):
            found.append(("config", name, tuple(tuple(row) for row in value)))
        elif isinstance(value, int | float | str):
            found.append(("config", name, value))
    return found
