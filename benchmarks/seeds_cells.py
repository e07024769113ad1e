"""What `seeds.py` shows: a function for every kind of cell, each returns JSON values."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from spectune.db import open_store
from spectune.planner.hierarchy.latency import exact_latency
from spectune.planner.hierarchy.records import Hierarchy, Level
from spectune.planner.hierarchy.search import best_hierarchy
from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.planner.plans.plan import PlanCell
from spectune.planner.pricing.cells import cells_of
from spectune.planner.pricing.cost import cell_costs
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.contest import contest_of
from spectune.planner.search.stack_search import MOST_COPIED, StackSearch, expected_rates, stacked_inputs
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.naming import LOOKUP, name_of
from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.catalogue import catalogued
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.records.device import Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.loading import load_model
from spectune.training.acceptance import chain_acceptance
from spectune.tuning.estimates.host_time import no_host_time
from spectune.tuning.estimates.inputs import inputs_on_estimates
from spectune.tuning.inputs import inputs_from_store
from spectune.tuning.plan import solve_plan
from spectune.tuning.request import PlanRequest

from real_sets import DRAFTER, SETS, Json, ModelSet, Options, requests_for  # isort: skip

H200_RESULT = Path(__file__).parent / "results" / "gpu-planned-h200.json"
PROBED = (16, 32, 48, 64, 96, 112, 128)  # tokens of CAST-b's probe, arXiv 2610.00321
PROBES_MS = {
    "Qwen3-8B": (30.6, 30.2, 30.6, 31.2, 31.5, 32.2, 32.6),
    "Qwen3-4B": (25.3, 25.1, 25.3, 25.7, 25.9, 26.6, 27.1),
}
# TALON's row of EAGLE-3 on Qwen3-8B, HumanEval, arXiv 2601.07353: 3.89 tokens a round at 2.35 x plain, 9 forwards of
# the head. Its identity speed-up = tokens / (1 + c * forwards) gives c, a forward of the head over one of the target.
HEAD_SHARE = (3.89 / 2.35 - 1.0) / 9.0
SCENE = 256  # tokens of context that a published point without one stands for
ABOUT = (
    "costs of one pair of models with the acceptance of another, Qwen2.5 1.5B and 0.5B on HumanEval: what a planner "
    "would choose for such a pair, not what these GPUs reached. A published rule enters the plan's own candidates, so "
    "the plan is never behind one that is priced; a rule whose tree the recording lacks is not, and may be faster"
)
IMPORTED, SXM = "imported:published", "NVIDIA H100 80GB HBM3"
CHAINS, COPIES = range(1, 11), range(1, MOST_COPIED + 1)  # lengths of the stacks that are enumerated
MT_BENCH = ModelSet(name="head", batches=(1,), target="smollm2", prompts="mtbench")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What forwards of a target and a drafter cost on a GPU: cells (batch, context, tokens, ms)."""

    name: str
    source: str
    device: str  # of the catalogue
    verify: Sequence[tuple[int, int, int, float]]
    draft: Sequence[tuple[int, int, int, float]]
    batches: tuple[int, ...]


def head_cell(place: Path, options: Options) -> Json:
    """Return a head's card, and how often its greedy chains agree with the target on MT-Bench's prompts."""
    card = json.loads((place / "card.json").read_text())
    requests = requests_for(MT_BENCH, options, count=options.prompts, tokens=options.tokens)
    dtype = detect("cpu").native_dtype
    target = load_model(str(options.models / "smollm2"), dtype=dtype, device="cpu")
    drafter = load_drafter(str(place), target, dtype=dtype, device="cpu")
    found = chain_acceptance(target, drafter, requests, card["test_steps"])
    return {
        "bench": "seeds",
        "agreement": list(found.by_depth),
        "tokens_per_round": found.tokens_per_round,
        "rounds": found.rounds,
        "prompts": len(requests),
        "tokens": options.tokens,
        "hours": card["seconds"] / 3600.0,
        "card": {name: value for name, value in card.items() if name != "losses"},
        "last_loss": statistics.mean(card["losses"][-20:]),
    }


