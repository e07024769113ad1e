"""Decoding on a GPU: how near plain decoding comes to the memory's limit, and does a plan hold what it promises?

    python benchmarks/gpu.py [--device cuda:0] [--budget 40] [--large 8b-even] [--parts plain,planned,kernels]
                             [--races 2] [--plan-alone] [--results FILE]

    plain    Llama shapes of 1 B and 8 B with random weights, batch 1 and 8: tokens/s against what the memory's
             bandwidth, measured in the same run, allows; and what a round takes beyond the target's forward, which is
             timed alone, many replays in a row. Sampled rounds are told beside greedy ones.
    planned  the demo's target grown into a large shape without changing what it computes, and the demo's drafters, one
             of them grown as well: so forwards cost what they do at that size, and acceptance is real. Traces are
             recorded on the small target, which is the same function. The family is profiled from CUDA graphs and
             planned for at batch 1 and 8, and the plan races plain decoding and settings that people take by hand.
    kernels  verifies of the 8 B shape by our kernels, which read the tree, and by torch's, which take a mask. A layer's
             products of both shapes, of few rows: step by step, and in each way that does them in one launch; and
             whole verifies with the fastest of these and without them. Only if asked for.

No round may wait for the device but where it reads a result: rounds run while torch refuses every other wait. `holds`
is true where plain decoding reaches 70 % of the limit at batch 1, a round takes at most 3 % beyond its forwards, a
planned round is within 5 % of its prediction, and the plan is at least 0.98 as fast as the fastest of all. The
last line is one JSON object; with --results it is written to a file after every part, so that a run which is cut short
has what it measured until then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from grown import grown, grown_shape
from transformers import LlamaForCausalLM

from spectune.demo.prompts import calibration_prompts, evaluation_prompts
from spectune.demo.story import WORKLOAD, family_folder, family_models
from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.planner.plans.plan import PlanCell
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.static import StaticPolicy
from spectune.profiler.bandwidth import memory_bandwidth
from spectune.profiler.configuration import read_architecture
from spectune.profiler.device import detect
from spectune.profiler.records.architecture import Architecture
from spectune.profiler.records.device import Device
from spectune.profiler.records.overhead import RoundOverhead
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always, plain_setup, setup_of
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.choices import Choices, GraphTimer, Work
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import causal_model, load_pretrained, load_tokenizer
from spectune.runtime.models.products import MOST_WEIGHTS, FusedProducts
from spectune.runtime.models.projection import Projection
from spectune.runtime.models.random import load_random
from spectune.runtime.models.regime import in_regime
from spectune.runtime.shapes import ForwardShapes
from spectune.tests.support.memory_journal import MemoryJournal
from spectune.tuning.family import EXACT_DTYPE, family_in, identify_all, load_family
from spectune.tuning.measuring.decoding import LOOKUP, Family, TimedRound
from spectune.tuning.measuring.overhead import measure_overhead
from spectune.tuning.measuring.race import race, undisturbed_ms
from spectune.tuning.measuring.timing import FamilyTiming, domains_of, time_surfaces
from spectune.tuning.plan import solve_plan
from spectune.tuning.recording.recipe import recipe_of
from spectune.tuning.recording.traces import record_workloads, workloads_of
from spectune.tuning.request import PlanRequest, ProfileRequest
from spectune.tuning.validate import entrant

from result import print_result, stamped  # isort: skip

DTYPE, REGIME = "bfloat16", "cuda-graph"
PARTS = ("plain", "planned", "kernels")
SHAPES = {  # Llama 3.2 1B, Llama 3.1 8B
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128},
}
COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
}
BATCHES, CONTEXT, ROUNDS, WARM_UP, ALONE = (1, 8), 512, 100, 10, 20
PROFILE_PROMPTS, PROFILE_TOKENS, NEW_TOKENS, TURNS = 12, 256, 256, 8
PROMPTS = {1: 6, 8: 24}  # of a race, by batch
DRAWN: dict[str, dict[str, Any]] = {  # sampled rounds are told beside greedy ones; their noise counts as the host's
    "plain": {},
    "plain, temperature 0.8": {"temperature": 0.8},
    "plain, temperature 0.8 and top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
}
KERNEL_SHAPES = ((1, 512, 1), (1, 512, 16), (1, 512, 64), (8, 512, 8), (1, 4096, 1), (1, 4096, 32))
PRODUCT_ROWS = (1, 2, 4)
GROWN_DRAFTERS = {"medium": "0.3b-even"}  # the others stay as small as they are
LEAST_OF_LIMIT, MOST_BEYOND, MOST_ERROR, BEST = 0.70, 0.03, 0.05, 0.98
BUSH = TokenTree(parents=(-1, 0, 0, 0, 1, 1, 2, 4, 7), ranks=(0, 0, 1, 2, 0, 1, 0, 0, 0))
SAME, ENDS, JOINED = "the same texts", "a text ends", "another has joined"  # rounds, by their texts
Json = dict[str, Any]  # JSON values


def main() -> int:
    """Run the parts; return 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds for latency cells")
    parser.add_argument("--large", default="8b-even", help="the shape the target is grown into")
    parser.add_argument("--parts", default="plain,planned")
    parser.add_argument("--races", type=int, default=2, help="of a plan, at each batch")
    parser.add_argument("--plan-alone", action="store_true", help="race plans beside plain decoding and nothing else")
    parser.add_argument("--results", type=Path, help="where to write the JSON object after every part")
    asked = parser.parse_args()
    if unknown := set(asked.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}; choose of {', '.join(PARTS)}")
    if asked.races < 1:
        parser.error(f"--races: at least 1, got {asked.races}")
    here, started = detect(asked.device), time.monotonic()
    limit = memory_bandwidth(here)
    told: Json = {"bench": "gpu", "device": here.label, "torch": torch.__version__}
    told["memory_gb_per_s"] = limit.bytes_per_s / 1e9
    rows: list[Json] = []
    done: list[str] = []

    def result() -> Json:
        checks = verdicts(rows)
        missing = [part for part in ("plain", "planned") if part not in done]
        told["seconds"] = time.monotonic() - started
        holds = all(checks.values()) and not missing
        return {**told, "rows": rows, "checks": checks, "not_run": missing, "holds": holds}

    def keep() -> None:
        if asked.results is not None:
            asked.results.write_text(json.dumps(stamped(result())))

    for part in asked.parts.split(","):
        if part == "plain":
            rows += [row for name in SHAPES for row in plain_rows(name, asked.device, limit.bytes_per_s)]
        elif part == "planned":
            for found in planned_rows(here, asked, told):
                rows += found
                keep()
        elif part == "kernels":
            rows += kernel_rows(asked.device)
            rows += [row for name in SHAPES for row in product_rows(name, asked.device, limit.bytes_per_s)]
        done.append(part)
        keep()
    for name, holds in result()["checks"].items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    print_result(result())
    return 0 if all(result()["checks"].values()) else 1


