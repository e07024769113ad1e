"""SGLang: flags of its server, and a JSON file where the length follows the batch.

`num_steps` are drafter forwards, one of them behind the committed text: n for a chain of n, d + 1 for an EAGLE-2 tree
of depth d. `num_draft_tokens` includes the root, as our verified tokens do.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...planner.strategies import TreePolicy
from ...planner.strategies.lookup import LookupPolicy
from ..base import ExportEngine, Option, Rule, Written, served, values_of
from ..grids import CHAINS, LOOKUPS, TREES
from ..schema import schema_of
from ..setting import OF_LLAMA_CPP, PADS, EngineDrafter, Schedule, Setting, with_likeliest

ALGORITHMS = {"model": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3"}
ADAPTIVE = ("EAGLE", "EAGLE3")  # algorithms whose steps may follow the batch
NGRAM = "NGRAM"  # the algorithm that searches the text


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOption:
    """An algorithm that drafts all tokens in one forward: the option of how many, and whether it counts the root."""

    option: str
    has_root: bool


BLOCKS = {
    "DFLASH": BlockOption(option="speculative-num-draft-tokens", has_root=True),
    "DSPARK": BlockOption(option="speculative-dspark-block-size", has_root=False),
}
FILE = "adaptive.json"
DEPTH = 18  # of its trie unless told otherwise, and so of an n-gram and what follows it
SHALLOW = f"SGLang's trie is {DEPTH} tokens deep: behind an n-gram it finds {DEPTH - 1} at most"
HELD = 48  # requests that it runs at once when it drafts, unless told otherwise
MORE = (
    "{held} requests run at once, others wait: SGLang that drafts holds 48 unless --max-running-requests says otherwise"
)
TRIE = "NGRAM: its trie covers all requests and follows frequent continuations; the lookup that was priced copies one"


class SGLang(ExportEngine):
    """SGLang's server."""

    name = "sglang"

    def setting(self, policy: TreePolicy, drafter: EngineDrafter | None, version: str) -> Setting | str:
        """Return how SGLang runs a policy, or why it cannot."""
        if isinstance(policy, LookupPolicy):
            if policy.occurrence == "mapped":
                return OF_LLAMA_CPP
            return _ngram(policy)
        if drafter is None or (policy.kind != "chain" and policy.kind != "eagle2"):
            return f"SGLang has no {policy.kind} drafting: chains, beams reranked as EAGLE-2's, and its own n-gram trie"
        algorithm = ALGORITHMS.get(drafter.form)
        if algorithm is None:
            return f"the form of {drafter.name} is not known, because its files are not there"
        if policy.kind == "eagle2":
            knobs = (("topk", policy.top_k), ("tokens", policy.max_verify_tokens))
            return Setting(method=algorithm, drafter=drafter, knobs=knobs, length=policy.depth + 1)
        can_adapt = algorithm in ADAPTIVE and schema_of(self.name).knows("flags", "speculative-adaptive", version)
        return Setting(
            method=algorithm,
            drafter=drafter,
            knobs=(("topk", 1),),
            length=policy.length,
            by_batch=can_adapt,
            off="any" if can_adapt else "never",
        )

    def sampled(self, setting: Setting, version: str) -> Setting | str:
        """Return the setting: drafters draft the likeliest tokens, matched against the target's own draws."""
        return with_likeliest(setting, "SGLang")

    def candidates(self, drafter: EngineDrafter | None, version: str) -> Sequence[TreePolicy]:
        """Return chains and beams of a model, n-grams of the text."""
        return LOOKUPS if drafter is None else (*CHAINS, *TREES)

    def written(self, schedule: Schedule, target: str, version: str) -> Written:
        """Return the server's flags, and the adaptive file where lengths differ."""
        setting, start = schedule.setting, ("python", "-m", "sglang.launch_server", "--model-path", *served(target))
        options: list[Option] = [] if schedule.served_dtype is None else [("flags", "dtype", schedule.served_dtype)]
        options += [] if setting is None else [*_options(setting, schedule), *_room(schedule)]
        files: tuple[tuple[str, str], ...] = ()
        if len(schedule.stages) > 1:
            steps = {str(stage.first): {"candidate_steps": [stage.length]} for stage in schedule.stages}
            files = ((FILE, json.dumps(steps, indent=1) + "\n"),)
            options += [("flags", "speculative-adaptive", True), ("flags", "speculative-adaptive-config", FILE)]
        flags = [part for _, name, value in options for part in _flag(name, value)]
        rows = [("adaptive", "candidate_steps", stage.length) for stage in schedule.stages] if files else []
        return Written(
            flags=tuple(flags),
            files=files,
            command=shlex.join([*start, *flags]),
            options=(*options, *rows),
            notes=(*_remarks(schedule), *schedule.unserved, *schedule.asked),
        )

    def rules(self, options: Sequence[Option]) -> Iterator[Rule]:
        """Yield SGLang's rules.

        Source: the speculative arguments of python/sglang/srt/arg_groups and adaptive_spec_params.py, as of 2026-08.
        """
        told = values_of(options)
        names = ("num-steps", "eagle-topk", "num-draft-tokens")
        steps, width, tokens = (told.get(f"speculative-{name}") for name in names)
        algorithm = told.get("speculative-algorithm")
        if algorithm not in (None, "NGRAM", "DFLASH", "DSPARK"):  # these have draft tokens, or a block, alone
            yield (
                len({steps is None, width is None, tokens is None}) == 1,
                f"{', '.join(names)}: all are set, or none is",
            )
        if steps is not None and width is not None and tokens is not None:
            pool = width + (steps - 1) * width**2
            yield width > 1 or tokens == steps + 1, f"at top-k 1 a draft token more than steps: {tokens}, {steps}"
            yield tokens - 1 <= pool, f"{steps} steps at top-k {width} find {pool} tokens, not {tokens - 1}"
        candidates = [value for section, _, value in options if section == "adaptive"]
        if candidates or told.get("speculative-adaptive"):
            yield (
                algorithm in ("EAGLE", "EAGLE3") and width == 1,
                "steps follow the batch with EAGLE and EAGLE3 at top-k 1",
            )
            yield steps in candidates, f"speculative-num-steps is one of the candidate steps: {steps}, {candidates}"
            yield (
                "speculative-adaptive-config" in told,
                "candidate steps stand in the file of speculative-adaptive-config",
            )


