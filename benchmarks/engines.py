"""Are plans for other engines the best settings there, and do they keep their promise?

For every engine that runs here, on the demo family: a full sweep runs every setting, plain decoding, every drafter at
lengths 1 to 8 and the engine's own n-gram sources, on prompts that no profile sees. Then spectune profiles the engine
and plans, which is timed. At once the plan and plain decoding race on the prompts of the profile against what was
promised, at the machine's pace of that race. A gauge tells the pace: of the other settings of the plan's kind the one
that the profile timed with the most care, whose rounds took so many milliseconds then and so many now. Plain decoding
is none: plain rounds wait for memory and drafted ones for arithmetic, and a shared machine has more of the one in this
minute and of the other in the next. Plain decoding's own pace and the error as promised stand beside. And at once the
plan's setting, plain decoding and the sweep's best few race on six times as many prompts as were swept. All of that is
done `--repeats` times, and the medians count: which setting is the fastest changes with the minute, so plans race when
they are made. The best is that setting of the sweep which was the fastest in the other repeats: the fastest of many in
a race of its own is partly lucky, and no setting's real speed. All settings of a race run at once, in turns of random
order, and the drift of the moments is taken out.

Where an engine lets acceptance be set by hand, what was set must come back from its counters.

Engines that cannot run here are in `not_run`, with the reason. llama.cpp's `ngram-mod` remembers other requests' texts,
so that a sweep that repeats prompts would feed it its own answers; it is no contestant. The last line is one JSON
object.

    pip install -e '.[llamacpp,openvino]'  # and a llama-server on the PATH
    python benchmarks/engines.py [--engines llama.cpp,transformers] [--concurrencies 1,4] [--repeats 5] [--passes 2]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spectune.db import Store, open_store
from spectune.demo.prompts import calibration_prompts, evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.engines.measured import EngineLoad, MeasuredEngine
from spectune.engines.own_server import OwnDecoding
from spectune.engines.running import run_engine
from spectune.engines.setting import Setting
from spectune.engines.table import RUNNING
from spectune.errors import RequestError
from spectune.planner.engines.choice import TimedSetting, Way
from spectune.planner.plans.plan import Plan, PlanCell
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.device import detect
from spectune.profiler.prompts import Prompt
from spectune.tuning.engines.counters import READERS
from spectune.tuning.engines.inputs import inputs_of_surfaces, setting_of
from spectune.tuning.engines.plan import EnginePlanRequest, plan_engine
from spectune.tuning.engines.profile import EngineRequest, profile_engine
from spectune.tuning.engines.turns import Key, Turn, by_key, speed, stable

from sweep import profiled_prompts  # isort: skip
from result import print_result  # isort: skip

LENGTHS = range(1, 9)
PROFILE_PROMPTS, NEW_TOKENS = 32, 96
UNSEEN = 32  # more prompts of the last races: how much more longer copies keep hangs on the texts
ONE_BY_ONE = 16  # prompts of the profile of an engine that decodes one at a time, and takes that much longer
FINALISTS = 4  # of the sweep, beside the plan and plain decoding
PROMISE_TURNS = 48  # at least: every prompt is decoded as often as every other
SYNTHETIC = (0.8, 0.6, 0.4, 0.2)
SYNTHETIC_TOKENS = 40000  # emitted under acceptance set by hand; its sampling error is then well below the 2 %
LEAST_OF_BEST, MOST_OFF, MOST_OF_SWEEP, MOST_SYNTHETIC_OFF = 0.97, 0.10, 0.10, 0.02
LLAMAS_OWN = (  # its other n-gram sources, which no policy of a plan drafts like
    Setting(method="ngram-cache", drafter=None, knobs=(), length=1),
    Setting(method="ngram-map-k4v", drafter=None, knobs=(("size_n", 2),), length=8),
)
Json = dict[str, Any]  # JSON values


def main() -> None:
    """Run all engines and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(RUNNING), help="with commas between")
    parser.add_argument("--concurrencies", default="1,4", help="with commas between; what an engine cannot is left out")
    parser.add_argument("--repeats", type=int, default=5, help="of profile, plan and promise")
    parser.add_argument("--passes", type=int, default=2, help="of the sweep over its prompts")
    parser.add_argument("--prompts", type=int, default=16, help="of the sweep")
    parser.add_argument("--dtype", default="float32")
    asked = parser.parse_args()
    rows: list[Json] = []
    checks: dict[str, bool] = {}
    not_run: list[str] = []
    for name in asked.engines.split(","):
        with tempfile.TemporaryDirectory() as folder, open_store(str(Path(folder) / "store.db")) as store:
            try:
                engine = _engine(name, asked.dtype, Path(folder))
            except RequestError as error:
                not_run.append(f"{name}: {error}")
                continue
            found, held = raced(engine, store, asked)
            rows += found
            checks |= held
            checks |= synthetic(engine) if engine.facts.sets_acceptance else {}
    for check, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {check}")
    result = {
        "bench": "engines",
        "device": detect("cpu").label,
        "threads": torch.get_num_threads(),
        "dtype": asked.dtype,
        "rows": rows,
        "checks": checks,
        "holds": all(checks.values()) if checks else None,
        "not_run": not_run,
    }
    print_result(result)


