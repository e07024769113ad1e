"""How fast does the runtime decode, how much of a round is not forwards, and does the prediction hold?

Profiles the demo family at batch 1, 4 and 8, plans, and at once races plain and planned decoding on the trace's own
prompts, where the prediction is to be met, and on as many that nobody has seen, where its interval is to cover what is
measured: it is one for as many texts as were recorded. Two gauges race with them: each times a forward as
long as one of them has on average, as the profiler does, and so tells how fast the machine is now against when it was
profiled. In half precision some texts of the trace become others when they are decoded: the profile reads enough for
that to even out, and `tokens_per_round` tells what it did. The prediction is judged at the machine's pace of the race;
its error as promised is told beside it. The interval has to cover what is measured as it was promised: it includes the
machine's drift. All of that is done `--repeats` times, a new profile each time, and medians count: a shared machine has
another pace every minute. Then plain decoding and the last plan race `transformers.generate` and, at batch 1, its
assisted generation with every drafter and its prompt lookup. All of a race run in turns. Last, where the extra is
installed, llama.cpp decodes the same prompts from files of the same weights: plain and by n-grams, and at batch 1 with
a draft model at several lengths too. It races by itself, since its threads spin between its turns and slow whoever runs
beside them. Host overhead is the share of a round that is spent in no model's forward, counted in a pass of its own; a
greedy round that is one call of its target's is forward from its drafts to the tokens that stand, and a drafter's
layer that is one call is forward with its search for the likeliest tokens.
The last line is one JSON object.

    python benchmarks/decode.py [--repeats 3] [--budget 18]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from spectune.demo.prompts import evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.engines.llama_cpp.build import missing
from spectune.planner.plans.plan import PlanCell
from spectune.planner.plans.prediction import Prediction
from spectune.planner.strategies.naming import name_of
from spectune.profiler.device import detect
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always, plain_setup, setup_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.loading import load_pretrained
from spectune.tuning.family import load_family
from spectune.tuning.measuring.baseline import GenerateEntrant
from spectune.tuning.measuring.decoding import Family, room_for
from spectune.tuning.measuring.race import Entrant, race
from spectune.tuning.measuring.speed_probe import SpeedProbe, gauged_sizes, pace_of
from spectune.tuning.validate import entrant

from llama_server import PLAIN_NAME, ways  # isort: skip
from llamacpp import (  # isort: skip
    LlamaCpp,
    bandwidth_limit_tokens_per_s,
    read_bytes_per_s,
    read_bytes_per_step,
)
from sweep import DTYPE, PROMPTS, learned, profiled_prompts, requests  # isort: skip
from result import print_result  # isort: skip

HELD = "bfloat16"  # the target's weights, which lie so in memory in either native format
PLAIN, PLAN, GENERATE = "plain", "plan", "transformers.generate"
FIXED_LENGTHS = (2, 4, 8)  # of assisted generation, beside its default
LOOKUP_LENGTHS = (10, 20)  # of transformers' prompt lookup; 10 is what its documentation shows
TRACED = 64  # prompts of the profile: in bf16 some texts become others when they are decoded with other drafts
TURNS = 16
COVERED = 0.9  # of the 90 % intervals


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of profile, plan and races, whose medians count")
    parser.add_argument("--budget", type=float, default=18.0, help="seconds for latency cells")
    asked = parser.parse_args()
    family = load_family(family_models(family_folder()), dtype=DTYPE, device="cpu")
    read = profiled_prompts(TRACED)
    traced = requests(read, 0.0, seed=0)
    unseen = requests(evaluation_prompts()[:TRACED], 0.0, seed=1000)
    fresh = unseen[:PROMPTS]  # what engines race on that take longer
    promises: list[list[dict[str, Any]]] = []
    for seed in range(asked.repeats):
        chapter = learned(0.0, asked.budget, prompts=read)
        promises.append([kept_promise(cell, family, traced, unseen, seed) for cell in chapter.cells])
    cells = [
        one_cell(cell, list(kept), family, fresh)
        for cell, kept in zip(chapter.cells, zip(*promises, strict=True), strict=True)
    ]
    absent = missing()
    if absent is None:
        with LlamaCpp(family_models(family_folder()), dtype=DTYPE) as engine:
            for cell in cells:
                beside_llamacpp(cell, engine, fresh)
    for cell in cells:
        cell["rows"] = rows_of(cell)
    checks = verdicts(cells)
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    result = {
        "bench": "decode",
        "device": chapter.inputs.device.label,
        "rows": [row for cell in cells for row in cell["rows"]],
        "cells": [{name: value for name, value in cell.items() if name != "rows"} for cell in cells],
        "checks": checks,
        "holds": all(checks.values()),
        "not_run": ["H200", *([absent] if absent else [])],
    }
    print_result(result)


class Clocked:
    """A model on a CPU that counts the time its forwards take."""

    def __init__(self, model: CausalModel) -> None:
        """Wrap a model."""
        self.dtype, self.device, self.attention, self.regime = model.dtype, model.device, model.attention, model.regime
        self.gallery = model.gallery
        self.vocabulary, self.longest_context = model.vocabulary, model.longest_context
        self.ns = 0
        self._model = model

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return the model's own cache."""
        return self._model.new_cache(slots, capacity)

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Forward, timed."""
        start = time.perf_counter_ns()
        logits = self._model.forward(step, cache)
        self.ns += time.perf_counter_ns() - start
        return logits


def host_overhead(setup: StepConfig, family: Family, asked: Sequence[Request], batch: int) -> float:
    """Return the share of the rounds' time that no forward takes."""
    target = Clocked(family.target)
    drafters = {name: Clocked(model) for name, model in family.drafters.items()}
    names = [setup.drafter] if setup.drafter else []
    decoder = Family(target=target, drafters=drafters).decoder(
        always(setup), names=names, batch=batch, capacity=room_for(asked, [setup], batch)
    )
    scheduler, clocks = Scheduler(decoder), [target, *drafters.values()]
    for request in asked:
        scheduler.add(request)
    forwards_ms = rounds_ms = 0.0
    while scheduler.schedule():
        before = sum(clock.ns for clock in clocks)
        rounds_ms += decoder.step().round_ms
        forwards_ms += (sum(clock.ns for clock in clocks) - before) / 1e6
    return 1.0 - forwards_ms / rounds_ms