EXPORT = SGLang()


def _ngram(policy: LookupPolicy) -> Setting | str:
    """Return the trie of a length; the nearest lookup has the longest n-grams, down to 1, and copies the latest.

    Source: python/sglang/srt/speculative/ngram_worker.py always verifies the set number of tokens per sequence.
    """
    if policy.length >= DEPTH:
        return SHALLOW
    return Setting(
        method=NGRAM,
        drafter=None,
        knobs=(("topk", 1), ("tokens", policy.length + 1)),
        length=policy.length,
        differs=f"{TRIE}; {PADS.format(who='SGLang')}",
        is_padded=True,
        distance=max(0, DEPTH - policy.max_ngram) + policy.min_ngram - 1 + (policy.occurrence != "last"),
    )


def _options(setting: Setting, schedule: Schedule) -> list[Option]:
    found: list[Option] = [("flags", "speculative-algorithm", setting.method)]
    if setting.drafter is not None:
        found.append(("flags", "speculative-draft-model-path", setting.drafter.path))
    if (block := BLOCKS.get(setting.method)) is not None:
        return [*found, ("flags", block.option, schedule.longest + block.has_root)]
    if setting.method != NGRAM:
        tokens = dict(setting.knobs).get("tokens", schedule.longest + 1)
        found += [
            ("flags", "speculative-num-steps", schedule.longest),
            ("flags", "speculative-eagle-topk", setting.knob("topk")),
            ("flags", "speculative-num-draft-tokens", tokens),
        ]
        return found
    return [
        *found,
        ("flags", "speculative-num-draft-tokens", schedule.longest + 1),
        ("flags", "speculative-ngram-min-bfs-breadth", 1),
        ("flags", "speculative-ngram-max-bfs-breadth", 1),
    ]


def _room(schedule: Schedule) -> list[Option]:
    return [("flags", "max-running-requests", schedule.most_batch)] if schedule.most_batch > HELD else []


def _remarks(schedule: Schedule) -> tuple[str, ...]:
    if schedule.setting is None:
        return ()
    return (MORE.format(held=max(HELD, schedule.most_batch)),)


def _flag(name: str, value: object) -> list[str]:
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]
