"""Does every engine's own parser take what spectune exports for it?

Plans of several shapes (a draft model's chain, a chain that stops at doubt, lookups of each occurrence, an EAGLE-3
head's chain and tree, a static tree, suffixes, lengths of chains and of lookups by batch with drafting off, nothing
drafted) are exported to each engine for the recorded version nearest to the installed one, and handed to that engine's
own parser, in that engine's own Python. What was spoilt on purpose, a misspelt name or an impossible value, must be
refused by the same parser.

An engine is asked in the Python that `--python ENGINE=PATH` names; several for one engine ask several versions. The
models are the demo's. What cannot be imported, or asked without a GPU, is told in `not_run`. The last line is one JSON
object.

    python benchmarks/engine_parsers.py [--python vllm=PATH] [--python sglang=PATH] [--engines vllm,sglang]
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.engines.export import export_plan
from spectune.engines.rates import rates_of_plan
from spectune.engines.schema import recorded_version, schema_of
from spectune.engines.setting import DrafterForm, EngineDrafter
from spectune.engines.table import ENGINES
from spectune.errors import PlanError, RequestError
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.tests.support.engine_policies import POLICIES, cell_with, chains_by_batch, plan_of_kind
from spectune.tests.support.priced_cells import plan_with

from result import stamped  # isort: skip

MODELS = Path(__file__).resolve().parents[1] / "demo" / "models"
CHILD = Path(__file__).with_name("engine_parser_child.py")
FOLDERS: dict[DrafterForm, str] = {"model": "small", "eagle3": "eagle3"}
HEAD, MODEL, LOOKUP, MAPPED, ROWS, LOOKUP_ROWS = (
    "chain by an EAGLE-3 head",
    "chain by a model",
    "lookup, first occurrence",
    "lookup, mapped",
    "chains by batch",
    "lookups by batch",
)
SPOILT: dict[str, Sequence[tuple[str, str, str]]] = {  # of which plan, what is replaced, by what
    "sglang": (
        (MODEL, "--speculative-num-steps", "--speculative-num-stepz"),
        (MODEL, "STANDALONE", "MAGIC"),
        (MODEL, "--speculative-num-steps 3", "--speculative-num-steps three"),
    ),
    "vllm": (
        (HEAD, "num_speculative_tokens", "num_speculative_tokenz"),
        (HEAD, '"eagle3"', '"magic"'),
        (HEAD, '"num_speculative_tokens": 3', '"num_speculative_tokens": 0'),
        (HEAD, "--speculative-config", "--speculative-confik"),
    ),
    "tensorrt-llm": (
        (HEAD, "max_draft_len", "max_draft_lem"),
        (HEAD, "Eagle3", "Magic"),
        (HEAD, "max_draft_len: 3", 'max_draft_len: "three"'),
    ),
    "transformers": (
        (MODEL, "num_assistant_tokens", "num_assistant_tokenz"),
        (LOOKUP, '"prompt_lookup_num_tokens": 10', '"prompt_lookup_num_tokens": 0'),
    ),
    "llama.cpp": (
        (MODEL, "--spec-draft-n-max", "--spec-draft-n-maxx"),
        (MODEL, "draft-simple", "draft-magic"),
        (MODEL, "--spec-draft-n-max 3", "--spec-draft-n-max three"),
    ),
    "openvino": (
        (MODEL, "num_assistant_tokens", "num_assistant_tokenz"),
        (MODEL, '"num_assistant_tokens": 3', '"num_assistant_tokens": "three"'),
        (MODEL, '"num_assistant_tokens": 3', '"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.5'),
    ),
}
SPOILT_SINCE: dict[str, tuple[tuple[str, str], Sequence[tuple[str, str, str]]]] = {  # of versions that know an option
    "sglang": (
        ("flags", "speculative-adaptive"),
        (
            (ROWS, "candidate_steps", "candidate_stepz"),
            (ROWS, "[\n   5\n  ]", '[\n   "five"\n  ]'),
            (ROWS, "--speculative-num-steps 5", "--speculative-num-steps 4"),
            (ROWS, "adaptive.json", "missing.json"),
        ),
    ),
    "vllm": (
        ("config", "num_speculative_tokens_per_batch_size"),
        (
            (ROWS, "[3, 8, 2]", "[2, 8, 2]"),
            (ROWS, "[3, 8, 2]", "[3, 8]"),
            (LOOKUP_ROWS, "[[1, 2, 7]", "[[2, 2, 7]"),
            (LOOKUP_ROWS, "[3, 8, 3]", "[3, 8, -3]"),
        ),
    ),
    "llama.cpp": (
        ("flags", "spec-ngram-map-k-size-m"),
        (
            (MAPPED, "--spec-ngram-map-k-size-m", "--spec-ngram-map-k-size-x"),
            (MAPPED, "--spec-ngram-map-k-size-n 2", "--spec-ngram-map-k-size-n two"),
        ),
    ),
}
SET = re.compile(r"[A-Z_0-9]+=")  # a variable of the environment, as a shell reads it before a command
NEEDS_GPU = "only supports CUDA"  # a check of the machine, made after the flags were read
Json = dict[str, Any]  # JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a parser is handed, and whether it must take it."""

    name: str
    command: str
    files: tuple[tuple[str, str], ...]
    is_spoilt: bool = False