def random_model(name: str, device: str) -> tuple[CausalModel, Architecture]:
    """Return a model of a shape with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({**COMMON, **SHAPES[name], "tie_word_embeddings": name == "1B"}))
        return load_random(config, dtype=DTYPE, device=device), read_architecture(config)


def kernel_rows(device: str) -> Iterator[Json]:
    """Yield what verifies take by our kernels and by torch's."""
    model, _ = random_model("8B", device)
    assert isinstance(model, LeanModel)
    own = model.reads_trees
    for batch, context, tokens in KERNEL_SHAPES:
        ms: dict[str, float] = {}
        for name, model.reads_trees in (("ours", own), ("torch", False)):
            ms[name] = alone_ms(in_regime(model, REGIME), "verify", batch, context, tokens)
        print(f"8B batch {batch}, {tokens} tokens behind {context}: {ms}", flush=True)
        yield {"part": "kernels", "decoder": "", "batch": batch, "context": context, "tokens": tokens, "ms": ms}


def product_rows(name: str, device: str, bytes_per_s: float) -> Iterator[Json]:
    """Yield what a layer's products take in every way, and verifies with the fastest ways and step by step."""
    model, _ = random_model(name, device)
    assert isinstance(model, LeanModel)
    told: Json = {"part": "kernels", "decoder": "", "model": name, "batch": 1}
    for rows in PRODUCT_ROWS:
        for row in raced_products(model, rows, bytes_per_s):
            print(f"{name}, {rows} rows, {row['product']}: {row['ways_us']} us, {row['limit_us']:.2f} by bandwidth")
            yield told | row
        ms: dict[str, float] = {}
        for ways, choices in (("fastest", None), ("step by step", Choices(None))):
            model.products = FusedProducts(model.anatomy, choices)
            ms[ways] = alone_ms(in_regime(model, REGIME), "verify", 1, CONTEXT, rows)
        print(f"{name}, verify of {rows}: {ms}", flush=True)
        yield told | {"context": CONTEXT, "tokens": rows, "ms": ms}


