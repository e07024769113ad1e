"""What goldens are computed from: a made-up family with every kind of drafter, and the store of version 0320424.

Nothing in the made-up family hangs on a machine: tokens are drawn by `random.Random` from texts, times have four
decimals, and log-probabilities are whole 64ths, so that sums of them are exact and siblings are often equally likely.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.planner.kernels.slots import NOBODY
from spectune.planner.lossy.quality import Quality
from spectune.planner.lossy.run import LossyRun, LossyWay
from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.records.frozen_table import FrozenTable
from spectune.planner.records.pad_rule import PadRule
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.pad import PadPolicy
from spectune.planner.strategies.stack import StackPolicy, stack_name
from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead
from spectune.profiler.records.role import READ
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.records.wire import from_json
from spectune.tuning.documents import PlanFiles, inputs_from_files
from spectune.tuning.inputs import inputs_from_store
from spectune.tuning.request import PlanRequest

from .synthetic import DEVICE, TARGET, Best, Language, Nodes, SkilledDrafter, every_node, model, record, texts

STORED = Path(__file__).parents[1] / "data" / "v0320424"
# What `spectune show -o` writes of a store, and a pairwise.
REAL_PAIR = Path(__file__).parents[1] / "data" / "real_pair"
FAMILY = Path(__file__).parents[2] / "demo" / "models"
BATCHES, CONTEXTS = (1, 3, 8), (8, 30, 120)
TOKENS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 17, 20)
RESUMED_TOKENS = (2, 3, 4, 5, 6, 9, 13, 21)
TEXTS = 9
TABLE = FrozenTable(
    leader_tokens=1,
    follower_tokens=2,
    leaders=3,
    followers=2,
    packed="eNpjYmBgYARiJgYIgLFhNDMQswAxKxCzMSAAO5RmgmIABZwAKQ==",
)  # leaders 0, 1 and 2
LANGUAGE = Language(seed=23)
Milliseconds = Callable[[int, int, int], float]  # (batch, context, tokens)
KINDS_OF_TEXT = ("lookup", "suffix", "suffix-tree", "cacheback")
KINDS_OF_MODELS = ("chain", "confident-chain", "static", "eagle2", "talon", "opt-tree", "cast")


@dataclass(frozen=True)
class CoarseDrafter(SkilledDrafter):
    """A drafter whose log-probabilities are whole 64ths."""

    def best(self, tokens: tuple[int, ...], count: int) -> Best:
        ranked = SkilledDrafter.best(self, tokens, count)
        return [(token, np.float32(round(float(score) * 64.0) / 64.0)) for token, score in ranked]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A drafter of the family: how skilled it is, what is recorded of it, and what its forwards take."""

    role: str
    skill: float
    nodes: Nodes
    ms: Milliseconds
    children: int = 3
    resume_ms: Milliseconds | None = None

    @property
    def is_exact(self) -> bool:
        """Whether what it proposes is a function of the text alone."""
        return self.role in ("draft", "self")


def chain_nodes(depth: int) -> Nodes:
    """Return the nodes of the likeliest path."""
    return [(0,) * length for length in range(depth + 1)]


def united(*several: Nodes) -> Nodes:
    """Return all nodes once, parents before children."""
    return sorted(dict.fromkeys(node for nodes in several for node in nodes), key=lambda node: (len(node), node))