def main() -> None:
    """Ask all engines and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(ENGINES), help="with commas between")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH", help="may be given repeatedly")
    asked = parser.parse_args()
    places = [tuple(one.split("=", 1)) for one in asked.python]
    rows: list[Json] = []
    not_run: list[str] = []
    for engine in asked.engines.split(","):
        for python in [path for name, path in places if name == engine] or [sys.executable]:
            row = asked_of(engine, python)
            if "error" in row:
                not_run.append(f"{engine}: {row['error']}")
                print(f"----  {not_run[-1]}", flush=True)
            else:
                rows.append(row)
                not_run += [f"{engine} {row['version']}: {name}: {said}" for name, said in row["needs_gpu"].items()]
    holds = all(not row["refused"] and not row["spoilt_but_taken"] for row in rows) if rows else None
    told = json.dumps(stamped({"bench": "engine_parsers", "rows": rows, "holds": holds, "not_run": not_run}))
    print(told.replace(str(MODELS), "demo/models"))


def asked_of(engine: str, python: str) -> Json:
    """Return what an engine's parser said, or under "error" why it could not be asked."""
    told = _run([python, str(CHILD), engine, "--version"], "")
    if told.returncode:
        return {"error": told.stderr.strip().splitlines()[-1]}
    installed = told.stdout.strip().splitlines()[-1]
    recorded = recorded_for(engine, installed)
    cases = [*exported(engine, recorded), *spoilt(engine, recorded, exported(engine, recorded))]
    handed = [{"words": typed(case.command)[1][1:], "files": case.files} for case in cases]
    done = _run([python, str(CHILD), engine], json.dumps(handed))
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {
            "error": f"ended with status {done.returncode}: {(done.stderr.strip().splitlines() or ['nothing'])[-1]}"
        }
    found: Json = json.loads(lines[-1])
    if "error" in found:
        return {"error": f"{engine} {installed}: {found['error']}"}
    told_of = dict(zip(cases, found["refusals"], strict=True))
    without_device = {case.name: said for case, said in told_of.items() if NEEDS_GPU in said and not case.is_spoilt}
    verdicts = {case: said for case, said in told_of.items() if case.name not in without_device}
    for case, refusal in verdicts.items():
        is_right = bool(refusal) == case.is_spoilt
        print(
            f"{'ok  ' if is_right else 'MISS'}  {engine} {installed}: {case.name}: {refusal or 'taken'}"[:200],
            flush=True,
        )
    return {
        "engine": engine,
        "version": installed,
        "exported_for": recorded,
        "stubbed": found["stubbed"],
        "plans": sum(not case.is_spoilt for case in verdicts),
        "refused": {case.name: refusal for case, refusal in verdicts.items() if refusal and not case.is_spoilt},
        "needs_gpu": without_device,
        "spoilt": sum(case.is_spoilt for case in cases),
        "spoilt_but_taken": [case.name for case, refusal in verdicts.items() if case.is_spoilt and not refusal],
        "taken": {case.name: case.command for case, refusal in verdicts.items() if not refusal and not case.is_spoilt},
    }