def _engine(name: str, dtype: str, folder: Path) -> MeasuredEngine:
    models = family_models(family_folder())
    threads = torch.get_num_threads()
    return run_engine(name, models.target, models.drafters, dtype=dtype, threads=threads, folder=folder)


def raced(engine: MeasuredEngine, store: Store, asked: argparse.Namespace) -> tuple[list[Json], dict[str, bool]]:
    """Return a row per concurrency, and what must hold."""
    facts = engine.facts
    wanted = [int(part) for part in asked.concurrencies.split(",")]
    able = tuple(c for c in wanted if facts.most_concurrency is None or c <= facts.most_concurrency)
    sweeps = {concurrency: _swept(engine, concurrency, asked) for concurrency in able}
    planning_s: list[float] = []
    races: dict[int, list[Json]] = {concurrency: [] for concurrency in able}
    for _ in range(asked.repeats):
        plan, timed, seconds = _planned(engine, store, able)
        planning_s.append(seconds)
        for cell in plan.cells:  # at once: the machine drifts
            found = _promise(engine, cell, timed[cell.batch])
            races[cell.batch].append(found | {"final": _final(engine, cell, sweeps[cell.batch])})
    rows: list[Json] = []
    checks: dict[str, bool] = {}
    for concurrency, sweep in sweeps.items():
        row: Json = {"engine": facts.name, "version": facts.version, "concurrency": concurrency}
        row |= _judged(sweep, races[concurrency])
        row["planning_s"] = planning_s  # of all concurrencies
        rows.append(row)
        checks |= _verdicts(row)
    sweeps_s = sum(row["sweep_s"] for row in rows)
    middle_s = statistics.median(planning_s)
    share = middle_s / sweeps_s
    checks[f"{facts.name}: planning took {middle_s:.0f} s, {share:.3f} of the sweeps' {sweeps_s:.0f} s"] = (
        share <= MOST_OF_SWEEP
    )
    return rows, checks


def _planned(
    engine: MeasuredEngine, store: Store, concurrencies: tuple[int, ...]
) -> tuple[Plan, Mapping[int, Sequence[TimedSetting]], float]:
    """Return the plan for an engine, what its profile timed by concurrency, and the seconds that both took."""
    request = EngineRequest(
        engine=engine.facts.name,
        models=family_models(family_folder()),
        prompts=_profiled(engine),
        dtype=engine.facts.dtype,
        concurrencies=concurrencies,
        max_new_tokens=NEW_TOKENS,
    )
    start = time.monotonic()
    done = profile_engine(request, engine, store, progress=_tell)
    _, plan = plan_engine(
        EnginePlanRequest(engine=engine.facts.name, target=done.identities.target, device=done.device), store
    )
    seconds = time.monotonic() - start
    print(f"{engine.facts.name}: profile and plan {seconds:.1f} s", flush=True)
    return plan, inputs_of_surfaces(done.surfaces, done.traces, done.identities).timed, seconds