def curves_cell(options: Options) -> Json:
    """Plan on cost curves of GPUs with the pair's recorded acceptance; price every published rule there, too."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(shutil.copy(SETS["pair"].store(options, options.profiles - 1), folder))
        inputs, request = _recorded(place, options)
        middle = int(statistics.median(len(text.prompt) + len(text.continuation) // 2 for text in inputs.texts))
        rows = []
        for curve in _curves():
            there = _moved(inputs, curve)
            context = min(max(middle, there.verify.contexts(1)[0]), there.verify.contexts(1)[-1])
            wanted = replace(request, device=there.device, dtype="bfloat16", batches=curve.batches, contexts=(context,))
            rows += [_curve_row(curve.name, curve.source, cell) for cell in solve_plan(there, wanted).cells]
        for name, listed in (("H100", SXM), ("H200", "H200")):
            wanted = replace(request, device=catalogued(listed).device, dtype="bfloat16", contexts=(middle,))
            wanted = replace(wanted, batches=(1, 2, 4, 8), regime="")
            with open_store(str(place)) as store:
                there = inputs_on_estimates(wanted, store)
            source = f"spectune plan --estimate {name}: no forward undercuts these times, and the host's time is 0"
            own = f"{name}, the pair itself, bound"
            rows += [_curve_row(own, source, cell) for cell in solve_plan(there, wanted).cells]
    return {
        "bench": "seeds",
        "label": "PREDICTION",
        "about": ABOUT,
        "texts": len(inputs.texts),
        "context": middle,
        "rows": rows,
    }


def stacks_cell(options: Options) -> Json:
    """Replay every stack of the pair at batch 1, and compare HSD's formula and the search's choice with them."""
    inputs, _ = _recorded(SETS["pair"].store(options, options.profiles - 1), options)
    middle = int(statistics.median(len(text.prompt) + len(text.continuation) // 2 for text in inputs.texts))
    (place,) = cells_of((1,), (middle,))
    drafts = {drafter.name: drafter.surface for drafter in inputs.drafters}
    costs = cell_costs(place, inputs.verify, drafts, inputs.overhead)
    rehearsal, contest = Rehearsal(inputs), contest_of(inputs, place)
    chains = CHAINS[:3] if options.quick else CHAINS
    stacks = [StackPolicy(drafters=(DRAFTER, LOOKUP), lengths=each) for each in product(chains, COPIES)]
    search = StackSearch(rehearsal, 0)
    priced = {policy: search.enter(contest, policy) for policy in stacks}
    replayed = {policy: found.tokens_per_s for policy, found in priced.items() if found is not None}
    beyond, stacks = len(stacks) - len(replayed), list(replayed)
    formula = dict(zip(stacks, expected_rates(stacks, rehearsal, costs).tolist(), strict=True))
    singles = {}
    for length in chains:
        policy = ChainPolicy(length=length)
        found = contest.enter(policy, DRAFTER, rehearsal.replay(policy, DRAFTER, 1))
        singles[length] = 0.0 if found is None else found.tokens_per_s
    models = stacked_inputs(rehearsal, costs)
    enumerated = min(exact_latency(models, each).ms_per_token for each in _hierarchies())
    solved = best_hierarchy(models, COPIES[-1])
    chosen, best = max(formula, key=lambda each: formula[each]), max(replayed, key=lambda each: replayed[each])
    errors = [abs(formula[each] / replayed[each] - 1.0) for each in stacks]
    return {
        "bench": "seeds",
        "label": "PREDICTION",
        "context": middle,
        "texts": len(inputs.texts),
        "stacks": len(stacks),
        "not_priced": beyond,  # their forwards are wider than any that was timed
        "chosen": chosen.code,
        "best": best.code,
        "best_tokens_per_s": replayed[best],
        "chosen_over_best": replayed[chosen] / replayed[best],
        "best_single": max(singles, key=lambda each: singles[each]),
        "best_over_single": replayed[best] / max(singles.values()),
        "solved": solved.hierarchy.label,
        "search_over_enumeration": solved.ms_per_token / enumerated,
        "formula_error_median": statistics.median(errors),
        "formula_error_worst": max(errors),
        "rows": [
            {"stack": each.code, "replay_tokens_per_s": replayed[each], "formula_tokens_per_s": formula[each]}
            for each in sorted(stacks, key=lambda each: -replayed[each])
        ],
    }


def _recorded(place: Path, options: Options) -> tuple[PlanInputs, PlanRequest]:
    """Return what the pair's profile measured and recorded, and the request for it."""
    request = PlanRequest(target=identify(SETS["pair"].models(options).target), device=detect("cpu"))
    with open_store(str(place)) as store:
        return inputs_from_store(request, store), request