def typed(command: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables that a command sets before it begins, and its words."""
    words, variables = shlex.split(command), {}
    while SET.match(words[0]):
        name, variables[name] = words.pop(0).split("=", 1)
    return variables, words


def recorded_for(engine: str, installed: str) -> str:
    """Return the recorded version that answers for an installed one; the newest where none does."""
    named = f"b{installed.split('.')[2]}" if engine == "llama.cpp" else installed
    try:
        return recorded_version(engine, named)
    except RequestError:
        return schema_of(engine).versions[-1]


def exported(engine: str, version: str) -> list[Case]:
    """Return every plan as an engine's exporter writes it for a version, each text once."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Case] = {}
    for name, form, plan in _plans():
        drafter = EngineDrafter(name="small", path=str(MODELS / FOLDERS[form]), form=form)
        try:
            told = export_plan(
                plan,
                ENGINES[engine],
                {"small": drafter},
                target=str(MODELS / "target"),
                version=version,
                rates=rates_of_plan(plan),
            )
        except PlanError as error:
            raise PlanError(f"{engine} {version}, {name}: {error}") from error
        found.setdefault((told.command, told.files), Case(name=name, command=told.command, files=told.files))
    return list(found.values())


def spoilt(engine: str, version: str, cases: Sequence[Case]) -> list[Case]:
    """Return exported settings that were spoilt on purpose; the plan's text is replaced in its command and files."""
    by_name = {case.name: case for case in cases}
    found = []
    for name, old, new in _spoilt_of(engine, version):
        case = by_name[name]
        files = tuple((file, text.replace(old, new)) for file, text in case.files)
        spoilt_one = Case(
            name=f"{name}, {' '.join(new.split())} for {' '.join(old.split())}",
            command=case.command.replace(old, new),
            files=files,
            is_spoilt=True,
        )
        if (spoilt_one.command, files) == (case.command, case.files):
            raise PlanError(f"{engine}'s export of {name} holds no {old}, so it cannot be spoilt: {case.command}")
        found.append(spoilt_one)
    return found


def _spoilt_of(engine: str, version: str) -> list[tuple[str, str, str]]:
    found = list(SPOILT[engine])
    if engine in SPOILT_SINCE:
        (section, name), newer = SPOILT_SINCE[engine]
        found += newer if schema_of(engine).knows(section, name, version) else ()
    return found


def _plans() -> list[tuple[str, DrafterForm, Plan]]:
    lookup = LookupPolicy(length=10, max_ngram=2, occurrence="first")
    one_size = LookupPolicy(length=7, max_ngram=2, min_ngram=2)
    mapped = LookupPolicy(length=7, max_ngram=2, min_ngram=2, occurrence="mapped")
    found: list[tuple[str, DrafterForm, Plan]] = [
        ("plain decoding", "model", chains_by_batch([(1, 0), (8, 0)])),  # first: others come down to it
        (MODEL, "model", plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))),
        (HEAD, "eagle3", plan_with(cell_with(1, 100, ChainPolicy(length=3), "small", 200.0))),
        (LOOKUP, "model", plan_with(cell_with(1, 100, lookup, "lookup", 200.0))),
        ("lookup, one size", "model", plan_with(cell_with(1, 100, one_size, "lookup", 200.0))),
        (MAPPED, "model", plan_with(cell_with(1, 100, mapped, "lookup", 200.0))),
        (LOOKUP_ROWS, "model", _lookups_by_batch()),
        (ROWS, "eagle3", chains_by_batch([(1, 5), (4, 2), (16, 0)])),
        ("chains by batch, by a model", "model", chains_by_batch([(1, 5), (4, 2), (16, 0)])),
        ("a model's chain that ends", "model", chains_by_batch([(1, 5), (4, 0)])),
        ("chains of many sequences", "eagle3", chains_by_batch([(1, 5), (64, 2)])),
    ]
    for kind in POLICIES:
        forms: tuple[DrafterForm, ...] = ("model", "eagle3")
        found += [(f"{kind}, drafter of form {form}", form, plan_of_kind(kind)) for form in forms]
    return found


def _lookups_by_batch() -> Plan:
    """Return a plan of copies that are shorter at larger batches, and then none: rows with n-grams, where there are."""
    long, short = (LookupPolicy(length=length, max_ngram=3, occurrence="first") for length in (7, 3))
    return plan_with(
        cell_with(1, 100, long, "lookup", 200.0),
        cell_with(4, 100, short, "lookup", 150.0),
        cell_with(16, 100, PlainPolicy(), None, 100.0),
    )


def _run(words: Sequence[str], said: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, input=said, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