def raced_products(model: LeanModel, rows: int, bytes_per_s: float) -> Iterator[Json]:
    """Yield each product of a layer: microseconds in every way that runs here, the usual first, and what was taken."""
    timer = KeptTimes(model.device)
    products, layer = FusedProducts(model.anatomy, choices := Choices(timer)), model.anatomy.layers[0]
    layers = min(MOST_WEIGHTS, len(model.anatomy.layers))

    def drawn(width: int) -> torch.Tensor:
        return torch.randn(rows, width, dtype=model.dtype, device=model.device)

    hidden, heads, opened = drawn(model.hidden), drawn(layer.output.shape[1]), drawn(layer.down.shape[1])
    calls: dict[str, tuple[Projection, Callable[[], object]]] = {
        "norm, qkv": (layer.qkv, lambda: products.normed(hidden, layer.input_norm, layer.qkv)),
        "output, add": (layer.output, lambda: products.added(hidden, heads, layer.output, None)),
        "norm, up, gate": (layer.gate_up, lambda: products.opened(hidden, layer.mlp_norm, layer.gate_up)),
        "down, add": (layer.down, lambda: products.added(hidden, opened, layer.down, None)),
    }
    nothing: tuple[float, ...] = ()  # where no other way runs here nothing is timed
    for name, (projection, call) in calls.items():
        timer.times = nothing
        with torch.inference_mode():
            call()
        size = projection.shape[0] * projection.shape[1] * hidden.element_size()
        yield {
            "product": name,
            "rows": rows,
            "ways_us": [round(1000.0 * ms / layers, 3) for ms in timer.times],
            "taken": list(choices.kept.values())[-1],
            "limit_us": 1e6 * size / bytes_per_s,
        }


class KeptTimes(GraphTimer):
    """A timer that keeps what it has told last."""

    times: tuple[float, ...] = ()

    def times_ms(self, works: Sequence[Work], between: Work) -> list[float]:
        """Return the median milliseconds of each work."""
        times = super().times_ms(works, between)
        self.times = tuple(times)
        return times


def plain_rows(name: str, device: str, bytes_per_s: float) -> Iterator[Json]:
    """Yield plain decoding of a shape with random weights, at every batch."""
    loaded, architecture = random_model(name, device)
    model = in_regime(loaded, REGIME)
    for batch, (way, settings) in product(BATCHES, DRAWN.items()):
        decoder = Engine(model, {}, always(PLAIN), slots=batch, capacity=CONTEXT + 4 * ROUNDS)
        prompt = tuple(range(1, CONTEXT + 1))
        asked = Request(prompt=prompt, max_new_tokens=3 * ROUNDS, **settings)
        for index in range(batch):
            decoder.admit(asked, index)
        rounds, round_ms = watched(decoder)
        forward_ms = alone_ms(model, "verify", batch, rounds[0].context, 1)
        least = architecture.work(DTYPE, batch, rounds[0].context, 1).least_read_bytes
        row = {
            "part": "plain",
            "model": name,
            "batch": batch,
            "decoder": way,
            "tokens_per_s": 1000.0 * batch / round_ms,
            "round_ms": round_ms,
            "forwards_ms": forward_ms,
            "host_overhead": 1.0 - forward_ms / round_ms,
            "limit_ms": 1000.0 * least / bytes_per_s,
            "of_the_limit": 1000.0 * least / bytes_per_s / round_ms,
        }
        print(f"{name} batch {batch}, {way}: {round_ms:.3f} ms a round, {forward_ms:.3f} forwards", end="")
        print(f", {row['of_the_limit']:.1%} of the limit", flush=True)
        yield row


