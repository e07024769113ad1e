"""What `real.py` races: sets of real models, their prompts, profiles and plans; each set has a store of its own."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spectune.db import open_store
from spectune.errors import RequestError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import Plan, PlanCell
from spectune.profiler.device import detect
from spectune.profiler.gguf_file import read_gguf
from spectune.profiler.identity import identify
from spectune.profiler.prompts import Prompt, read_prompts
from spectune.profiler.records.device import AUTO_DTYPE
from spectune.profiler.records.surface import LatencySurface
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.family import load_family
from spectune.tuning.inputs import inputs_from_store
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.timing import runners_of
from spectune.tuning.plan import solve_and_store
from spectune.tuning.profile import profile
from spectune.tuning.prompts import requests_of
from spectune.tuning.request import Identities, Models, PlanRequest, ProfileRequest

from real_judge import domain_of, judged  # isort: skip

Json = dict[str, Any]
SEED, RACE_SEED = 0, 1000
FILES = {"humaneval": "humaneval.jsonl", "mtbench": "mtbench.jsonl"}
QUICKLY: Json = {"budget_s": 8.0, "held_out": 5, "record": "quick"}  # else the defaults of `spectune profile`
DRAFTER = "small"
CHATS, SHORTEST_CHAT = "sharegpt.json", 200  # characters of a text that long prompts are joined from


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked of a run; see the options of `real.py`."""

    models: Path
    stores: Path
    pair: tuple[str, ...]  # target and drafter, or a target alone
    prompts: int  # profiled, and as many others raced
    tokens: int
    rule_prompts: int  # raced with all published rules, and with other decoders
    rule_tokens: int
    long_prompts: int
    long_tokens: int  # of a long prompt at least
    few: int  # prompts of transformers' decoders
    swept: int  # prompts of a sweep
    profiles: int  # of the pair, of which the middle counts
    quick: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSet:
    """Models, a number format, prompts and a temperature, profiled together.

    Attributes:
        target: a file's or a folder's name; None for the pair's.
        is_packed: whether the GGUF files run as they are stored; else the dense folders in the device's own format.
        prompts: a name of `FILES`, or "long".
        is_repeated: whether it is profiled several times.
    """

    name: str
    batches: tuple[int, ...]
    target: str | None = None
    is_packed: bool = False
    prompts: str = "humaneval"
    temperature: float = 0.0
    is_repeated: bool = False

    def models(self, options: Options) -> Models:
        """Return where the models lie."""
        target, *drafters = (self.target,) if self.target else options.pair
        ending = ".gguf" if self.is_packed else ""
        places = {name: options.models / f"{name}{ending}" for name in (target, *drafters)}
        if absent := [str(place.name) for place in places.values() if not place.exists()]:
            raise RequestError(f"the folder of models lacks {', '.join(absent)}; bring them there")
        return Models(
            target=places[target], drafters={name: places[of] for name, of in zip((DRAFTER,), drafters, strict=False)}
        )

    def store(self, options: Options, number: int) -> Path:
        """Return the file of one of its profiles."""
        labels = ["quick"] if options.quick else []
        return options.stores / f"{'-'.join([*labels, self.target or options.pair[0], self.name])}-{number}.db"

    def count(self, options: Options) -> int:
        """Return how many prompts are profiled, and as many others raced."""
        return options.long_prompts if self.prompts == "long" else options.prompts