def _overheads(setups: dict[str, StepConfig], family: Family, asked: list[Request], batch: int) -> dict[str, float]:
    return {name: host_overhead(setup, family, asked, batch) for name, setup in setups.items()}


def kept_promise(
    cell: PlanCell, family: Family, traced: list[Request], unseen: list[Request], seed: int
) -> dict[str, Any]:
    """Race plain decoding and a plan right behind its profile; return what was promised and what was measured."""
    setups = {PLAIN: plain_setup(cell), PLAN: setup_of(cell)}
    promised = {PLAIN: cell.plain, PLAN: cell.prediction}
    on_traced, pace, kept = _gauged(cell, setups, family, traced, seed)
    on_unseen, unseen_pace, _ = _gauged(cell, setups, family, unseen, seed)
    return {
        "policy": name_of(cell.policy.code, cell.drafter),
        "predicted": {name: promise.tokens_per_s for name, promise in promised.items()},
        "tokens_per_round": {"predicted": cell.prediction.tokens_per_round, "measured": kept},
        "traced_error": {name: _error(promised[name], on_traced[name] / pace[name]) for name in setups},
        "traced_error_as_promised": {name: _error(promised[name], on_traced[name]) for name in setups},
        "machine_speed": {"traced": pace, "unseen": unseen_pace},
        "intervals": {name: (promise.low, promise.high) for name, promise in promised.items()},
        "covered": [promised[name].low <= on_unseen[name] <= promised[name].high for name in setups],
        "races": {"traced": on_traced, "unseen": on_unseen},
    }