def watched(decoder: Engine) -> tuple[list[StepOutput], float]:
    """Run rounds while torch refuses to wait for the device; return them and their median milliseconds."""
    for _ in range(WARM_UP):
        decoder.step()
    rounds, times = [], []
    with no_waits():
        for _ in range(ROUNDS):
            start = time.perf_counter()
            rounds.append(decoder.step())
            times.append(1000.0 * (time.perf_counter() - start))
    return rounds, statistics.median(times)


@contextmanager
def no_waits() -> Iterator[None]:
    """Let torch raise where the host would wait for the device, but for events."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def alone_ms(model: CausalModel, role: str, batch: int, context: int, tokens: int) -> float:
    """Return what a forward takes on the device alone: many in a row, so that no launch is waited for."""
    shapes = ForwardShapes(
        model, identity="alone", dtype=DTYPE, role=role, slots=batch, capacity=context + 3 * tokens + 1
    )
    return queued_ms(shapes.prepare(batch, context, tokens))


def queued_ms(call: Callable[[], None]) -> float:
    """Return the milliseconds of one of many calls in a row; the median of a few such rows."""
    call()
    found = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ALONE):
            call()
        torch.cuda.synchronize()
        found.append(1000.0 * (time.perf_counter() - start) / ALONE)
    return statistics.median(found)


def planned_rows(here: Device, asked: argparse.Namespace, told: Json) -> Iterator[list[Json]]:
    """Profile, plan and race the grown family; tell what that took, and yield the rows of each batch."""
    device: str = asked.device
    models = family_models(family_folder())
    request = ProfileRequest(
        models=models,
        prompts=calibration_prompts()[:PROFILE_PROMPTS],
        workload=WORKLOAD,
        device=device,
        dtype=DTYPE,
        regime=REGIME,
        batches=BATCHES,
        max_new_tokens=PROFILE_TOKENS,
        budget_s=asked.budget,
    )
    family = grown_family(device, asked.large)
    print("the family is there", flush=True)
    started = time.monotonic()
    inputs = profiled(request, family, here, device)
    profiled_s, started = time.monotonic() - started, time.monotonic()
    middle = statistics.median(len(text.prompt) + len(text.continuation) // 2 for text in inputs.texts)
    wanted = PlanRequest(
        target=inputs.target,
        device=here,
        dtype=DTYPE,
        workload=WORKLOAD,
        batches=BATCHES,
        contexts=(int(middle),),
        regime=REGIME,
    )
    plan = solve_plan(inputs, wanted)
    planned_s = time.monotonic() - started
    print(f"profiled in {profiled_s:.1f} s, planned in {planned_s:.1f} s", flush=True)
    print(
        *(f"batch {cell.batch}: {name_of(cell.policy.code, cell.drafter)}" for cell in plan.cells), sep="\n", flush=True
    )
    fresh = evaluation(models.target)
    told |= {"large": asked.large, "profile_s": profiled_s, "plan_s": planned_s}
    told["verify_ms"] = [
        [cell.batch, cell.context_tokens, cell.tokens, cell.median_ms] for cell in inputs.verify.measurements
    ]
    told["draft_ms"] = {
        drafter.name: [
            [cell.batch, cell.context_tokens, cell.tokens, cell.median_ms] for cell in drafter.surface.measurements
        ]
        for drafter in inputs.drafters
    }
    told["beyond_ms"] = [asdict(sample) for sample in inputs.overhead.samples]
    others = {} if asked.plan_alone else by_hand(*family.drafters)
    for cell in plan.cells:
        yield raced_rows(cell, others, family, fresh[: PROMPTS[cell.batch]], asked.races)


def grown_family(device: str, large: str) -> Family:
    """Return the demo's target in a large shape, and its drafters, from CUDA graphs."""
    models = family_models(family_folder())
    small = load_family(models, dtype=DTYPE, device=device)
    target = grown_model(models.target, large, device)
    drafters = {
        name: grown_model(folder, GROWN_DRAFTERS[name], device) if name in GROWN_DRAFTERS else small.drafters[name]
        for name, folder in models.drafters.items()
    }
    return family_in(Family(target=target, drafters=drafters), REGIME)


