"""Does vLLM do what spectune exports for it? Its engine at work on the exported commands, watched in every step.

Plans of every kind that vLLM carries are exported for the recorded version nearest to the installed one. vLLM reads
each command with its own parser, decodes prompts of the demo greedily in float32, and is held to this:

* its texts are the target's own, as transformers judges them;
* its drafts are as long as the plan wants for as many sequences as ran before, and none where that is 0;
* its own counters tell the same drafts, and as many accepted tokens as drafts have in common with the text;
* copies are those that the plan's lookup makes, token for token;
* rounds of chains and lookups begin where our own decoder's begin;
* a draft model with a padded table drafts what it drafts without the padding, and the bias of an EAGLE head, which
  exports refuse, counts for nothing.

The demo's EAGLE-3 head reads other layers than engines do, which exports refuse: a copy that names them is held to our
rounds, and the head as it lies there shows beside it what the names are worth.

Told beside that: tokens drafted past the end of texts, forwards of the drafter, what rounds of suffix decoding keep
beside those of the tree that was priced, texts in bfloat16, how likely texts are that were drawn at a temperature,
plainly and with drafts, and which occurrence the search of vLLM's newer runner finds. What cannot run is in `not_run`.
The last line is one JSON object.

    python benchmarks/vllm_exports.py --python PATH
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from spectune.demo.prompts import evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.engines.setting import EngineDrafter
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy, Occurrence, find_continuation
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.profiler.device import detect
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.loading import load_model, load_pretrained, load_tokenizer
from spectune.tests.support.engine_policies import cell_with, chains_by_batch
from spectune.tests.support.priced_cells import plan_with
from spectune.tuning.measuring.decoding import LOOKUP, Family

from engine_parsers import MODELS, recorded_for  # isort: skip
from vllm_export_models import write_eagle, write_named, write_padded  # isort: skip
from result import stamped  # isort: skip
from vllm_export_runs import (
    ALL,
    CHILD,
    EAGLE3,
    PROMPTS,
    SMALL,
    TOKENS,
    Case,
    Json,
    Judges,
    answer,
    exported,
    row_of,
    run,
)  # isort: skip

PARSER_CHILD = Path(__file__).with_name("engine_parser_child.py")
PAST = 16  # tokens that plain decoding goes on for, so that drafts past the end of the others can be judged
TEMPERATURE = 0.7
RANDOM_TEXTS, WORDS = 60, 4  # that the newer runner searches; of few words, so that n-grams come back
SIZES = ((3, 1), (2, 2), (4, 2))  # longest and shortest n-grams that it looks for
CHAIN = ChainPolicy(length=3)
COPIES = LookupPolicy(length=10, max_ngram=3, min_ngram=2, occurrence="first")
SUFFIXES = SuffixTreePolicy(nodes=8, factor=1, offset=0, least_chance=0.1)
UNPADDED, UNBIASED = "chain by a model", "chain by a head of form EAGLE"  # others draft as these do


def main() -> int:
    """Run all cases and print what held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="of an environment with vLLM")
    python: str = parser.parse_args().python
    version = answer([python, str(PARSER_CHILD), "vllm", "--version"], "")
    recorded = recorded_for("vllm", version)
    judges, rows, not_run, ran, told = judges_of(python, recorded), list[Json](), list[str](), dict[str, Json](), {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder)):
            command = exported(case.plan, case.drafter, recorded).replace(*case.swap)
            try:
                ran[case.name] = run(python, command, judges.prompts, case.waves)
            except RuntimeError as error:
                not_run.append(f"{case.name}: {error}")
                continue
            rows.append(row_of(case, command.replace(folder, "..."), ran, judges))
            print(f"{'MISS' if rows[-1]['misses'] else 'ok  '}  {case.name}: {rows[-1]}", flush=True)
        for name, tell in (("bfloat16", in_bfloat16), ("drawn", drawn), ("newer_runner", newer_runner)):
            try:
                told[name] = tell(python, recorded, judges)
            except RuntimeError as error:
                not_run.append(f"{name}: {error}")
    holds = not any(row["misses"] for row in rows) and len(rows) > 1
    result: Json = {
        "bench": "vllm_exports",
        "device": detect("cpu").label,
        "version": version,
        "exported_for": recorded,
    }
    result |= {"prompts": PROMPTS, "tokens": TOKENS, "rows": rows, "told": told, "holds": holds, "not_run": not_run}
    print(json.dumps(stamped(result)).replace(str(MODELS), "demo/models"))
    return 0 if holds else 1