def one_cell(cell: PlanCell, kept: list[dict[str, Any]], family: Family, fresh: list[Request]) -> dict[str, Any]:
    """Race one batch size of the last plan beside transformers; return it with all promises."""
    ours = {PLAIN: plain_setup(cell), PLAN: setup_of(cell)}
    beside = _raced(ours, family, fresh, cell.batch, len(kept), _transformers(cell.batch, fresh))
    return {
        "batch": cell.batch,
        "policy": name_of(cell.policy.code, cell.drafter),
        "predicted": _middle([one["predicted"] for one in kept]),
        "bandwidth_limit_tokens_per_s": _limit(cell),
        "host_overhead": _middle([_overheads(ours, family, fresh, cell.batch) for _ in kept]),
        "traced_error": _middle([one["traced_error"] for one in kept]),
        "traced_error_as_promised": _middle([one["traced_error_as_promised"] for one in kept]),
        "covered": [one for promise in kept for one in promise["covered"]],
        "beside_transformers": beside,
        "speeds": {name: beside[name] for name in ours},
        "promises": kept,
    }


def beside_llamacpp(cell: dict[str, Any], engine: LlamaCpp, fresh: list[Request]) -> None:
    """Race llama.cpp's ways at one batch size: plain and by n-grams, and at batch 1 with its first draft model."""
    first = next(iter(family_models(family_folder()).drafters))
    field = engine.entrants(fresh, cell["batch"], ways([first] if cell["batch"] == 1 else ()))
    race(field, turns=TURNS, seed=0)
    cell["llamacpp"] = {one.name: one.tokens_per_s for one in field}