def _profiled(engine: MeasuredEngine) -> tuple[Prompt, ...]:
    """Return the prompts of the profile."""
    return profiled_prompts(ONE_BY_ONE if engine.facts.most_concurrency == 1 else PROFILE_PROMPTS)


def _unseen() -> tuple[Prompt, ...]:
    """Return the prompts of the last races: the demo's own for evaluation, and others that no profile sees."""
    return *evaluation_prompts(), *profiled_prompts(PROFILE_PROMPTS + UNSEEN)[PROFILE_PROMPTS:]


def _promise(engine: MeasuredEngine, cell: PlanCell, timed: Sequence[TimedSetting]) -> Json:
    """Hold a plan to what it promised.

    Args:
        engine: at work.
        cell: of the plan.
        timed: at its concurrency, by the profile.
    """
    own, plain = _raced(engine, cell)
    gauge = _gauge(cell, timed)
    gauged: Key = (cell.batch, setting_of(engine, gauge.way))
    turns = _turns(engine, [own, plain, gauged], _prompts(engine, _profiled(engine)), PROMISE_TURNS)
    promised = {key: speed(some) for key, some in turns.items()}
    pace = gauge.ms / _round_ms(turns[gauged])
    rate = cell.prediction.tokens_per_s
    own_rate = rate / (1.0 - cell.prediction.errors.optimism)  # on the very texts of the choice nothing is taken off
    found = {
        "plan": name_of(cell.policy.code, cell.drafter),
        "predicted_tokens_per_s": rate,
        "interval": [cell.prediction.low, cell.prediction.high],
        "measured_on_profiled_prompts": promised[own],
        "optimism": cell.prediction.errors.optimism,
        "error_as_promised": promised[own] / own_rate - 1.0,
        "error_at_pace": promised[own] / (own_rate * pace) - 1.0,
        "plain_error": promised[plain] / cell.plain.tokens_per_s - 1.0,
        "pace": pace,
        "gauge": _name(gauged),
    }
    print(f"{cell.batch} at once: {found}", flush=True)
    return found


def _gauge(cell: PlanCell, timed: Sequence[TimedSetting]) -> TimedSetting:
    """Return what tells the machine's pace: of the other settings of the plan's kind that with the least error."""
    if isinstance(cell.policy, PlainPolicy):
        return next(one for one in timed if isinstance(one.way[0], PlainPolicy))
    others = [one for one in timed if one.way != (cell.policy, cell.drafter)]
    drafting = [one for one in others if not isinstance(one.way[0], PlainPolicy)]
    return min(drafting, key=lambda one: (not _is_alike(one.way, (cell.policy, cell.drafter)), one.error))


def _is_alike(way: Way, other: tuple[TreePolicy, str | None]) -> bool:
    """Return whether two ways draft alike but for the length: the same model, or searches that share their prices."""
    (own, drafter), (policy, name) = way, other
    if isinstance(own, LookupPolicy) and isinstance(policy, LookupPolicy):
        return own.occurrence == policy.occurrence
    return isinstance(own, ChainPolicy) and isinstance(policy, ChainPolicy) and drafter == name


def _round_ms(turns: Sequence[Turn]) -> float:
    """Return the milliseconds of a round: the mean over all of them, as a profile takes it."""
    middle = statistics.median(turn.round_ms for turn in turns)
    rounds = sum(turn.sample.rounds for turn in turns)
    return sum(turn.sample.rounds * min(turn.round_ms, 1.5 * middle) for turn in turns) / rounds


def _raced(engine: MeasuredEngine, cell: PlanCell) -> tuple[Key, Key]:
    """Return the plan's setting and plain decoding."""
    assert isinstance(cell.policy, PlainPolicy | ChainPolicy | LookupPolicy), "an engine's plan holds no other"
    return (cell.batch, setting_of(engine, (cell.policy, cell.drafter))), (cell.batch, None)


