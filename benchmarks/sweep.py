"""What benchmarks that race share: ways of decoding raced over the same prompts, in interleaved turns."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo_corpus import further_calibration_prompts

from spectune.db import open_store
from spectune.demo.prompts import calibration_prompts
from spectune.demo.story import family_folder, family_models
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import Plan, PlanCell
from spectune.planner.records.frozen_table import FrozenTable
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.naming import name_of
from spectune.profiler.device import detect
from spectune.profiler.prompts import Prompt
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.inputs import inputs_of
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.race import EngineEntrant, race
from spectune.tuning.measuring.speed_probe import SpeedProbe
from spectune.tuning.plan import solve_and_store
from spectune.tuning.profile import profile
from spectune.tuning.prompts import requests_of
from spectune.tuning.request import Level, Models, PlanRequest, ProfileRequest
from spectune.tuning.validate import entrant

BATCHES = (1, 4, 8)
DTYPE = detect("cpu").native_dtype
WORKLOAD = "python-stdlib"
PROFILE_PROMPTS, PROFILE_TOKENS = 24, 96  # recorded: text is cheaper to a profile than to a sweep
PROMPTS, NEW_TOKENS = 16, 96  # decoded by every way of a race
TURNS = 8  # of a sweep: every entrant decodes an eighth of the tokens, then the next one
FINE_TURNS = 32  # of a race between few, whose differences are small
LOOKUP = "lookup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of decoding."""

    policy: TreePolicy
    drafter: str | None

    @property
    def name(self) -> str:
        """Name for people."""
        return name_of(self.policy.code, self.drafter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """A way of decoding and what it did: tokens/s without prompts, and seconds of the device with them."""

    way: Way
    tokens_per_s: float
    tokens_per_round: float  # kept per sequence
    device_s: float


class Timed:
    """An entrant whose whole turns are timed, prompts included."""

    def __init__(self, way: Way, entrant: EngineEntrant) -> None:
        """Take a fresh entrant."""
        self.name, self.way, self.device_s = way.name, way, 0.0
        self._entrant = entrant

    def advance(self, share: float) -> None:
        """Decode on."""
        start = time.perf_counter()
        self._entrant.advance(share)
        self.device_s += time.perf_counter() - start

    @property
    def tokens_per_s(self) -> float:
        """Throughput, prompts apart."""
        return self._entrant.tokens_per_s

    @property
    def emitted(self) -> int:
        """Tokens so far."""
        return sum(map(len, self._entrant.run.texts))

    @property
    def raced(self) -> Raced:
        """What was done."""
        kept = self._entrant.run.tokens_per_round
        return Raced(way=self.way, tokens_per_s=self.tokens_per_s, tokens_per_round=kept, device_s=self.device_s)


def raced(
    ways: Sequence[Way],
    run_tokens: tuple[int, ...],
    family: Family,
    requests: Sequence[Request],
    batch: int,
    *,
    turns: int = TURNS,
    seed: int = 0,
    gauges: Sequence[SpeedProbe] = (),
) -> list[Raced]:
    """Decode all requests with every way in turns of random order; return the ways, the fastest first.

    Args:
        ways: what races; one that is named twice gets two decoders.
        run_tokens: padding of a verify; the same for all, so that nobody wins by it.
        family: the models.
        requests: as many as the batch or more.
        batch: slots.
        turns: shares the work is cut into.
        seed: of the orders.
        gauges: what tells the machine's pace meanwhile.
    """
    print(f"... batch {batch}: racing {len(ways)} ways", file=sys.stderr, flush=True)
    setups = [StepConfig(policy=way.policy, drafter=way.drafter, run_tokens=run_tokens) for way in ways]
    field = [
        Timed(way, entrant(way.name, setup, family, requests, batch)) for way, setup in zip(ways, setups, strict=True)
    ]
    race([*field, *gauges], turns=turns, seed=seed)
    return sorted((one.raced for one in field), key=lambda one: -one.tokens_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """What is known before anything is raced, and the seconds it took."""

    inputs: PlanInputs
    plan: Plan
    profile_s: float
    plan_s: float

    @property
    def cells(self) -> tuple[PlanCell, ...]:
        """The plan's."""
        return self.plan.cells


def learned(
    temperature: float,
    budget_s: float,
    record: Level = "standard",
    *,
    models: Models | None = None,
    batches: tuple[int, ...] = BATCHES,
    tables: tuple[FrozenTable, ...] = (),
    prompts: Sequence[Prompt] = (),
    new_tokens: int = PROFILE_TOKENS,
) -> Chapter:
    """Profile the demo family on the calibration prompts and plan, one context per batch: the texts' middle.

    Args:
        temperature: of the texts.
        budget_s: for latency cells.
        record: which trees.
        models: the family; target, small and medium drafter where None.
        batches: to plan for.
        tables: frozen ones that Cacheback may draft from.
        prompts: to profile on; some of the calibration prompts where there are none.
        new_tokens: of the texts.
    """
    request = ProfileRequest(
        models=models or family_models(family_folder()),
        prompts=prompts or calibration_prompts()[:PROFILE_PROMPTS],
        workload=WORKLOAD,
        temperature=temperature,
        dtype=DTYPE,
        batches=batches,
        max_new_tokens=new_tokens,
        budget_s=budget_s,
        record=record,
    )
    with tempfile.TemporaryDirectory() as folder, open_store(str(Path(folder) / "store.db")) as store:
        started = time.perf_counter()
        measured = profile(request, store, progress=_tell)
        profile_s = time.perf_counter() - started
        inputs = inputs_of(measured)
        middle = statistics.median(len(t.prompt) + len(t.continuation) // 2 for t in measured.traces[0].prompts)
        wanted = PlanRequest(
            target=measured.identities.target,
            device=measured.device,
            dtype=DTYPE,
            workload=WORKLOAD,
            temperature=temperature,
            batches=batches,
            contexts=(int(middle),),
            tables=tables,
        )
        started = time.perf_counter()
        plan = solve_and_store(inputs, wanted, store)
        plan_s = time.perf_counter() - started
    print(f"profile {profile_s:.1f} s, plan {plan_s:.1f} s", flush=True)
    return Chapter(inputs=inputs, plan=plan, profile_s=profile_s, plan_s=plan_s)


def profiled_prompts(count: int) -> tuple[Prompt, ...]:
    """Return so many of the demo's calibration prompts, and as many more of their kind as are missing."""
    own, tokenizer = calibration_prompts()[:count], load_tokenizer(str(family_models(family_folder()).target))
    return *own, *further_calibration_prompts(count - len(own), tokenizer)


def requests(prompts: Sequence[Prompt], temperature: float, *, seed: int) -> list[Request]:
    """Return prompts as requests of NEW_TOKENS tokens."""
    models = family_models(family_folder())
    asked = ProfileRequest(
        models=models, prompts=prompts, temperature=temperature, max_new_tokens=NEW_TOKENS, seed=seed
    )
    return requests_of(asked, load_tokenizer(str(models.target)))


def speeds_of(run: Sequence[Raced], way: Way) -> list[float]:
    """Return the tokens/s of each decoder of one way in a race."""
    return [one.tokens_per_s for one in run if one.way == way]


def speed_of(run: Sequence[Raced], way: Way) -> float:
    """Return the tokens/s of one way in a race, the mean of its decoders'."""
    return statistics.mean(speeds_of(run, way))


def kept_of(run: Sequence[Raced], way: Way) -> float:
    """Return the tokens per round and sequence of one way in a race, the mean of its decoders'."""
    return statistics.mean(one.tokens_per_round for one in run if one.way == way)


def _tell(what: str, share: float) -> None:
    if what not in _said:
        _said.add(what)
        print(f"... {what}", file=sys.stderr, flush=True)


_said: set[str] = set()