def _curves() -> Iterator[Curve]:
    measured = json.loads(H200_RESULT.read_text())
    yield Curve(
        name="H200, an 8B's shape and a drafter of 0.33 ms",
        source=f"verify_ms and draft_ms.medium of {H200_RESULT.name}; the host's time is 0",
        device="H200",
        verify=measured["verify_ms"],
        draft=measured["draft_ms"]["medium"],
        batches=(1, 8),
    )
    for model, times in PROBES_MS.items():
        verify = [(1, SCENE, tokens, times[0]) for tokens in range(1, PROBED[0])]  # a probe begins at 16 tokens
        verify += [(1, SCENE, tokens, ms) for tokens, ms in zip(PROBED, times, strict=True)]
        yield Curve(
            name=f"H100, {model} in transformers",
            source=(
                f"CAST of arXiv 2610.00321; below {PROBED[0]} tokens its first point; a draft forward takes "
                f"{HEAD_SHARE:.3f} of it, as TALON's row of EAGLE-3 on Qwen3-8B implies"
            ),
            device=SXM,
            verify=verify,
            draft=[(1, SCENE, tokens, HEAD_SHARE * times[0]) for tokens in (1, PROBED[-1])],
            batches=(1,),
        )


def _moved(inputs: PlanInputs, curve: Curve) -> PlanInputs:
    """Return inputs with the recorded acceptance and the costs of a curve."""
    device = catalogued(curve.device).device
    verify = _surface(device, inputs.target.key, "verify", curve.verify)
    drafters = tuple(
        DrafterInputs(
            name=each.name,
            model=each.model,
            surface=_surface(device, each.model.key, each.surface.role, curve.draft),
            trace=each.trace,
        )
        for each in inputs.drafters
    )
    return PlanInputs(
        device=device,
        target=inputs.target,
        dtype="bfloat16",
        verify=verify,
        overhead=no_host_time(verify),
        drafters=drafters,
        texts=inputs.texts,
        workload=inputs.workload,
        temperature=inputs.temperature,
        pairwise=inputs.pairwise,
        notes=(f"costs: {curve.source}",),
    )


def _surface(device: Device, model: str, role: str, cells: Iterable[Sequence[float]]) -> LatencySurface:
    measurements = tuple(
        Measurement(batch=int(batch), context_tokens=int(context), tokens=int(tokens), repeats_ms=(float(ms),))
        for batch, context, tokens, ms in cells
    )
    return LatencySurface(
        device=device.fingerprint,
        model=model,
        role=role,
        regime=IMPORTED,
        dtype="bfloat16",
        measurements=measurements,
    )


def _curve_row(curve: str, source: str, cell: PlanCell) -> Json:
    """Return the plan of a cell, the best of the drafter alone, and every published rule; speeds over plain."""
    plain = cell.plain.tokens_per_s
    priced = {each.name: each for each in cell.published if each.tokens_per_s is not None}
    own = [(each.policy, each.drafter, each.tokens_per_s) for each in cell.alternatives]
    own = [(cell.policy, cell.drafter, cell.prediction.tokens_per_s), *own]
    drafted = [one for one in own if one[1] == DRAFTER]
    best = max(drafted, key=lambda one: one[2], default=None)
    rules = {
        name: {"drafter": each.drafter, "over_plain": float(each.tokens_per_s or 0.0) / plain}
        for name, each in priced.items()
    }
    ahead = max(rules, key=lambda name: float(str(rules[name]["over_plain"])))
    return {
        "curve": curve,
        "source": source,
        "batch": cell.batch,
        "context": cell.context,
        "plan": name_of(cell.policy.code, cell.drafter),
        "plan_over_plain": cell.prediction.tokens_per_s / plain,
        "tokens_per_round": cell.prediction.tokens_per_round,
        "drafter_alone": None if best is None else name_of(best[0].code, best[1]),
        "drafter_alone_over_plain": None if best is None else best[2] / plain,
        "best_priced_rule": ahead,
        "plan_over_best_priced_rule": cell.prediction.tokens_per_s / plain / float(str(rules[ahead]["over_plain"])),
        "rules": rules,
        "not_priced": {each.name: each.reason for each in cell.published if each.tokens_per_s is None},
    }


def _hierarchies() -> Iterator[Hierarchy]:
    yield Hierarchy()
    for model in COPIES:
        yield Hierarchy(levels=(Level(name=DRAFTER, threshold=model),))
        for copied in COPIES:
            yield Hierarchy(levels=(Level(name=LOOKUP, threshold=copied), Level(name=DRAFTER, threshold=model)))