def grown_model(folder: Path, shape: str, device: str) -> CausalModel:
    """Return a model that computes the same in another shape."""
    small = load_pretrained(str(folder), dtype=DTYPE)
    assert isinstance(small, LlamaForCausalLM)
    return causal_model(grown(small, grown_shape(shape), device=device), shape)


def profiled(request: ProfileRequest, family: Family, here: Device, device: str) -> PlanInputs:
    """Return what a profile of the family records; traces are the small one's, which is the same function."""
    identities, journal = identify_all(request.models), MemoryJournal()
    workloads = workloads_of(request, load_tokenizer(str(request.models.target)))
    asked = workloads[0].requests
    domains = domains_of(request, here, asked)
    exact = load_family(request.models, dtype=EXACT_DTYPE, device=device)
    steps = Steps()
    level = "standard" if request.record == "auto" else request.record
    recorded = record_workloads(workloads, identities, exact, recipe_of(level), journal, steps)
    del exact
    timing = FamilyTiming(request=request, identities=identities, domains=domains, device=here, progress=steps)
    surfaces = time_surfaces(timing, family, journal, traces=recorded.traces)
    steps("what a round takes besides", 0.0)
    samples = [
        sample
        for batch in request.batches
        for sample in measure_overhead(family, asked, batch=batch, drafter=next(iter(family.drafters)))
    ]
    overhead = RoundOverhead(
        device=here.fingerprint,
        target=identities.target.key,
        dtype=request.dtype,
        regime=REGIME,
        samples=tuple(samples),
    )
    return PlanInputs(
        device=here,
        target=identities.target,
        dtype=request.dtype,
        verify=surfaces[0],
        overhead=overhead,
        drafters=tuple(
            DrafterInputs(name=name, model=model, surface=surface, trace=trace)
            for (name, model), surface, trace in zip(
                identities.drafters.items(), surfaces[1:], recorded.traces, strict=True
            )
        ),
        pairwise=recorded.pairwise[0],
    )


def evaluation(target: Path) -> list[Request]:
    """Return prompts that nothing was learned on."""
    tokenizer = load_tokenizer(str(target))
    request = ProfileRequest(
        models=family_models(family_folder()),
        prompts=evaluation_prompts()[: max(PROMPTS.values())],
        max_new_tokens=NEW_TOKENS,
        seed=1000,
    )
    return list(workloads_of(request, tokenizer)[0].requests)


def by_hand(small: str, grown_one: str) -> dict[str, StepConfig]:
    """Return settings that people take."""
    chains = {f"{small}, chain of {n}": StepConfig(policy=ChainPolicy(length=n), drafter=small) for n in (2, 4, 6)}
    wide = Eagle2Policy(verify_tokens=24, depth=3, top_k=6)
    return {
        **chains,
        f"{small}, bush of 9": StepConfig(policy=StaticPolicy(tree=BUSH), drafter=small),
        f"{small}, EAGLE-2 of 24": StepConfig(policy=wide, drafter=small),
        f"{grown_one}, chain of 4": StepConfig(policy=ChainPolicy(length=4), drafter=grown_one),
        f"{grown_one}, EAGLE-2 of 24": StepConfig(policy=wide, drafter=grown_one),
        "lookup of 10": StepConfig(policy=LookupPolicy(length=10), drafter=LOOKUP),
    }