def rows_of(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per decoder, printed."""
    theirs = cell.get("llamacpp", {})
    rivals = {PLAIN: theirs.get(PLAIN_NAME), PLAN: max(theirs.values(), default=None)}
    others = {name: speed for name, speed in cell["beside_transformers"].items() if name not in cell["speeds"]}
    rows = []
    for name, speed in {**cell["speeds"], **others, **theirs}.items():
        rival = rivals.get(name)
        rows.append(
            {
                "batch": cell["batch"],
                "decoder": name,
                "policy": cell["policy"] if name == PLAN else None,
                "tokens_per_s": speed,
                "predicted_tokens_per_s": cell["predicted"].get(name),
                "host_overhead": cell["host_overhead"].get(name),
                "ratio_to_llamacpp": None if rival is None else speed / rival,
                "bandwidth_limit_tokens_per_s": cell["bandwidth_limit_tokens_per_s"],
            }
        )
        beside = "" if rival is None else f"  {speed / rival:.2f} of llama.cpp's"
        print(f"batch {cell['batch']}  {name:42} {speed:8.0f} tokens/s{beside}", flush=True)
    return rows


def verdicts(cells: list[dict[str, Any]]) -> dict[str, bool]:
    """Return what must hold, by name."""
    checks: dict[str, bool] = {}
    for cell in cells:
        for name, error in cell["traced_error"].items():
            promised = cell["traced_error_as_promised"][name]
            what = f"batch {cell['batch']}: {name} within 10 % of its prediction"
            checks[f"{what} ({error:+.1%} at the machine's pace, {promised:+.1%} as promised)"] = abs(error) <= 0.10
        over = cell["speeds"][PLAN] / cell["speeds"][PLAIN]
        checks[f"batch {cell['batch']}: plan over plain {over:.2f}"] = over >= 1.0
    covered = [one for cell in cells for one in cell["covered"]]
    share = sum(covered) / len(covered)
    checks[f"{COVERED:.0%} of {len(covered)} intervals cover on unseen prompts ({share:.2f})"] = share >= COVERED
    single = next(cell for cell in cells if cell["batch"] == 1)
    speeds = single["beside_transformers"]
    assisted = max(speed for name, speed in speeds.items() if name.startswith("assisted"))
    looked_up = max(speed for name, speed in speeds.items() if name.startswith("prompt lookup"))
    for least, name, other in (
        (1.5, f"{PLAIN} over {GENERATE}", speeds[PLAIN] / speeds[GENERATE]),
        (1.8, f"{PLAN} over the best assisted generation", speeds[PLAN] / assisted),
        (1.3, f"{PLAN} over the best prompt lookup of transformers", speeds[PLAN] / looked_up),
    ):
        checks[f"batch 1: {name} at least {least} ({other:.2f})"] = other >= least
    for name, share in single["host_overhead"].items():
        checks[f"batch 1: host at most 10 % of a round of {name} ({share:.1%})"] = share <= 0.10
    return checks


def _gauged(
    cell: PlanCell, setups: dict[str, StepConfig], family: Family, asked: list[Request], seed: int
) -> tuple[dict[str, float], dict[str, float], float]:
    """Return everybody's tokens/s in one race, the machine's pace in it over the profile's, and what the plan kept."""
    shares = {PLAIN: {1: 1.0}, PLAN: gauged_sizes(cell)}
    gauges = {nodes: SpeedProbe(cell, family.target, nodes) for nodes in {1, *shares[PLAN]}}
    own = {name: entrant(name, setup, family, asked, cell.batch) for name, setup in setups.items()}
    race([*own.values(), *gauges.values()], turns=min(TURNS, len(asked)), seed=seed)
    speeds = {name: one.tokens_per_s for name, one in own.items()}
    pace = {name: pace_of([(gauges[nodes], share) for nodes, share in shares[name].items()]) for name in setups}
    return speeds, pace, own[PLAN].run.tokens_per_round


def _middle(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of every entry over runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _error(promised: Prediction, speed: float) -> float:
    """Return measured over promised, less one."""
    return speed / promised.tokens_per_s - 1.0


def _raced(
    setups: dict[str, StepConfig],
    family: Family,
    asked: list[Request],
    batch: int,
    seed: int,
    others: Sequence[Entrant] = (),
) -> dict[str, float]:
    """Return the tokens/s of everybody in one race."""
    field = [*(entrant(name, setup, family, asked, batch) for name, setup in setups.items()), *others]
    race(field, turns=min(TURNS, len(asked)), seed=seed)
    return {one.name: one.tokens_per_s for one in field}


def _limit(cell: PlanCell) -> float:
    """Return what plain decoding would reach were it bound by the machine's bandwidth alone."""
    target = family_models(family_folder()).target
    step_bytes = read_bytes_per_step(target, HELD, cell.batch, cell.context)
    return bandwidth_limit_tokens_per_s(step_bytes, read_bytes_per_s(detect("cpu"), step_bytes), cell.batch)


def _transformers(batch: int, asked: list[Request]) -> list[Entrant]:
    """Return `generate`, and at batch 1 assisted generation and prompt lookup."""
    models = family_models(family_folder())
    target = load_pretrained(str(models.target), dtype=DTYPE)
    found: list[Entrant] = [GenerateEntrant(GENERATE, target, asked, batch)]
    if batch == 1:
        for name, folder in models.drafters.items():
            found.append(_assisted(f"assisted by {name}", target, load_pretrained(str(folder), dtype=DTYPE), asked))
            for length in FIXED_LENGTHS:
                drafter = load_pretrained(str(folder), dtype=DTYPE)
                drafter.generation_config.num_assistant_tokens = length
                drafter.generation_config.num_assistant_tokens_schedule = "constant"
                drafter.generation_config.assistant_confidence_threshold = 0.0
                found.append(_assisted(f"assisted by {name}, {length} tokens", target, drafter, asked))
        for length in LOOKUP_LENGTHS:
            options = {"prompt_lookup_num_tokens": length}
            found.append(GenerateEntrant(f"prompt lookup of {length}", deepcopy(target), asked, 1, **options))
    return found


def _assisted(name: str, target: Any, drafter: Any, asked: list[Request]) -> Entrant:  # Any: transformers' own models
    return GenerateEntrant(name, deepcopy(target), asked, 1, assistant_model=drafter)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
