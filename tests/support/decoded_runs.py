"""Whole decoding runs over tiny models, and drafters that propose what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from threading import Thread

import numpy as np

from spectune.planner.kernels.arrays import Ints
from spectune.planner.records.draft import Children, DraftBatch
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, Schedule, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import CausalModel, LeftStates
from spectune.runtime.models.kv_cache import KeyValueCache

CAPACITY = 160
PLAINLY = always(PLAIN)
BUSHY = TokenTree(parents=(-1, 0, 0, 1, 1, 2, 3), ranks=(0, 0, 1, 0, 1, 0, 0))
POLICIES: dict[str, TreePolicy] = {
    "chain": ChainPolicy(length=3),
    "confident-chain": ConfidentChainPolicy(length=5, confidence=0.4),
    "static": StaticPolicy(tree=BUSHY),
    "eagle2": Eagle2Policy(verify_tokens=10, depth=2, top_k=4),
    "talon": TalonPolicy(nodes=10, gate=0.4, top_k=2, children=6, max_depth=4),
    "opt-tree": OptTreePolicy(nodes=8, least_gain=0.25, max_depth=4, children=5),
    "cast": CastPolicy(
        breadth=0.3,
        depth=0.2,
        rerank=0.5,
        max_width=4,
        max_depth=3,
        max_verify_tokens=12,
        ratio_window=3,
        draft_cost_ms=(0.0, *(1 + 0.1 * width for width in range(6))),
        verify_cost_ms=(0.0, *(10 + 0.1 * tokens for tokens in range(14))),
    ),
    "lookup": LookupPolicy(length=4),
}
PADDED = (0, 2, 2, 5, 5, 5, 9, 9, 9, 9, 12, 12, 12)  # tokens run for a verify of n


@dataclass
class Run:
    """What came out, and every round on the way."""

    outputs: list[tuple[int, ...]]
    rounds: list[StepOutput] = field(default_factory=list)
    target_forwards: int = 0


def in_slots(decoder: Engine) -> list[tuple[int, Sequence]]:
    """Return what is being decoded, each in its own slot of every cache."""
    decoder._slots.settle()
    return list(enumerate(decoder.running))


def run(
    target: CausalModel,
    requests: Many[Request],
    schedule: Schedule = PLAINLY,
    drafters: Mapping[str, Drafter] | None = None,
    *,
    slots: int = 3,
    capacity: int = CAPACITY,
    watch: Callable[[Engine], None] = lambda decoder: None,
    may_fail: bool = False,
    keeps_full: bool = False,
) -> Run:
    """Decode all requests, refilling free slots at once; `watch` sees the decoder after every round.

    With `keeps_full` requests are decoded anew in free slots while any is decoded for the first time.
    """
    decoder = Engine(target, drafters or {}, schedule, slots=slots, capacity=capacity)
    sequences: list[Sequence] = []
    rounds = []
    while len(sequences) < len(requests) or any(not s.is_finished for s in sequences[: len(requests)]):
        while decoder.has_room and (keeps_full or len(sequences) < len(requests)):
            sequences.append(decoder.admit(requests[len(sequences) % len(requests)], len(sequences)))
        if decoder.running:
            rounds.append(decoder.step())
            assert may_fail or not rounds[-1].faults, rounds[-1].faults
            watch(decoder)
    return Run([tuple(s.emitted) for s in sequences[: len(requests)]], rounds, decoder.forwards)


def plain_in_two_threads(model: CausalModel, requests: Many[Request]) -> list[list[tuple[int, ...]]]:
    """Return what each of two threads decodes plainly at once, over one model."""
    found: dict[int, list[tuple[int, ...]]] = {}
    decoding = [
        Thread(target=lambda place: found.update({place: run(model, requests).outputs}), args=(place,))
        for place in range(2)
    ]
    for thread in decoding:
        thread.start()
    for thread in decoding:
        thread.join()
    return [found[place] for place in range(2)]


def drafting(kind: str, drafter: Drafter, **setup: tuple[int, ...]) -> tuple[Schedule, dict[str, Drafter]]:
    """Return the schedule that always runs one kind of policy, and its drafter by name."""
    return always(StepConfig(policy=POLICIES[kind], drafter="it", **setup)), {"it": drafter}


def drafter_for(kind: str, model: CausalModel, slots: int, *, on_device: bool = False) -> Drafter:
    """Return a model drafter, or the text itself for prompt lookup."""
    own = ModelDrafter(model, slots=slots, capacity=CAPACITY, on_device=on_device)
    return LookupDrafter() if kind == "lookup" else own


def random_requests(count: int, *, tokens: int, temperature: float = 0.0, vocabulary: int = 24) -> list[Request]:
    """Return requests with prompts of 1 to 11 tokens; limits vary so that sequences leave one by one."""
    rng = np.random.default_rng(count)
    return [
        Request(
            prompt=tuple(rng.integers(0, vocabulary, 1 + index % 11).tolist()),
            max_new_tokens=tokens + index % 4,
            temperature=temperature,
            seed=index,
        )
        for index in range(count)
    ]


Ranking = Callable[[Sequence, int], Many[int]]  # (sequence, depth from 1) -> tokens, best first


class RankedDrafter(Drafter):
    """Drafts from a ranking that depends on the sequence and the depth alone; no model, no cache."""

    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        scorer = _RankedScorer(self.ranking, sequences)
        draft = grow(policy, scorer, len(sequences))
        self.forwards += scorer.depth
        return draft


class _RankedScorer:
    """The same children for every node of a layer; rank r has probability 2^-(r+1)."""

    def __init__(self, ranking: Ranking, sequences: Many[Sequence]) -> None:
        self.ranking, self.sequences, self.depth = ranking, sequences, 0

    def root(self, children: int) -> Children:
        return self._children(1, children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        return self._children(parents.shape[1], children)

    def _children(self, width: int, children: int) -> Children:
        self.depth += 1
        best = np.array([list(self.ranking(s, self.depth))[:children] for s in self.sequences], dtype=np.int64)
        tokens = np.repeat(best[:, None], width, axis=1)
        scores = -np.log(2) * (1 + np.arange(tokens.shape[2]))
        return Children(tokens=tokens, log_probs=np.broadcast_to(scores, tokens.shape).astype(np.float32))


class RecordingDrafter(Drafter):
    """Another drafter, with the paths it drafted in every round and how many forwards each took."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.forwards = drafter, 0
        self.rounds: list[list[tuple[int, int, set[tuple[int, ...]]]]] = []  # per sequence: index, text length, paths
        self.round_forwards: list[int] = []

    def admit(self, slot: int, sequence: Sequence, held: int = 0) -> None:
        self.drafter.admit(slot, sequence, held)

    def move(self, source: int, target: int) -> None:
        self.drafter.move(source, target)

    def uncached(self, sequences: Many[Sequence]) -> int:
        return self.drafter.uncached(sequences)

    def attach(self, cache: KeyValueCache) -> None:
        self.drafter.attach(cache)

    def policy_for(self, policy: TreePolicy) -> TreePolicy:
        return self.drafter.policy_for(policy)

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        return self.drafter.left(sequences, draft, fed)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        before = self.drafter.forwards
        draft = self.drafter.draft(sequences, policy)
        self.round_forwards.append(self.drafter.forwards - before)
        self.forwards = self.drafter.forwards
        self.rounds.append([(s.index, len(s.emitted), _paths(draft, row)) for row, s in enumerate(sequences)])
        return draft


def _paths(draft: DraftBatch, row: int) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for node in range(1, int(draft.sizes[row])):
        found.append((*found[draft.parents[row, node]], int(draft.tokens[row, node])))
    return set(found)