def raced_rows(
    cell: PlanCell, others: dict[str, StepConfig], family: Family, asked: Sequence[Request], races: int
) -> list[Json]:
    """Race a cell's plan, plain decoding and settings by hand."""
    setups = {"plain": plain_setup(cell), "plan": setup_of(cell), **others}
    promised = {"plain": cell.plain, "plan": cell.prediction}
    speeds: dict[str, list[float]] = {name: [] for name in setups}
    times: dict[str, list[float]] = {name: [] for name in setups}
    beyond: dict[str, float] = {}
    shares: dict[str, Json] = {}
    kinds: dict[str, list[tuple[StepOutput, float]]] = {name: [] for name in setups}
    faults: dict[str, set[str]] = {name: set() for name in setups}
    outside: dict[str, list[tuple[str, float]]] = {name: [] for name in setups}
    for seed in range(races):
        field = [entrant(name, setup, family, asked, cell.batch) for name, setup in setups.items()]
        race(field, turns=TURNS, seed=seed)
        for one in field:
            speeds[one.name].append(one.tokens_per_s)
            steady = [r for r in one.settled if len(r.round.kept) == cell.batch]
            times[one.name].append(statistics.fmean(undisturbed_ms(steady)))
            shares[one.name] = {
                part: statistics.median(getattr(r.round, part) for r in steady) for part in ("draft_ms", "verify_ms")
            }
            timed = [(r.round, ms) for r, ms in zip(steady, undisturbed_ms(steady), strict=True)]
            kinds[one.name] += timed
            outside[one.name] += by_turnover(one.run.rounds, timed)
            faults[one.name] |= {fault.reason for r in one.run.rounds for fault in r.round.faults}
            if one.name not in beyond:
                beyond[one.name] = beyond_forwards(
                    setups[one.name], [r.round for r in steady], times[one.name][0], family
                )
    rows = []
    for name in setups:
        prediction = promised.get(name)
        row = {
            "part": "planned",
            "batch": cell.batch,
            "decoder": name,
            "policy": name_of(cell.policy.code, cell.drafter) if name == "plan" else name,
            "drafter": setups[name].drafter,
            "tokens_per_s": statistics.median(speeds[name]),
            "round_ms": statistics.median(times[name]),
            "host_overhead": beyond[name],
            **shares[name],
            "predicted_tokens_per_s": None if prediction is None else prediction.tokens_per_s,
            "predicted_round_ms": None if prediction is None else prediction.round_ms,
            "predicted": None if prediction is None else asdict(prediction),
            "kinds": by_kind(kinds[name]),
            "outside_ms": means_by_turnover(outside[name]),
            "faults": sorted(faults[name]),
        }
        print(f"batch {cell.batch}  {row['policy']:40} {row['tokens_per_s']:8.0f} tokens/s", end="")
        print(f"  {row['round_ms']:.3f} ms a round, {beyond[name]:.1%} beyond its forwards, {shares[name]}", end="")
        print("" if prediction is None else f", predicted {prediction.round_ms:.3f}", flush=True)
        for which, each in row["outside_ms"].items():
            print(f"    {which}: {each['rounds']} rounds, {each['mean_ms']:.3f} ms outside of the device's time")
        for reason in row["faults"]:
            print(f"    {reason}", flush=True)
        rows.append(row)
    return rows


def by_kind(rounds: Sequence[tuple[StepOutput, float]]) -> list[Json]:
    """Return what rounds took by the sizes of their forwards: where a prediction is off, which of them it is."""
    kinds: dict[tuple[int, int, tuple[int, ...]], list[tuple[StepOutput, float]]] = {}
    for done, ms in rounds:
        kinds.setdefault((done.verify_tokens, done.uncached, done.widths), []).append((done, ms))
    return [
        {
            "verify_tokens": tokens,
            "fresh": fresh,
            "widths": widths,
            "rounds": len(of_kind),
            "mean_ms": statistics.fmean(ms for _, ms in of_kind),
            "median_ms": statistics.median(ms for _, ms in of_kind),
            "draft_ms": statistics.median(done.draft_ms for done, _ in of_kind),
            "verify_ms": statistics.median(done.verify_ms for done, _ in of_kind),
        }
        for (tokens, fresh, widths), of_kind in sorted(kinds.items())
    ]


