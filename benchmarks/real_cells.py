"""What `real.py` measures: a function for every kind of cell, each returns JSON values."""

from __future__ import annotations

import gc
import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spectune.db import open_store
from spectune.engines.measured import EngineLoad
from spectune.engines.setting import EngineDrafter, Setting
from spectune.planner.plans.prediction import SDS_OF_90_PERCENT
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import cell_costs
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy, stack_name
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.profiler.device import detect
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always, plain_setup, setup_of
from spectune.runtime.models.loading import load_pretrained
from spectune.tuning.family import EXACT_DTYPE, load_family
from spectune.tuning.measuring.baseline import GenerateEntrant
from spectune.tuning.measuring.decoding import Family, decode_timed, names_of, room_for
from spectune.tuning.measuring.exact import judge
from spectune.tuning.measuring.race import Entrant, race
from spectune.tuning.validate import ValidateRequest, entrant, validate_stored

from llama_server import LlamaServer  # isort: skip
from llamacpp import LlamaEntrant, bandwidth_limit_tokens_per_s, engine_facts, read_bytes_per_s  # isort: skip
from real_sets import (  # isort: skip
    DRAFTER,
    RACE_SEED,
    SETS,
    Json,
    ModelSet,
    Options,
    Planned,
    planned,
    prompts_of,
    requests_for,
    telling,
)
from rules import one_cell, rules_of  # isort: skip
from sweep import FINE_TURNS, LOOKUP, TURNS, Way, raced, speeds_of  # isort: skip

LENGTHS, LEAST_PROBABILITIES = (2, 4, 8, 16), (0.0, 0.5, 0.75)  # of llama.cpp's drafts: tokens, and --draft-p-min
THREADS = torch.get_num_threads()
PLAIN_NAME = Way(policy=PlainPolicy(), drafter=None).name  # it races in every part of a sweep
NEAR, MOST_NEAR = 1.06, 2  # rules within 6 % of the plan on few prompts race again on all, the two nearest
PARTS = 4  # of the sweep, each below 40 minutes
FINALISTS = 5
MOST_GAP = 1e-3  # between two logits, in float64, that other arithmetic may order either way
REFERENCE_BATCH, EXACT_BATCH = 8, 4  # prompts at once, by transformers and by us

FORK = TokenTree(parents=(-1, 0, 0, 1, 1, 3), ranks=(0, 0, 1, 0, 1, 0))
BUSHY = TokenTree(parents=(-1, 0, 0, 0, 1, 1, 2, 4, 7), ranks=(0, 0, 1, 2, 0, 1, 0, 0, 0))
LADDER = TokenTree(parents=(-1, 0, 0, 1, 1, 3, 3, 5, 5), ranks=(0, 0, 1, 0, 1, 0, 1, 0, 1))


def race_cell(which: ModelSet, batch: int, options: Options) -> Json:
    """Plan, validate on prompts that nobody profiled, then race the plan and every published rule on some of them."""
    found = planned(which, options, batch)
    asked = ValidateRequest(
        target=found.models.target,
        prompts=prompts_of(which, options, raced=True),
        temperature=which.temperature,
        dtype=found.inputs.dtype,
        batches=(batch,),
        max_new_tokens=options.tokens,
        rounds=1,
        seed=RACE_SEED,
    )
    with open_store(str(found.store)) as store:
        (row,) = validate_stored(asked, store, progress=telling()).rows
    cell, (low, high) = found.plan.cell(batch, row.context), row.interval
    predicted, errors = row.predicted_tokens_per_s, cell.prediction.errors
    texts_margin, at_pace = SDS_OF_90_PERCENT * errors.acceptance, replace(errors, drift=0.0).margin
    return {
        **asdict(row),
        "plan_s": found.plan_s,
        "speedup": row.speedup,
        "raw_error": row.measured_tokens_per_s / predicted - 1.0,
        "machine": row.machine_speed,
        "rounds": row.by_rounds,
        "texts": row.by_texts,
        "texts_margin": texts_margin,
        "covers": low <= row.measured_tokens_per_s <= high,
        "width": [1.0 - low / predicted, high / predicted - 1.0],
        "errors": asdict(errors),
        "width_at_pace": at_pace,
        "covers_at_pace": None if row.error_at_pace is None else abs(row.error_at_pace) <= at_pace,
        "raced": {"prompts": len(asked.prompts), "tokens": options.tokens, "rounds": 1},
        "with_rules": (with_rules := _with_rules(which, found, batch, options)),
        "finals": _finals(which, found, with_rules["rules"], batch, options),
    }