def target_ms(batch: int, context: int, tokens: int) -> float:
    """Return what the target takes: a base, and a step behind every 16 rows."""
    return 11.0 + 0.004 * batch * context + 0.02 * batch * tokens + 2.0 * ((batch * tokens - 1) // 16)


MEMBERS = {
    "good": Member(
        role="draft",
        skill=0.9,
        nodes=united(every_node(3, 3), chain_nodes(9)),
        ms=lambda batch, context, tokens: 2.6 + 0.001 * batch * context + 0.05 * batch * tokens,
        children=4,
    ),
    "quick": Member(
        role="draft",
        skill=0.7,
        nodes=united(every_node(1, 3), chain_nodes(5)),
        ms=lambda batch, context, tokens: 0.5 + 0.02 * batch * tokens,
    ),
    "head": Member(
        role="head",
        skill=0.8,
        nodes=united(every_node(2, 3), chain_nodes(6)),
        ms=lambda batch, context, tokens: 0.9 + 0.03 * batch * tokens,
    ),
    "block": Member(
        role="block",
        skill=0.65,
        nodes=every_node(2, 3),
        ms=lambda batch, context, tokens: 1.1 + 0.03 * batch * tokens,
    ),
    "exit": Member(
        role="self",
        skill=0.75,
        nodes=united(every_node(1, 3), chain_nodes(5)),
        ms=lambda batch, context, tokens: 1.9 + 0.03 * batch * tokens,
        resume_ms=lambda batch, context, tokens: 0.7 * target_ms(batch, context, tokens),
    ),
}


@cache
def made() -> PlanInputs:
    """Return the inputs of the made-up family: five drafters, three batch sizes, three contexts."""
    pairs = texts(LANGUAGE, TEXTS, lambda text: 18 + 3 * text)
    traces = {
        name: record(
            CoarseDrafter(LANGUAGE, member.skill, seed=number),
            pairs,
            member.nodes,
            children=member.children,
            name=name,
            prefix_exact=member.is_exact,
        )
        for number, (name, member) in enumerate(MEMBERS.items())
    }
    return PlanInputs(
        device=DEVICE,
        target=TARGET,
        dtype="float32",
        verify=timed("large", "verify", target_ms, fails=(8, 120, 20)),
        overhead=RoundOverhead(device=DEVICE.fingerprint, target=TARGET.key, dtype="float32", samples=tuple(rounds())),
        drafters=tuple(drafter(name, member, traces[name]) for name, member in MEMBERS.items()),
        pairwise=agreement(),
        readings={
            model(name).key: reading(name, ms) for name, ms in (("large", 0.11), ("good", 0.05), ("quick", 0.02))
        },
    )


def drafter(name: str, member: Member, trace: AcceptanceTrace) -> DrafterInputs:
    """Return one drafter as a plan takes it."""
    resume = None if member.resume_ms is None else timed(name, "resume", member.resume_ms, tokens=RESUMED_TOKENS)
    surface = timed(name, member.role, member.ms)
    return DrafterInputs(name=name, model=model(name), surface=surface, trace=trace, resume=resume)


def timed(
    name: str, role: str, ms: Milliseconds, *, tokens: Sequence[int] = TOKENS, fails: tuple[int, int, int] | None = None
) -> LatencySurface:
    """Return a surface with noise, held-out shapes and, if asked for, one that failed."""
    source = random.Random(f"times of {name} as {role}")

    def repeats(shape: tuple[int, int, int]) -> tuple[float, ...]:
        return tuple(round(ms(*shape) * source.uniform(0.97, 1.05), 4) for _ in range(3))

    cells = []
    for shape in ((b, c, t) for b in BATCHES for c in CONTEXTS for t in tokens):
        batch, context, count = shape
        told = {"failure": "out of memory"} if shape == fails else {"repeats_ms": repeats(shape)}
        cells.append(Measurement(batch=batch, context_tokens=context, tokens=count, **told))
    others = [count for count in range(tokens[0], tokens[-1]) if count not in tokens]
    for count in source.sample(others, 6):
        batch, context = source.choice(BATCHES), source.choice(CONTEXTS)
        repeated = repeats((batch, context, count))
        held_out = Measurement(
            batch=batch, context_tokens=context, tokens=count, repeats_ms=repeated, purpose="held-out"
        )
        cells.append(held_out)
    return surface_of(name, role, cells)


def reading(name: str, token_ms: float) -> LatencySurface:
    """Return what reading prompts takes."""
    cells = [
        Measurement(batch=1, context_tokens=0, tokens=tokens, repeats_ms=(2.0 + token_ms * tokens,))
        for tokens in (16, 64, 256)
    ]
    return surface_of(name, READ, cells)


def surface_of(name: str, role: str, cells: Sequence[Measurement]) -> LatencySurface:
    """Return timed cells as a surface of the made-up device."""
    return LatencySurface(
        device=DEVICE.fingerprint,
        model=model(name).key,
        role=role,
        regime="eager",
        dtype="float32",
        measurements=tuple(cells),
    )


def rounds() -> Iterator[OverheadSample]:
    """Yield host times of every kind of round, beside every role of drafters that makes such rounds."""
    source = random.Random("host times")

    def sample(kind: str, batch: int, role: str, forwards: int, nodes: int) -> OverheadSample:
        usual = 0.2 + 0.03 * batch + (0.15 + 0.05 * forwards if forwards else 0.0) + 0.004 * nodes
        repeats = tuple(round(usual * source.uniform(0.9, 1.2), 4) for _ in range(3))
        return OverheadSample(kind=kind, batch=batch, draft_forwards=forwards, nodes=nodes, host_ms=repeats, role=role)

    for batch in BATCHES:
        for role in ("draft", "head", "block", "self"):
            yield sample("plain", batch, role, 0, 1)
            yield from (sample(kind, batch, role, 0, nodes) for kind in KINDS_OF_TEXT for nodes in (5, 17))
            yield from (sample(kind, batch, role, n, 1 + 4 * n) for kind in KINDS_OF_MODELS for n in (2, 5))
            yield from (sample("hybrid", batch, role, n, 6 + n) for n in (0, 3))
        yield from (sample("stack", batch, "draft", n, 1 + n) for n in (2, 6))
        yield from (sample("resumed", batch, "self", n, 1 + n) for n in (2, 5))


def agreement() -> PairwiseAcceptance:
    """Return how often each pair of the family says the same."""
    names = ("target", *MEMBERS)
    shares = tuple(
        tuple(1.0 if one == other else round(0.9 - 0.05 * abs(one - other), 2) for other in range(len(names)))
        for one in range(len(names))
    )
    return PairwiseAcceptance(
        models=names, greedy=shares, overlap=shares, positions=99, target=TARGET.key, workload="made up"
    )


LOSSY: tuple[LossyWay, ...] = (
    FlyPolicy(draft=ChainPolicy(length=5), rule=FlyRule(threshold=0.3, window=3)),
    PadPolicy(draft=ChainPolicy(length=4), rule=PadRule(threshold=0.4), classifier=model("pivots")),
    FlyPolicy(draft=StackPolicy(drafters=("good", "quick"), lengths=(4, 2)), rule=FlyRule(threshold=0.2, window=2)),
)


@cache
def lossy_runs() -> tuple[LossyRun, ...]:
    """Return rounds of lossy ways, made up, at batch 1 and 3."""
    return tuple(lossy_run(way, batch) for batch in (1, 3) for way in LOSSY)


def lossy_run(way: LossyWay, batch: int, count: int = 40) -> LossyRun:
    """Return made-up rounds of one lossy way."""
    source = random.Random(f"{way.code} {batch}")
    draft = way.draft
    names = draft.models if isinstance(draft, StackPolicy) else ("good",)
    forwards = draft.draft_forwards
    levels = np.full((count, forwards), NOBODY if isinstance(draft, ChainPolicy) else 1, dtype=np.int32)
    if isinstance(draft, StackPolicy):
        levels[:, 2::3] = 0
    most = draft.max_verify_tokens
    kept = [[source.randint(2, most) for _ in range(batch)] for _ in range(count)]
    prompts = tuple(text.prompt for text in made().texts)
    return LossyRun(
        target=TARGET.key,
        dtype="float32",
        workload="made up",
        temperature=0.0,
        seed=0,
        max_new_tokens=64,
        batch=batch,
        drafters=tuple((name, model(name).key) for name in names),
        drafter=stack_name(draft) if isinstance(draft, StackPolicy) else "good",
        policy=way,
        quality=Quality(
            measure="accuracy",
            prompts=50,
            target=0.9,
            lossy=0.875,
            loss=0.025,
            low=0.0,
            high=0.0625,
            same_texts=0.5,
            lossy_tokens=0.125,
        ),
        prompts=prompts,
        contexts=np.array([source.randint(4, 40) for _ in range(count)], dtype=np.int32),
        nodes=np.full(count, most, dtype=np.int32),
        catch_up=np.array([1, *(max(row) for row in kept[:-1])], dtype=np.int32),
        widths=np.ones((count, forwards), dtype=np.int32),
        levels=levels,
        texts=np.arange(count * batch, dtype=np.int32).reshape(count, batch) % len(prompts),
        kept=np.array(kept, dtype=np.int32),
        matched=90,
        mismatched=30,
        entropies=np.array([0.125, 0.25, 0.5, 1.0], dtype=np.float32),
        pivots=np.array([0.125, 0.5, 0.75], dtype=np.float32),
    )


@contextmanager
def stored() -> Iterator[SqlStore]:
    """Yield a copy of the store that version 0320424 wrote, whose models lie where this repository has them."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        file.write_bytes(gzip.decompress((STORED / "store.db.gz").read_bytes()))
        with SqlStore(resolve_url(str(file))) as store:
            for each in store.models():  # where they lie says how much memory they take
                store.add_model(replace(each, location=str(FAMILY / each.name)))
            yield store


@cache
def recorded() -> PlanInputs:
    """Return what was measured and recorded in the store of version 0320424, of a model and a head."""
    with stored() as store:
        (device,) = store.devices()
        target = next(each for each in store.models() if each.name == "target")
        return inputs_from_store(PlanRequest(target=target, device=device, dtype="float32"), store)


@cache
def real_pair() -> PlanInputs:
    """Return what `spectune profile` measured and recorded of Qwen2.5-Coder 1.5B with its 0.5B on two cores."""
    with TemporaryDirectory() as folder:
        for file in REAL_PAIR.iterdir():
            (Path(folder) / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        agreed = (Path(folder) / "pairwise.json").read_text()
        surfaces = (*Path(folder).glob("verify-*"), *Path(folder).glob("draft-*"), *Path(folder).glob("read-*"))
        files = PlanFiles(surfaces=tuple(sorted(surfaces)), traces=(Path(folder) / "trace.json",))
        return replace(inputs_from_files(files), pairwise=from_json(PairwiseAcceptance, agreed))


@cache
def recorded_elsewhere() -> PlanInputs:
    """Return what was recorded in that store with the times of the made-up family, where drafts pay more."""
    found = recorded()
    names = {"draft": "quick", "head": "head"}  # by role, whose times
    times = {one.name: one.surface for one in made().drafters}

    def of_theirs(surface: LatencySurface, key: str) -> LatencySurface:
        return replace(surface, model=key, device=found.device.fingerprint)

    return replace(
        found,
        verify=of_theirs(made().verify, found.target.key),
        overhead=replace(made().overhead, target=found.target.key, device=found.device.fingerprint),
        drafters=tuple(
            replace(one, surface=of_theirs(times[names[one.surface.role]], one.model.key)) for one in found.drafters
        ),
        host_times=(),
        paces=(),
        readings={},
        notes=(),
    )