def by_turnover(rounds: Sequence[TimedRound], steady: Sequence[tuple[StepOutput, float]]) -> list[tuple[str, float]]:
    """Return what rounds took outside of what the device tells, and whether their texts change.

    Args:
        rounds: all of a run, in order.
        steady: some of them, and their milliseconds.
    """
    joined = {id(b.round) for a, b in pairwise(rounds) if a.round.sequences != b.round.sequences}
    return [
        (JOINED if id(done) in joined else ENDS if done.finished else SAME, ms - done.draft_ms - done.verify_ms)
        for done, ms in steady
    ]


def means_by_turnover(outside: Sequence[tuple[str, float]]) -> Json:
    """Return how many rounds are of each sort, and what they take on average, and the median one."""
    sorts = {sort: [ms for other, ms in outside if other == sort] for sort in (SAME, ENDS, JOINED)}
    return {
        sort: {"rounds": len(each), "mean_ms": statistics.fmean(each), "median_ms": statistics.median(each)}
        for sort, each in sorts.items()
        if each
    }


def beyond_forwards(setup: StepConfig, rounds: Sequence[StepOutput], round_ms: float, family: Family) -> float:
    """Return the share of rounds in which no forward runs: each shape of theirs is timed alone, many in a row."""
    drafter = family.drafters.get(setup.drafter or "")
    fed: Counter[tuple[str, int]] = Counter()
    for done in rounds:
        fed["verify", done.verify_tokens] += 1
        if done.widths and drafter is not None:
            fed.update(("draft", width) for width in (done.uncached, *done.widths[1:]))
    batch, context = len(rounds[0].kept), rounds[len(rounds) // 2].context
    whole_ms = sum(
        times
        * alone_ms(family.target if role == "verify" or drafter is None else drafter, role, batch, context, tokens)
        for (role, tokens), times in fed.items()
    )
    return 1.0 - whole_ms / (len(rounds) * round_ms)


def verdicts(rows: Sequence[Json]) -> dict[str, bool]:
    """Return what must hold, by name."""
    checks: dict[str, bool] = {}
    for row in rows:
        who = f"{row.get('model', 'grown')}, batch {row['batch']}, {row['decoder']}"
        if row["part"] == row["decoder"] == "plain" and row["batch"] == 1:
            share = row["of_the_limit"]
            told = f"{who}: at least {LEAST_OF_LIMIT:.0%} of the bandwidth limit ({share:.1%})"
            checks[told] = share >= LEAST_OF_LIMIT
        if row["decoder"] in ("plain", "plan"):
            beyond = row["host_overhead"]
            told = f"{who}: at most {MOST_BEYOND:.0%} of a round beyond its forwards ({beyond:.1%})"
            checks[told] = beyond <= MOST_BEYOND
        if row.get("predicted_round_ms"):
            error = row["round_ms"] / row["predicted_round_ms"] - 1.0
            checks[f"{who}: a round within {MOST_ERROR:.0%} of its prediction ({error:+.1%})"] = (
                abs(error) <= MOST_ERROR
            )
    planned = [row for row in rows if row["part"] == "planned"]
    for batch in sorted({row["batch"] for row in planned}):
        speeds = {row["decoder"]: row["tokens_per_s"] for row in planned if row["batch"] == batch}
        share = speeds["plan"] / max(speeds.values())
        checks[f"batch {batch}: the plan is the fastest of {len(speeds)} ({share:.3f} of the best)"] = share >= BEST
    return checks


class Steps:
    """Says when a step of a profile begins."""

    def __init__(self) -> None:
        """Begin."""
        self._started, self._latest = time.monotonic(), ""

    def __call__(self, step: str, share: float) -> None:
        """Tell a step that is new."""
        if step != self._latest:
            print(f"{time.monotonic() - self._started:6.1f} s: {step}", flush=True)
            self._latest = step


if __name__ == "__main__":
    raise SystemExit(main())