def packed_cell(which: ModelSet, batch: int, options: Options) -> Json:
    """Do the same with weights as their GGUF files hold them, and race them beside the pair in bfloat16."""
    row = race_cell(which, batch, options)
    ours = {"q4": planned(which, options, batch), "bf16": planned(dense_pair(batch), options, batch)}
    requests = requests_for(which, options, count=few(options, batch), tokens=options.rule_tokens)
    field = [one for name, found in ours.items() for one in _ours(name, found, requests, batch)]
    race(field, turns=TURNS, seed=RACE_SEED)
    speeds = {one.name: one.tokens_per_s for one in field}
    return {
        **row,
        "beside_bf16": speeds,
        "plan_ratio": speeds["q4 plan"] / speeds["bf16 plan"],
        "plain_ratio": speeds["q4 plain"] / speeds["bf16 plain"],
    }


def transformers_cell(options: Options) -> Json:
    """Race transformers' generate, assisted generation and prompt lookup beside plain decoding and the plan."""
    found = planned(SETS["pair"], options, 1)
    requests = requests_for(SETS["pair"], options, count=options.few, tokens=options.tokens)
    target = load_pretrained(str(found.models.target), dtype=found.inputs.dtype)
    field: list[Entrant] = [
        *_ours("our", found, requests, 1),
        GenerateEntrant("generate", target, requests, 1),
        GenerateEntrant("prompt lookup of 10", target, requests, 1, prompt_lookup_num_tokens=10),
    ]
    for place in found.models.drafters.values():
        helper = load_pretrained(str(place), dtype=found.inputs.dtype)
        field.append(GenerateEntrant("assisted", target, requests, 1, assistant_model=helper))
    race(field, turns=len(requests), seed=RACE_SEED)
    speeds = {one.name: one.tokens_per_s for one in field}
    return {"prompts": len(requests), "tokens": options.tokens, "tokens_per_s": speeds}


def llamacpp_cell(batch: int, options: Options) -> Json:
    """Sweep native llama.cpp, one server at a time; then race it plain and at its best beside our plans, in turns."""
    packed, dense = (planned(which, options, batch) for which in (SETS["pair-q4"], dense_pair(batch)))
    requests = requests_for(SETS["pair-q4"], options, count=few(options, batch), tokens=options.rule_tokens)
    load = EngineLoad(
        concurrency=batch, capacity=max(len(r.prompt) + r.max_new_tokens for r in requests) + 2 * max(LENGTHS)
    )
    target = packed.models.target
    rows: list[Json] = []
    for name, setting in _settings(packed, options).items():
        started = time.perf_counter()
        server = LlamaServer(target, setting, load, dtype="bfloat16", threads=THREADS)
        load_s = time.perf_counter() - started
        try:
            alone = LlamaEntrant(name, server, requests, batch)
            race([alone], turns=1)
            rows.append({"way": name, "tokens_per_s": alone.tokens_per_s, "kept": alone.acceptance, "load_s": load_s})
        finally:
            server.close()
    children_bytes = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    best = max(rows, key=lambda row: float(row["tokens_per_s"]))["way"]
    speeds = _beside_llamacpp(batch, requests, load, packed, dense, best, options)
    size = target.stat().st_size
    return {
        "engine": engine_facts(),
        "threads": THREADS,
        "sweep": rows,
        "not_swept": ["polling, which is llama.cpp's default"],
        "best": best,
        "largest_server_bytes": children_bytes,
        "prompts": len(requests),
        "tokens": options.rule_tokens,
        "tokens_per_s": speeds,
        "plan_over_best": max(speeds["q4 plan"], speeds["bf16 plan"]) / max(speeds["llama.cpp"], speeds["best"]),
        "plain_limit_tokens_per_s": bandwidth_limit_tokens_per_s(size, read_bytes_per_s(detect("cpu"), size), batch),
    }


def sweep_cell(part: int, options: Options) -> Json:
    """Race a part of the sweep's ways, plain decoding among them."""
    found = planned(SETS["pair-alone"], options, 1)
    requests = requests_for(SETS["pair-alone"], options, count=options.swept, tokens=options.tokens)
    plain, *others = swept_ways(found)
    ways = [plain, *others[part - 1 :: PARTS]][: 4 if options.quick else None]
    run = raced(ways, _padding(found, requests), found.family(), requests, 1, turns=TURNS, seed=part)
    speed = next(one.tokens_per_s for one in run if one.way == plain)
    return {
        "prompts": len(requests),
        "tokens": options.tokens,
        "ways": [
            {"way": one.way.name, "over_plain": one.tokens_per_s / speed, "device_s": one.device_s} for one in run
        ],
    }


