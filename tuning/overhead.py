"""Measure what a round takes beyond its forwards: short real rounds of every kind of policy."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..planner.policy import CastPolicy, ChainPolicy, Eagle2Policy, LookupPolicy, PlainPolicy, StaticPolicy, TreePolicy
from ..planner.tree import TokenTree
from ..profiler.records.overhead import OverheadSample
from ..profiler.records.surface import LatencySurface
from ..runtime.decoder import Decoder, Round
from ..runtime.requests import Request
from ..runtime.setup import RoundSetup, always
from .decoding import LOOKUP, Family, room_for

ROUNDS = 12  # timed, per policy
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
    family: Family,
    requests: Sequence[Request],
    surfaces: tuple[LatencySurface, Mapping[str, LatencySurface]],
    *,
    batch: int,
    drafter: str | None,
    seed: int = 0,
) -> list[OverheadSample]:
    """Return the samples of one batch size; rounds of all policies are interleaved in random order.

    Args:
        family: the models, in the dtype of the surfaces.
        requests: at least `batch`, long enough for the rounds.
        surfaces: the target's verify surface, and the drafters' by name.
        batch: sequences.
        drafter: the one the probes draft with; None where the family has none.
        seed: of the order.
    """
    endless = [replace(request, stop=frozenset()) for request in requests]  # what is decoded is of no matter here
    running = [_Probe(family, endless, setup, batch) for setup in probes(drafter)]
    order = random.Random(seed)
    for turn in range(WARM_UP + ROUNDS):
        order.shuffle(running)
        for probe in running:
            probe.step(keep=turn >= WARM_UP)
    return [probe.sample(surfaces) for probe in running]


class _Probe:
    """One policy's decoder on its way, started afresh whenever its sequences end."""

    def __init__(self, family: Family, requests: Sequence[Request], setup: RoundSetup, batch: int) -> None:
        self._family, self._requests, self._setup, self._batch = family, requests, setup, batch
        self._decoder: Decoder = self._fresh()
        self._rounds: list[tuple[float, Round]] = []

    def step(self, *, keep: bool) -> None:
        """Run and time one round of the full batch."""
        if self._decoder.has_room:
            self._decoder = self._fresh()
        start = time.perf_counter_ns()
        done = self._decoder.step()
        if keep:
            self._rounds.append(((time.perf_counter_ns() - start) / 1e6, done))

    def sample(self, surfaces: tuple[LatencySurface, Mapping[str, LatencySurface]]) -> OverheadSample:
        """Return the rounds' time beyond their forwards."""
        policy = self._setup.policy
        return OverheadSample(
            kind=policy.kind,
            batch=self._batch,
            draft_forwards=round(statistics.mean(len(r.widths) for _, r in self._rounds)),
            nodes=round(statistics.mean(r.verify_tokens for _, r in self._rounds)),
            host_ms=tuple(ms - self._forwards_ms(r, surfaces) for ms, r in self._rounds),
        )

    def _forwards_ms(self, done: Round, surfaces: tuple[LatencySurface, Mapping[str, LatencySurface]]) -> float:
        verify, drafts = surfaces
        total = _at(verify, self._batch, done.context, done.verify_tokens)
        if done.widths:
            draft = drafts[str(self._setup.drafter)]
            total += sum(_at(draft, self._batch, done.context, fed) for fed in (done.fresh, *done.widths[1:]))
        return total

    def _fresh(self) -> Decoder:
        names = [self._setup.drafter] if self._setup.drafter else []
        room = room_for(self._requests, [self._setup])
        decoder = self._family.decoder(always(self._setup), names=names, batch=self._batch, capacity=room)
        for request in self._requests:
            if decoder.has_room:
                decoder.admit(request)
        return decoder


def _at(surface: LatencySurface, batch: int, context: int, tokens: int) -> float:
    known = surface.contexts(batch)
    return surface.latency(batch, int(np.clip(context, known[0], known[-1])), tokens).ms


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
