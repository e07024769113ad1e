"""Measure what a round takes beyond its forwards timed alone: short real rounds of every kind of policy.

It is the host's own work, and what a forward loses by running between others: the target pushes the
drafter's weights out of the caches, and the other way round.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..planner.policy import CastPolicy, ChainPolicy, Eagle2Policy, LookupPolicy, PlainPolicy, StaticPolicy, TreePolicy
from ..planner.tree import TokenTree
from ..profiler.records.overhead import OverheadSample
from ..runtime.decoder import Decoder, Round
from ..runtime.models.forward import CausalModel
from ..runtime.requests import Request
from ..runtime.setup import RoundSetup, always
from ..runtime.shapes import ForwardShapes
from .decoding import LOOKUP, Family, room_for

ROUNDS = 8  # timed, per policy
WARM_UP = 2  # rounds before, untimed


def probes(drafter: str | None) -> list[RoundSetup]:
    """Return one or more policies per kind, small and large, that show its cost per forward and per node."""
    setups: list[tuple[TreePolicy, str | None]] = [
        (PlainPolicy(), None),
        (LookupPolicy(length=2, max_ngram=2), LOOKUP),
        (LookupPolicy(length=8, max_ngram=2), LOOKUP),
    ]
    if drafter is not None:
        policies: list[TreePolicy] = [
            ChainPolicy(length=1),
            ChainPolicy(length=4),
            StaticPolicy(tree=_bush(2, 2)),
            StaticPolicy(tree=_bush(3, 5)),
            Eagle2Policy(verify_tokens=6, depth=1, top_k=2),
            Eagle2Policy(verify_tokens=24, depth=4, top_k=6),
            _cast(2, 2, 6),
            _cast(6, 5, 24),
        ]
        setups.extend((policy, drafter) for policy in policies)
    return [RoundSetup(policy=policy, drafter=name) for policy, name in setups]


def measure_overhead(
    family: Family, requests: Sequence[Request], *, batch: int, drafter: str | None, seed: int = 0
) -> list[OverheadSample]:
    """Return the samples of one batch size; rounds of all policies are interleaved in random order.

    Right after each round its forwards are timed alone, so that both meet the same mood of the machine.

    Args:
        family: the models, in the dtype that is to be planned.
        requests: at least `batch`, long enough for the rounds.
        batch: sequences.
        drafter: the one the probes draft with; None where the family has none.
        seed: of the order.
    """
    alone = _Alone(family, drafter, batch, room_for(requests, probes(drafter)))
    running = [_Probe(family, requests, setup, batch) for setup in probes(drafter)]
    order = random.Random(seed)
    for turn in range(WARM_UP + ROUNDS):
        order.shuffle(running)
        for probe in running:
            probe.step(alone, keep=turn >= WARM_UP)
    return [probe.sample() for probe in running]


class _Alone:
    """Times a round's forwards outside the round, the way the profiler times them."""

    def __init__(self, family: Family, drafter: str | None, batch: int, room: int) -> None:
        self._batch = batch
        self._verify = _shapes(family.target, "verify", batch, room)
        self._draft = None if drafter is None else _shapes(family.drafters[drafter], "draft", batch, room)

    def forwards_ms(self, done: Round) -> float:
        """Return what the forwards of a round take one by one."""
        total = self._ms(self._verify, done.context, done.verify_tokens)
        if done.widths and self._draft is not None:
            for tokens, times in Counter((done.fresh, *done.widths[1:])).items():
                total += times * self._ms(self._draft, done.context, tokens)
        return total

    def _ms(self, shapes: ForwardShapes, context: int, tokens: int) -> float:
        call = shapes.prepare(self._batch, context, tokens)
        call()
        start = time.perf_counter_ns()
        call()
        shapes.wait()
        return (time.perf_counter_ns() - start) / 1e6


def _shapes(model: CausalModel, role: str, batch: int, room: int) -> ForwardShapes:
    return ForwardShapes(model, identity=role, dtype=str(model.dtype), role=role, slots=batch, capacity=room)


class _Probe:
    """One policy's decoder on its way, started afresh whenever its sequences end."""

    def __init__(self, family: Family, requests: Sequence[Request], setup: RoundSetup, batch: int) -> None:
        self._family, self._setup, self._batch = family, setup, batch
        self._requests = [replace(request, stop=frozenset()) for request in requests]  # none may end early
        self._decoder: Decoder = self._fresh()
        self._host_ms: list[float] = []
        self._rounds: list[Round] = []

    def step(self, alone: _Alone, *, keep: bool) -> None:
        """Run one round of the full batch; keep what it took beyond its forwards."""
        if self._decoder.has_room:
            self._decoder = self._fresh()
        start = time.perf_counter_ns()
        done = self._decoder.step()
        round_ms = (time.perf_counter_ns() - start) / 1e6
        if keep:
            self._host_ms.append(max(round_ms - alone.forwards_ms(done), 0.0))
            self._rounds.append(done)

    def sample(self) -> OverheadSample:
        """Return the host time of the rounds, and their mean shape."""
        return OverheadSample(
            kind=self._setup.policy.kind,
            batch=self._batch,
            draft_forwards=round(statistics.mean(len(r.widths) for r in self._rounds)),
            nodes=round(statistics.mean(r.verify_tokens for r in self._rounds)),
            host_ms=tuple(self._host_ms),
        )

    def _fresh(self) -> Decoder:
        names = [self._setup.drafter] if self._setup.drafter else []
        room = room_for(self._requests, [self._setup])
        decoder = self._family.decoder(always(self._setup), names=names, batch=self._batch, capacity=room)
        for request in self._requests:
            if decoder.has_room:
                decoder.admit(request)
        return decoder


def _bush(width: int, depth: int) -> TokenTree:
    """Return a tree whose first child at every depth has `width` children."""
    parents, ranks, trunk = [-1], [0], 0
    for _ in range(depth):
        first = len(parents)
        parents.extend([trunk] * width)
        ranks.extend(range(width))
        trunk = first
    return TokenTree(parents=tuple(parents), ranks=tuple(ranks))


def _cast(width: int, depth: int, tokens: int) -> CastPolicy:
    """Return a CAST policy that prunes nothing, so its shape is its caps."""
    return CastPolicy(
        breadth=0.0,
        depth=0.0,
        rerank=0.0,
        max_width=width,
        max_depth=depth,
        max_verify_tokens=tokens,
        ratio_window=4,
        draft_cost_ms=(0.0, *([1.0] * width)),
        verify_cost_ms=(0.0, *([1.0] * tokens)),
    )