def regret_cell(parts: Sequence[Json], profile: Json, options: Options) -> Json:
    """Race the sweep's five fastest ways again, with the plan twice, on prompts that neither has seen."""
    found = planned(SETS["pair-alone"], options, 1)
    requests = requests_for(SETS["pair-alone"], options, count=options.swept, tokens=options.tokens, skip=options.swept)
    rows = [one for place, part in enumerate(parts) for one in part["ways"] if not place or one["way"] != PLAIN_NAME]
    names = list(dict.fromkeys(one["way"] for one in sorted(rows, key=lambda one: -float(one["over_plain"]))))
    ways = swept_ways(found)
    cell = found.cell(1, requests)
    plan = Way(policy=cell.policy, drafter=cell.drafter)
    others = [way for name in names[:FINALISTS] for way in ways if way.name == name and way != plan]  # all of one name
    run = raced([*others, plan, plan], _padding(found, requests), found.family(), requests, 1, turns=FINE_TURNS)
    twins, best = speeds_of(run, plan), max((one for one in run if one.way != plan), key=lambda one: one.tokens_per_s)
    spent_s = profile["runs"][-1]["seconds"] + found.plan_s
    sweep_s = math.fsum(one["device_s"] for one in rows)
    return {
        "ways": len(rows),
        "plan": plan.name,
        "place_in_sweep": names.index(plan.name) + 1 if plan.name in names else None,
        "best": best.way.name,
        "ratio": sum(twins) / len(twins) / best.tokens_per_s,
        "same_policy_ratio": max(twins) / min(twins),
        "finals": [{"way": one.way.name, "tokens_per_s": one.tokens_per_s} for one in run],
        "profile_and_plan_s": spent_s,
        "sweep_s": sweep_s,
        "share": spent_s / sweep_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A place where a text is another one than the reference."""

    behind: tuple[int, ...]  # tokens before it, the prompt among them
    reference: int
    ours: int


def identity_cell(which: ModelSet, options: Options) -> Json:
    """Compare the plan's texts in float32 with transformers.generate's; count what bfloat16 changes in ours."""
    found = planned(which, options, EXACT_BATCH)
    requests = requests_for(which, options, count=options.prompts, tokens=options.tokens)
    judge_model = load_pretrained(str(found.models.target), dtype=EXACT_DTYPE)
    reference = GenerateEntrant("generate", judge_model, requests, REFERENCE_BATCH)
    reference.advance(1.0)
    texts = reference.texts
    del reference, judge_model
    gc.collect()
    setup = setup_of(found.cell(EXACT_BATCH, requests))
    differences, missing = _differing(found, setup, requests, texts)
    gc.collect()
    gaps = _gaps(found.models.target, differences)
    own = found.family()
    planned_texts, plain_texts = (_decoded(own, each, requests) for each in (setup, setup.plain))
    places = [first_difference(one, other) for one, other in zip(plain_texts, planned_texts, strict=True)]
    return {
        "prompts": len(requests),
        "tokens": options.tokens,
        "compared_tokens": sum(map(len, texts)),
        "plan": name_of(setup.policy.code, setup.drafter),
        "batch": EXACT_BATCH,
        "ties": sum(gap <= MOST_GAP for gap in gaps),
        "faults": sum(gap > MOST_GAP for gap in gaps) + missing,
        "gaps": gaps,
        "half_precision": {
            "dtype": found.inputs.dtype,
            "same_texts": sum(place is None for place in places),
            "texts": len(places),
            "tokens_to_first_differences": [place for place in places if place is not None],
        },
    }


def distribution_cell(options: Options) -> Json:
    """Judge every token that the plan draws at a temperature, in float32: it is to be the target's own draw."""
    which = SETS["sampled"]
    found = planned(which, options, 1)
    requests = requests_for(which, options, count=options.rule_prompts, tokens=options.rule_tokens)
    setup = setup_of(found.cell(1, requests))
    texts = _decoded(load_family(found.models, dtype=EXACT_DTYPE, device="cpu"), setup, requests, batch=1)
    gc.collect()
    judged = judge(load_pretrained(str(found.models.target), dtype=EXACT_DTYPE), requests, texts)
    tokens = sum(map(len, texts))
    return {
        "tokens": tokens,
        "plan": name_of(setup.policy.code, setup.drafter),
        "near_ties": judged.near_ties,
        "faults": judged.wrong,
    }


def differing(
    requests: Sequence[Request],
    texts: Sequence[Sequence[int]],
    decoded: Callable[[Sequence[Request]], Sequence[Sequence[int]]],
) -> tuple[list[Difference], int]:
    """Return where our texts differ from the reference's, each of all its differences, and how many texts end early."""
    found: list[Difference] = []
    waiting = [(request, tuple(text)) for request, text in zip(requests, texts, strict=True)]
    missing = 0
    while waiting:
        asked = [replace(request, max_new_tokens=len(text)) for request, text in waiting]
        behind = []
        for (request, text), ours in zip(waiting, decoded(asked), strict=True):
            place = first_difference(text, ours)
            if place is None:
                continue
            if place == min(len(text), len(ours)):
                missing += 1
                continue
            found.append(Difference(behind=(*request.prompt, *text[:place]), reference=text[place], ours=ours[place]))
            if rest := text[place + 1 :]:
                behind.append((replace(request, prompt=(*request.prompt, *text[: place + 1])), rest))
        waiting = behind
    return found, missing


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first place where two texts differ, the shorter one's end among them; None where they are equal."""
    shorter = min(len(one), len(other))
    ends = shorter if len(one) != len(other) else None
    return next((place for place in range(shorter) if one[place] != other[place]), ends)


def swept_ways(found: Planned) -> list[Way]:
    """Return what a careful engineer tries by hand at batch 1, plain decoding first."""
    textual: list[TreePolicy] = [
        *(LookupPolicy(length=length, max_ngram=longest) for length in (3, 5, 10) for longest in (2, 3)),
        *(SuffixPolicy(length=length, occurrence="last") for length in (4, 8, 16, 40)),
        *(SuffixTreePolicy(nodes=nodes, factor=factor) for nodes in (4, 8, 16, 25) for factor in (1, 4)),
    ]
    ways = [Way(policy=PlainPolicy(), drafter=None), *(Way(policy=policy, drafter=LOOKUP) for policy in textual)]
    if DRAFTER not in found.models.drafters:
        return ways
    stacks = [
        StackPolicy(drafters=(DRAFTER, LOOKUP), lengths=lengths) for lengths in ((2, 2), (3, 3), (4, 3), (5, 3), (8, 4))
    ]
    copied = (SuffixPolicy(length=8, min_match=match, occurrence="last") for match in (3, 5))
    modelled: list[TreePolicy] = [
        *(ChainPolicy(length=length) for length in (1, 2, 3, 4, 5, 6, 8)),
        *(ConfidentChainPolicy(length=length, confidence=0.4) for length in (4, 8, 20)),
        *(StaticPolicy(tree=tree) for tree in (FORK, BUSHY, LADDER)),
        *(
            Eagle2Policy(verify_tokens=size, depth=depth, top_k=top_k)
            for size, depth, top_k in ((4, 2, 2), (8, 3, 2), (8, 4, 4), (16, 5, 4), (32, 5, 8), (60, 7, 10))
        ),
        *(HybridPolicy(text=text, model=ChainPolicy(length=length)) for text in copied for length in (2, 3, 4)),
    ]
    ways += [Way(policy=policy, drafter=DRAFTER) for policy in modelled]
    return ways + [Way(policy=stack, drafter=stack_name(stack)) for stack in stacks]


def few(options: Options, batch: int) -> int:
    """Return how many prompts many ways race on."""
    return max(options.rule_prompts, 2 * batch if batch > 1 else 0)


def dense_pair(batch: int) -> ModelSet:
    """Return the set in which the pair was profiled at a batch size, in the device's own format."""
    return SETS["pair" if batch in SETS["pair"].batches else "pair-of-8"]


def _differing(
    found: Planned, setup: StepConfig, requests: Sequence[Request], texts: Sequence[Sequence[int]]
) -> tuple[list[Difference], int]:
    family = load_family(found.models, dtype=EXACT_DTYPE, device="cpu")
    return differing(requests, texts, partial(_decoded, family, setup))


def _with_rules(which: ModelSet, found: Planned, batch: int, options: Options) -> Json:
    count = 2 if which.prompts == "long" else few(options, batch)
    requests = requests_for(which, options, count=count, tokens=options.rule_tokens)
    row = one_cell(found.cell(batch, requests), found.inputs, found.family(), requests, 1)
    return {"prompts": len(requests), "tokens": options.rule_tokens, **row}


def _finals(which: ModelSet, found: Planned, rules: Sequence[Json], batch: int, options: Options) -> Json | None:
    """Race the plan twice beside the rules that came near it, on all raced prompts; None where none was near."""
    ratios = {row["way"]: float(row["ratio"]) for row in rules if row["ratio"] < NEAR}
    if not ratios:
        return None
    requests = requests_for(which, options, count=options.prompts, tokens=options.tokens)
    cell = found.cell(batch, requests)
    plan = Way(policy=cell.policy, drafter=cell.drafter)
    near = {rule.way for rule in rules_of(cell, found.inputs) if rule.way.name in ratios} - {plan}
    ways = sorted(near, key=lambda way: ratios[way.name])[:MOST_NEAR]
    if not ways:
        return None
    run = raced([plan, *ways, plan], _padding(found, requests), found.family(), requests, batch, turns=FINE_TURNS)
    twins = speeds_of(run, plan)
    speed = sum(twins) / len(twins)
    return {
        "prompts": len(requests),
        "tokens": options.tokens,
        "plan_tokens_per_s": twins,
        "same_policy_ratio": max(twins) / min(twins),
        "rules": [{"way": way.name, "ratio": speed / speeds_of(run, way)[0]} for way in ways],
    }


def _ours(name: str, found: Planned, requests: Sequence[Request], batch: int) -> list[Entrant]:
    """Return plain decoding and the plan, ready to race."""
    cell, family = found.cell(batch, requests), found.family()
    setups = {f"{name} plain": plain_setup(cell), f"{name} plan": setup_of(cell)}
    return [entrant(label, setup, family, requests, batch) for label, setup in setups.items()]


def _padding(found: Planned, requests: Sequence[Request]) -> tuple[int, ...]:
    place = Cell(batch=1, context=found.cell(1, requests).context)
    return cell_costs(place, found.inputs.verify, {}, found.inputs.overhead).run_tokens


def _settings(found: Planned, options: Options) -> dict[str, Setting | None]:
    """Return the sweep of llama.cpp: plain, and its draft model at every length and least probability."""
    settings: dict[str, Setting | None] = {"plain": None}
    lengths, probabilities = ((4,), (0.0,)) if options.quick else (LENGTHS, LEAST_PROBABILITIES)
    for name, place in found.models.drafters.items():
        drafter = EngineDrafter(name=name, path=str(place), form="model")
        for length in lengths:
            for least in probabilities:
                settings[f"draft {length}, p_min {least:g}"] = Setting(
                    method="draft-simple", drafter=drafter, knobs=(("p_min", least),), length=length
                )
    return settings


def _beside_llamacpp(
    batch: int,
    requests: Sequence[Request],
    load: EngineLoad,
    packed: Planned,
    dense: Planned,
    best: str,
    options: Options,
) -> dict[str, float]:
    """Return everybody's tokens/s of one race."""
    settings = _settings(packed, options)
    servers = {
        name: LlamaServer(packed.models.target, setting, load, dtype="bfloat16", threads=THREADS)
        for name, setting in {"llama.cpp": None, "best": settings[best]}.items()
    }
    try:
        theirs: list[Entrant] = [LlamaEntrant(name, each, requests, batch) for name, each in servers.items()]
        field = [*theirs, *_ours("q4", packed, requests, batch), *_ours("bf16", dense, requests, batch)]
        race(field, turns=max(len(requests) // batch, 1), seed=RACE_SEED)
        return {one.name: one.tokens_per_s for one in field}
    finally:
        for each in servers.values():
            each.close()


def _decoded(
    family: Family, setup: StepConfig, requests: Sequence[Request], *, batch: int = EXACT_BATCH
) -> Sequence[tuple[int, ...]]:
    capacity = room_for(requests, [setup], batch)
    decoder = family.decoder(always(setup), names=names_of(setup), batch=batch, capacity=capacity)
    return decode_timed(decoder, requests, batch).texts


@torch.inference_mode()
def _gaps(target: Path, differences: Sequence[Difference]) -> list[float]:
    """Return how far the logits of both tokens lie apart at every difference, in float64."""
    if not differences:
        return []
    model: Any = load_pretrained(str(target), dtype="float64")  # Any: transformers' forward has no types
    gaps = []
    for each in differences:
        logits = model(input_ids=torch.tensor([each.behind])).logits[0, -1]
        gaps.append(abs(float(logits[each.reference] - logits[each.ours])))
    return gaps