def cases(folder: Path) -> Iterator[Case]:
    """Yield a plan of every kind that vLLM carries; drafters that the demo lacks are written to a folder."""
    tables = write_padded(Path(SMALL.path), folder / "padded")
    write_named(Path(EAGLE3.path), folder / "named")
    for name, has_bias in (("eagle", False), ("biased", True)):
        write_eagle(MODELS / "target", folder / name, has_bias=has_bias)
    named = replace(EAGLE3, path=str(folder / "named"))
    yield Case(name="plain decoding", plan=chains_by_batch([(1, 0)]), policy=None, rows=((1, ALL, 0),))
    yield from chains(named, replace(SMALL, path=str(folder / "padded"), tables=tables), folder)
    copies, suffixes = (plan_with(cell_with(1, 100, policy, LOOKUP, 200.0)) for policy in (COPIES, SUFFIXES))
    yield Case(name="lookup, first occurrence", plan=copies, policy=COPIES, rows=((1, ALL, 10),), is_own=True)
    yield Case(name="suffix tree", plan=suffixes, policy=SUFFIXES, rows=((1, ALL, 7),))
    yield from by_batch(named)


def chains(named: EngineDrafter, padded: EngineDrafter, folder: Path) -> Iterator[Case]:
    """Yield chains of one length, by every form of a drafter."""
    eagle = replace(SMALL, path=str(folder / "eagle"), form="eagle", architecture="LlamaForCausalLM")
    biased = (eagle.path, str(folder / "biased"))
    of = Case(
        name=UNPADDED, plan=plan_with(cell_with(1, 100, CHAIN, "small", 200.0)), policy=CHAIN, rows=((1, ALL, 3),)
    )
    yield replace(of, is_own=True)
    yield replace(of, name="chain by a padded model", drafter=padded, like=UNPADDED)
    yield replace(of, name="chain by an EAGLE-3 head", drafter=named, is_own=True)
    yield replace(of, name="by the same, its layers not named", drafter=EAGLE3)
    yield replace(of, name=UNBIASED, drafter=eagle)
    yield replace(of, name="by such a head with a bias", drafter=eagle, like=UNBIASED, swap=biased)


def by_batch(named: EngineDrafter) -> Iterator[Case]:
    """Yield lengths by the number of sequences, with nothing drafted for many."""
    waves, plan = (1, 4, PROMPTS), chains_by_batch([(1, 5), (4, 2), (16, 0)])
    for name, drafter in (("a model", SMALL), ("an EAGLE-3 head", named)):
        yield Case(
            name=f"chains by batch, by {name}",
            plan=plan,
            drafter=drafter,
            policy=ChainPolicy(length=5),
            rows=((1, 2, 5), (3, 8, 2), (9, ALL, 0)),
            waves=waves,
        )
    long, short = (replace(COPIES, length=length) for length in (7, 3))
    cells = ((1, long, LOOKUP, 200.0), (4, short, LOOKUP, 150.0), (16, PlainPolicy(), None, 100.0))
    lookups = plan_with(*(cell_with(batch, 100, policy, by, speed) for batch, policy, by, speed in cells))
    rows = ((1, 2, 7), (3, 8, 3), (9, ALL, 0))
    yield Case(name="lookups by batch", plan=lookups, policy=long, rows=rows, waves=waves)