SETS = {
    each.name: each
    for each in (
        ModelSet(name="pair", batches=(1, 4), is_repeated=True),
        ModelSet(name="pair-of-8", batches=(8,)),
        ModelSet(name="pair-alone", batches=(1,)),
        ModelSet(name="pair-q4", batches=(1, 4, 8), is_packed=True),
        ModelSet(name="pair-mtbench", batches=(1,), prompts="mtbench"),
        ModelSet(name="smollm2", batches=(1, 4, 8), target="smollm2"),
        ModelSet(name="gemma3", batches=(1, 4, 8), target="gemma3"),
        ModelSet(name="long", batches=(1,), prompts="long"),
        ModelSet(name="sampled", batches=(1,), temperature=0.8),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, what it was made from, and how long that took."""

    models: Models
    store: Path
    inputs: PlanInputs
    plan: Plan
    plan_s: float

    def family(self) -> Family:
        """Load the models in the plan's number format."""
        return load_family(self.models, dtype=self.inputs.dtype, device="cpu")

    def cell(self, batch: int, requests: Sequence[Request]) -> PlanCell:
        """Return the plan's cell for some requests."""
        middle = statistics.median(len(one.prompt) + one.max_new_tokens // 2 for one in requests)
        return self.plan.cell(batch, int(middle))


def prompts_of(which: ModelSet, options: Options, *, raced: bool) -> tuple[Prompt, ...]:
    """Return the prompts that are profiled, or as many others that are raced: one seeded order, cut in two.

    A conversation of MT-Bench has two turns, so half as many are taken; their categories are one workload here.
    """
    count = which.count(options)
    if which.prompts == "long":
        texts = _long_prompts(which.models(options).target, options)
    else:
        texts = [replace(prompt, workload="") for prompt in read_prompts(options.models / FILES[which.prompts])]
        random.Random(SEED).shuffle(texts)
    if any(prompt.later for prompt in texts):
        count = max(count // 2, 2)
    found = tuple(texts[count * raced : count * (1 + raced)])
    if len(found) < count:
        raise RequestError(f"{which.prompts} has {len(texts)} prompts, too few for {2 * count}; lower --prompts")
    return found


def requests_for(which: ModelSet, options: Options, *, count: int, tokens: int, skip: int = 0) -> list[Request]:
    """Return raced prompts as requests, each conversation's first turn."""
    prompts = prompts_of(which, options, raced=True)[skip : skip + count]
    asked = ProfileRequest(
        models=which.models(options),
        prompts=prompts,
        temperature=which.temperature,
        batches=(min(len(prompts), max(which.batches)),),
        max_new_tokens=tokens,
        seed=RACE_SEED,
    )
    return requests_of(asked, load_tokenizer(str(asked.models.target)))


def profiled(which: ModelSet, options: Options) -> Json:
    """Profile a set anew, the pair several times, with the defaults of `spectune profile`; return what came of it."""
    request = _request(which, options)
    options.stores.mkdir(parents=True, exist_ok=True)
    runs = []
    for number in range(options.profiles if which.is_repeated else 1):
        place = which.store(options, number)
        place.unlink(missing_ok=True)
        with open_store(str(place)) as store:
            done = profile(request, store, fresh=True, progress=telling())
        surfaces = [done.verify, *done.drafts.values()]
        rows = _judged(surfaces, done.identities, request) if which.is_repeated or which.is_packed else []
        runs.append({"seconds": done.seconds, "disturbances": list(done.disturbances), "surfaces": rows})
    return {"prompts": len(request.prompts), "batches": list(which.batches), "dtype": done.verify.dtype, "runs": runs}


def judged_again(which: ModelSet, options: Options, runs: Sequence[Json]) -> list[Json]:
    """Return the runs of a profile cell with their stored surfaces judged anew."""
    request = _request(which, options)
    found = []
    for number, run in enumerate(runs):
        target = identify(request.models.target)
        drafters = {name: identify(place) for name, place in request.models.drafters.items()}
        with open_store(str(which.store(options, number))) as store:
            surfaces = store.surfaces(model=target.key, role="verify")[:1]
            surfaces += [store.surfaces(model=each.key, role="draft")[0] for each in drafters.values()]
        rows = _judged(surfaces, Identities(target=target, drafters=drafters), request)
        found.append({**run, "surfaces": rows})
    return found


def planned(which: ModelSet, options: Options, batch: int) -> Planned:
    """Plan one batch size with the defaults of `spectune plan`, from the set's last profile."""
    place = which.store(options, options.profiles - 1 if which.is_repeated else 0)
    if not place.exists():
        raise RequestError(f"{which.name} was not profiled here; run the cell profile-{which.name} --again")
    models = which.models(options)
    with open_store(str(place)) as store:
        request = PlanRequest(
            target=identify(models.target),
            device=detect("cpu"),
            dtype=_dtype(which, options),
            temperature=which.temperature,
            batches=(batch,),
        )
        started = time.perf_counter()
        inputs = inputs_from_store(request, store)
        plan = solve_and_store(inputs, request, store)
        seconds = time.perf_counter() - started
    return Planned(models=models, store=place, inputs=inputs, plan=plan, plan_s=seconds)


def telling() -> Callable[[str, float], None]:
    """Return what tells every new step on stderr."""
    said: set[str] = set()

    def tell(what: str, _share: float) -> None:
        if what not in said:
            said.add(what)
            print(f"... {what}", file=sys.stderr, flush=True)

    return tell


def _dtype(which: ModelSet, options: Options) -> str:
    return read_gguf(which.models(options).target).format.lower() if which.is_packed else AUTO_DTYPE


def _request(which: ModelSet, options: Options) -> ProfileRequest:
    return ProfileRequest(
        models=which.models(options),
        prompts=prompts_of(which, options, raced=False),
        temperature=which.temperature,
        dtype=_dtype(which, options),
        batches=which.batches,
        max_new_tokens=options.tokens,
        seed=SEED,
        **(QUICKLY if options.quick else {}),
    )


def _judged(surfaces: Sequence[LatencySurface], identities: Identities, request: ProfileRequest) -> list[Json]:
    """Return how far surfaces of a target and its drafters are off at shapes that are no part of them."""
    verify = surfaces[0]
    request = replace(request, dtype=verify.dtype, regime=verify.regime)
    family = load_family(request.models, dtype=request.dtype, device="cpu")
    domain = domain_of(verify)
    runners = runners_of(request, family, identities, [domain] * len(surfaces))
    rows = judged(runners, surfaces, detect("cpu"))
    return [{"model": name, **row} for name, row in zip(("target", *identities.drafters), rows, strict=True)]


def _long_prompts(target: Path, options: Options) -> list[Prompt]:
    """Return prompts of `long_tokens` tokens or more: texts of people, of HumanEval where quick, one behind another."""
    if options.quick:
        texts = [prompt.text for prompt in read_prompts(options.models / FILES["humaneval"])]
    else:
        chats = read_prompts(options.models / CHATS, sample=100 * options.long_prompts, seed=SEED)
        texts = [prompt.text for prompt in chats if len(prompt.text) >= SHORTEST_CHAT]
    tokenizer, waiting = load_tokenizer(str(target)), iter(texts)
    found: list[Prompt] = []
    for _ in range(2 * options.long_prompts):
        joined = ""
        while len(tokenizer(joined)["input_ids"]) < options.long_tokens:
            if not (more := next(waiting, "")):
                raise RequestError(f"{len(texts)} texts make {len(found)} long prompts; lower --long-prompts")
            joined = f"{joined}\n\n{more}".strip()
        found.append(Prompt(text=joined))
    return found