@dataclass(frozen=True)
class Sweep:
    """Every setting of a concurrency, and how long that took."""

    seconds: float
    speeds: dict[Key, float]

    @property
    def best(self) -> list[Key]:
        """The fastest few."""
        return sorted(self.speeds, key=lambda key: -self.speeds[key])[:FINALISTS]


def _swept(engine: MeasuredEngine, concurrency: int, asked: argparse.Namespace) -> Sweep:
    fresh = _prompts(engine, evaluation_prompts()[: asked.prompts])
    room = max(len(prompt) for prompt in fresh) + NEW_TOKENS + 64
    field = [(concurrency, setting) for setting in _every(engine)]
    start = time.monotonic()
    with stable(engine, capacity=room, new_tokens=NEW_TOKENS) as stall:
        stall.take(field, fresh, turns=max(3, asked.passes * len(fresh) // concurrency))
        speeds = {key: speed(turns) for key, turns in by_key(stall.turns).items()}
    _show(concurrency, speeds)
    return Sweep(time.monotonic() - start, speeds)


def _final(engine: MeasuredEngine, cell: PlanCell, sweep: Sweep) -> dict[str, float]:
    """Race a plan's setting against plain decoding and the best of the sweep, on prompts that the profile has not seen.

    Returns:
        tokens/s by the setting's name; the plan's as "plan".
    """
    unseen, (own, plain) = _prompts(engine, _unseen()), _raced(engine, cell)
    speeds = _speeds(engine, [own, plain, *sweep.best], unseen, 1)
    found = {"plan": speeds[own]} | {_name(key): speeds[key] for key in dict.fromkeys([plain, *sweep.best])}
    shown = {name: round(value, 1) for name, value in found.items()}
    print(f"{cell.batch} at once: {shown}", flush=True)
    return found


def _judged(sweep: Sweep, races: list[Json]) -> Json:
    """Return what the races of all plans of one concurrency say."""
    finals = [race["final"] for race in races]
    contest = [_name(key) for key in sweep.best]
    for race in races:
        own = race["final"]
        race["tokens_per_s"] = own["plan"]
        race["of_best"] = own["plan"] / own[_best(finals, own, contest)]
        race["of_plain"] = own["plan"] / own["plain"]
        race["covered_on_unseen_prompts"] = race["interval"][0] <= own["plan"] <= race["interval"][1]
    winner = max(contest, key=lambda name: statistics.mean(one[name] for one in finals))
    return {
        "plans": races,
        "plain_tokens_per_s": statistics.mean(one["plain"] for one in finals),
        "best": winner,
        "best_tokens_per_s": statistics.mean(one[winner] for one in finals),
        "settings": len(sweep.speeds),
        "sweep_s": sweep.seconds,
        "sweep": {_name(key): value for key, value in sweep.speeds.items()},
    }


def _best(finals: Sequence[dict[str, float]], judged: dict[str, float], among: Sequence[str]) -> str:
    """Return which of some is the fastest by all races but one: in that one its luck is nobody's choice."""
    others = [one for one in finals if one is not judged] or finals
    return max(among, key=lambda name: sum(one[name] / one["plain"] for one in others))


def _speeds(
    engine: MeasuredEngine, keys: Sequence[Key], prompts: Sequence[tuple[int, ...]], turns: int, seed: int = 1
) -> dict[Key, float]:
    """Return the tokens/s of a few settings in one race of fresh engines."""
    return {key: speed(own) for key, own in _turns(engine, keys, prompts, turns, seed).items()}


def _turns(
    engine: MeasuredEngine, keys: Sequence[Key], prompts: Sequence[tuple[int, ...]], turns: int, seed: int = 1
) -> Mapping[Key, Sequence[Turn]]:
    """Return what a few settings did in one race of fresh engines: at least so many turns, every prompt as often."""
    room = max(len(prompt) for prompt in prompts) + NEW_TOKENS + 64
    each = math.ceil(len(prompts) / keys[0][0])  # turns that decode every prompt once
    turns = each * math.ceil(turns / each)
    with stable(engine, capacity=room, new_tokens=NEW_TOKENS) as stall:
        stall.take(list(dict.fromkeys(keys)), prompts, turns=turns, seed=seed)
        return by_key(stall.turns)


def _every(engine: MeasuredEngine) -> list[Setting | None]:
    """Return every setting of a sweep."""
    chains = [engine.chain(drafter, length) for drafter in engine.drafters for length in LENGTHS]
    return [None, *chains, *engine.ngrams(), *(LLAMAS_OWN if engine.facts.name == "llama.cpp" else ())]


def _verdicts(row: Json) -> dict[str, bool]:
    where, plans = f"{row['engine']} at {row['concurrency']}", row["plans"]
    of_best, error, as_promised = (
        statistics.median(plan[name] for plan in plans) for name in ("of_best", "error_at_pace", "error_as_promised")
    )
    labels = ", ".join(dict.fromkeys(plan["plan"] for plan in plans))
    every = ", ".join(f"{plan['of_best']:.3f}" for plan in plans)
    errors = ", ".join(f"{plan['error_at_pace']:+.1%}" for plan in plans)
    times = min(plan["of_plain"] for plan in plans)  # none may be below plain decoding
    promise = f"{error:+.1%} off the promise at the machine's pace ({errors}; {as_promised:+.1%} as promised)"
    return {
        f"{where}: {labels}: {of_best:.3f} of the best ({every})": of_best >= LEAST_OF_BEST,
        f"{where}: {times:.2f} of plain decoding": times >= 1.0,
        f"{where}: measured {promise}": abs(error) <= MOST_OFF,
    }


def synthetic(engine: MeasuredEngine) -> dict[str, bool]:
    """Return whether acceptance that was set by hand comes back from an engine's metrics."""
    drafter = engine.drafters[0]
    load = EngineLoad(concurrency=4, capacity=1024, synthetic=SYNTHETIC)
    prompts = _prompts(engine, calibration_prompts()[:4])
    with engine.started(engine.chain(drafter, len(SYNTHETIC)), load) as running:
        emitted = 0
        while emitted < SYNTHETIC_TOKENS:
            emitted += sum(len(text.tokens) for text in running.decode(prompts, 512))
        assert isinstance(running, OwnDecoding)
        read = READERS["llama-metrics"](running.server.address.get("/metrics").text).acceptance[0].by_position
    wanted, found = sum(SYNTHETIC), sum(read)
    off = [seen - asked for seen, asked in zip(read, SYNTHETIC, strict=True)]
    shown = ", ".join(f"{one:.4f}" for one in read)
    print(f"{engine.facts.name}: acceptance set to {SYNTHETIC}, read {shown}", flush=True)
    name = f"{engine.facts.name}: {found:.3f} of {wanted:.1f} tokens set by hand come back, each place within 2 %"
    return {name: abs(found / wanted - 1.0) <= MOST_SYNTHETIC_OFF and max(map(abs, off)) <= MOST_SYNTHETIC_OFF}


def _prompts(engine: MeasuredEngine, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    return [tokens[-64:] for tokens in engine.encode([prompt.text for prompt in prompts])]


def _name(key: Key) -> str:
    setting = key[1]
    if setting is None:
        return "plain"
    who = "" if setting.drafter is None else f" by {setting.drafter.name}"
    knobs = "".join(f" {name} {value}" for name, value in setting.knobs if name != "p_min")
    return f"{setting.method} {setting.length}{who}{knobs}"


def _show(concurrency: int, swept: dict[Key, float]) -> None:
    middle = statistics.median(swept.values())
    print(f"{concurrency} at once: {len(swept)} settings, median {middle:.0f} tokens/s")
    for key in sorted(swept, key=lambda key: -swept[key]):
        print(f"  {_name(key):<32} {swept[key]:8.1f} tokens/s", flush=True)


def _tell(what: str, share: float) -> None:
    print(f"... {what}", flush=True)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