def judges_of(python: str, version: str) -> Judges:
    """Return what texts and rounds are held to."""
    tokenizer, models = load_tokenizer(str(MODELS / "target")), family_models(family_folder())
    prompts = [tokenizer(prompt.text)["input_ids"] for prompt in evaluation_prompts()[:PROMPTS]]
    plain = exported(chains_by_batch([(1, 0)]), SMALL, version)
    target = load_model(str(models.target), dtype="float32", device="cpu")
    heads = {str(one.form): load_drafter(one.path, target, dtype="float32", device="cpu") for one in (SMALL, EAGLE3)}
    return Judges(
        prompts=prompts,
        original=load_pretrained(str(models.target), dtype="float32"),
        family=Family(target=target, drafters=heads),
        plain=run(python, plain, prompts, [PROMPTS], tokens=TOKENS + PAST)["waves"][0]["texts"],
    )


def in_bfloat16(python: str, version: str, judges: Judges) -> Json:
    """Return how many texts are plain decoding's in bfloat16, by what drafted them."""
    chain, copies = (
        plan_with(cell_with(1, 100, policy, by, 200.0)) for policy, by in ((CHAIN, "small"), (COPIES, LOOKUP))
    )
    texts = []
    for plan in (chains_by_batch([(1, 0)]), chain, copies):
        command = exported(replace(plan, dtype="bfloat16"), SMALL, version)
        texts.append(run(python, command, judges.prompts, [PROMPTS])["waves"][0]["texts"])
    same = [sum(one == plain for one, plain in zip(found, texts[0], strict=True)) for found in texts[1:]]
    return {"texts": PROMPTS, "chain_as_plain": same[0], "lookup_as_plain": same[1]}


def drawn(python: str, version: str, judges: Judges) -> Json:
    """Return how likely a token of texts is to the target that were drawn plainly and with drafts: mean logarithms.

    They agree where drafts leave the draws alone.
    """
    chain, copies = (
        plan_with(cell_with(1, 100, policy, by, 200.0)) for policy, by in ((CHAIN, "small"), (COPIES, LOOKUP))
    )
    found = {}
    for name, plan in (("plain", chains_by_batch([(1, 0)])), ("chain", chain), ("lookup", copies)):
        command = exported(replace(plan, temperature=TEMPERATURE), SMALL, version)
        wave = run(python, command, judges.prompts, [PROMPTS], temperature=TEMPERATURE)["waves"][0]
        chances = [_chance(judges, prompt, text) for prompt, text in zip(judges.prompts, wave["texts"], strict=True)]
        found[name] = round(float(np.mean(chances)), 2)
    return {"temperature": TEMPERATURE, "mean_log_chance": found}


@torch.inference_mode()
def _chance(judges: Judges, prompt: Sequence[int], text: Sequence[int]) -> float:
    logits = judges.original(torch.tensor([[*prompt, *text[:-1]]])).logits[0, len(prompt) - 1 :]
    logs = (logits / TEMPERATURE).log_softmax(dim=-1)
    return float(logs[torch.arange(len(text)), torch.tensor(text)].mean())


def newer_runner(python: str, _: str, __: Judges) -> Json:
    """Return in how many random texts the search of vLLM's newer runner finds the latest and the first occurrence."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, WORDS, int(rng.integers(3, 60))).tolist() for _ in range(RANDOM_TEXTS)]
    asked = json.dumps({"texts": texts, "sizes": SIZES})
    found = json.loads(answer([python, str(CHILD), "--newer-runner"], asked))["found"]
    places: tuple[Occurrence, Occurrence] = ("last", "first")
    agree = dict.fromkeys(places, 0)
    for (longest, shortest), row in zip(SIZES, found, strict=True):
        for text, (size, begin) in zip(texts, row, strict=True):
            copied = text[begin + size :] if size > 0 else []
            for place in places:
                agree[place] += copied == find_continuation(text, len(text), longest, shortest, place)
    return {"searches": len(SIZES) * RANDOM_TEXTS, "as_latest": agree["last"], "as_first": agree["first"]}


if __name__ == "__main__":
    raise SystemExit(main())
