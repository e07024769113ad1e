"""Measure what a round takes beyond its forwards timed alone: short real rounds of every kind of policy.

It is the host's own work, and what a forward loses by running between others: the target pushes the
drafter's weights out of the caches, and the other way round.

On a CPU a forward has ended when its call comes back, so a round tells what its target's took. What is left is the
difference of two small numbers, not of two large ones that the machine's moods keep apart. What the target's forward
loses in a round is known from all rounds of a batch that are alike (`Loss`): plain ones, whose forwards follow their
like and lose least; those that copy text, whose sizes change from round to round; and those behind a drafter.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...planner.growth.tree import TokenTree
from ...planner.policies import (
    CachebackPolicy,
    CastPolicy,
    ChainPolicy,
    ConfidentChainPolicy,
    Eagle2Policy,
    HybridPolicy,
    LookupPolicy,
    OptTreePolicy,
    PlainPolicy,
    ResumedPolicy,
    StackPolicy,
    StaticPolicy,
    SuffixPolicy,
    SuffixTreePolicy,
    TalonPolicy,
    TextPolicy,
    TreePolicy,
)
from ...planner.policies.stack import JOINT, stack_name
from ...profiler.records.overhead import OUTERMOST, OverheadSample
from ...profiler.repeats import SETTLED
from ...runtime.decoder import Decoder, Round
from ...runtime.models.exit import ExitModel
from ...runtime.models.tapped import is_beside_target
from ...runtime.requests import Request
from ...runtime.setup import PLAIN, RoundSetup
from .alone import Alone
from .decoding import LOOKUP, Family, require_faultless, room_for

Floats = NDArray[np.float64]
Like = Literal["plain", "text", "drafted"]
REFINEMENTS = 3
IN_A_ROW = 3  # rounds of a kind that are timed in each of its turns
TURNS = 2  # per policy that runs a drafter
TEXT_TURNS = 3  # per one that drafts from the text: its drafts cost little, and it differs from others by less
PLAIN_TURNS = 7  # of plain decoding, which all speed-ups are over
BLIND_TURNS, BLIND_TEXT_TURNS = 3, 7  # where only whole rounds are told: forwards differ from call to call
SETTLING = 2  # rounds of a kind before timed ones, at least, where one behind them may have run ahead of the host
MOST_BEHIND = 16  # tokens; a drafter that is further behind catches up in an untimed round first
ALWAYS = -1.0  # a least gain that every layer reaches


def probes(drafter: str | None) -> list[RoundSetup]:
    """Return one or more policies per kind that show its cost per forward and per node.

    What a round, a node and a drafter's presence cost is shared by all kinds (`profiler/records/overhead.py`): small
    and large texts, chains and EAGLE-2 trees tell it. Of the other drafted kinds, which have a cost per forward of
    their own, one tells that. They prune nothing where they can be told not to, so that their shapes do not hang on
    what the drafter thinks.
    """
    setups: list[tuple[TreePolicy, str | None]] = [
        (PlainPolicy(), None),
        (LookupPolicy(length=2, max_ngram=2), LOOKUP),
        (LookupPolicy(length=8, max_ngram=2), LOOKUP),
        (SuffixPolicy(length=2, factor=8), LOOKUP),
        (SuffixPolicy(length=32, factor=8), LOOKUP),
        (SuffixTreePolicy(nodes=6, factor=8, least_chance=0.0), LOOKUP),
        (SuffixTreePolicy(nodes=24, factor=24, least_chance=0.0), LOOKUP),
        (CachebackPolicy(nodes=6), LOOKUP),
        (CachebackPolicy(nodes=24), LOOKUP),
    ]
    if drafter is not None:
        policies: list[TreePolicy] = [
            ChainPolicy(length=1),
            ChainPolicy(length=8),
            ConfidentChainPolicy(length=8, confidence=0.0),
            StaticPolicy(tree=_bush(3, 5)),
            Eagle2Policy(verify_tokens=6, depth=1, top_k=2),
            Eagle2Policy(verify_tokens=24, depth=4, top_k=6),
            TalonPolicy(nodes=24, top_k=6, children=6, max_depth=5),
            OptTreePolicy(nodes=23, least_gain=ALWAYS, max_depth=5, children=6),
            _cast(6, 5, 24),
            HybridPolicy(text=SuffixPolicy(length=2, min_match=2), model=ChainPolicy(length=1)),
            HybridPolicy(text=SuffixPolicy(length=8, min_match=2), model=ChainPolicy(length=4)),
            ResumedPolicy(draft=ChainPolicy(length=4)),
        ]
        setups.extend((policy, drafter) for policy in policies)
        stack = StackPolicy(drafters=(drafter, LOOKUP), lengths=(4, 4))
        setups.append((stack, stack_name(stack)))
    return [RoundSetup(policy=policy, drafter=name) for policy, name in setups]


def measure_overhead(
    family: Family, requests: Sequence[Request], *, batch: int, drafter: str | None, seed: int = 0
) -> list[OverheadSample]:
    """Return the samples of one batch size: one of each probe, and of a hybrid one of each way in which it drafted.

    One batch of texts is decoded, and all policies take turns on it, some rounds each, of which the last are timed.
    Policies that verify equally many tokens follow each other, in random order, and right after them their forwards are
    timed alone, so that both meet the same mood of the machine. A round of each goes before.

    Args:
        family: the models, in the dtype that is to be planned.
        requests: at least one; each joins again when all others have.
        batch: sequences.
        drafter: the one the probes draft with; None where the family has none.
        seed: of the order.
    """
    setups = [probe for probe in probes(drafter) if _is_run(probe.policy, family, drafter)]
    unending = [replace(r, stop=frozenset(), max_new_tokens=max(r.max_new_tokens, 2)) for r in requests]
    room = room_for(unending, setups, batch)
    alone, running = Alone(family, drafter, batch, room), _Running(family, unending, drafter, batch, room)
    found = [_Probe(setup, batch) for setup in setups]
    order, is_told = random.Random(seed), tells_verification(family)
    least = 1 if is_told else SETTLING
    verified: dict[Like, list[tuple[float, float]]] = {"plain": [], "text": [], "drafted": []}
    for probe in found:
        running.step(probe.setup)
    for turn in range(PLAIN_TURNS):
        for group in _groups([probe for probe in found if turn < probe.turns(is_told)], order):
            timed = [(probe, taken) for probe in group for taken in running.settled_steps(probe.setup, least)]
            forwards = alone.forwards([done for _, (done, _) in timed])
            for (probe, (done, round_ms)), own in zip(timed, forwards, strict=True):
                verified[probe.like].append((done.verify_ms, own.verify_ms))
                taken_off_ms = own.draft_ms + (done.verify_ms if is_told else own.verify_ms)
                probe.keep(done, round_ms - taken_off_ms, own.verify_ms)
    told = {like: times for like, times in verified.items() if is_told and times}
    lost = {like: loss_of(times, grows=like == "text") for like, times in told.items()}
    return [sample for probe in found for sample in probe.samples(lost.get(probe.like, NOTHING_LOST))]


def tells_verification(family: Family) -> bool:
    """Whether a round tells what its target's forward took, and nothing else: it has ended when its call comes back."""
    return family.target.device.type == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """By how much a target's forward takes longer in a round than alone.

    Attributes:
        base_ms: milliseconds, whatever it takes.
        share: of what it takes.
    """

    base_ms: float
    share: float = 0.0

    def of(self, alone_ms: float) -> float:
        """Return the milliseconds that a forward loses which takes so many alone."""
        return self.base_ms + self.share * alone_ms


NOTHING_LOST = Loss(base_ms=0.0)


def loss_of(verified: Sequence[tuple[float, float]], *, grows: bool) -> Loss:
    """Return what all rounds of some kinds together tell of their loss.

    Forwards scatter by a share of what they take, so short ones tell more. What is left of a round beside a first
    answer is pulled in where it is among the outermost, and the answer given again.

    Args:
        verified: of each round, milliseconds of its target's forward in it and alone.
        grows: whether part of the loss is a share of the forward.
    """
    inside, alone = np.array(verified).T
    columns = np.stack([1.0 / alone, np.ones(len(alone))], axis=1)[:, : 2 if grows else 1]
    shares = inside / alone - 1.0
    found = np.zeros(columns.shape[1])
    found[0] = float(np.median(inside - alone))
    for _ in range(REFINEMENTS):
        left = shares - columns @ found
        pulled_in = columns @ found + np.clip(left, *np.quantile(left, [OUTERMOST, 1.0 - OUTERMOST]))
        found = _non_negative(columns, pulled_in) if grows else np.linalg.lstsq(columns, pulled_in, rcond=None)[0]
    return Loss(base_ms=float(found[0]), share=float(found[1]) if grows else 0.0)


def _non_negative(columns: Floats, values: Floats) -> Floats:
    from scipy.optimize import nnls

    found: Floats = nnls(columns, values)[0]
    return found


def _is_run(policy: TreePolicy, family: Family, drafter: str | None) -> bool:
    """Whether a drafter drafts a policy: in stacks are models alone, and exits alone leave states."""
    model = None if drafter is None else family.drafters[drafter]
    if isinstance(policy, StackPolicy):
        return model is not None and not is_beside_target(model)
    return not isinstance(policy, ResumedPolicy) or isinstance(model, ExitModel)


def _groups(found: Sequence[_Probe], order: random.Random) -> list[list[_Probe]]:
    """Return the probes by the size of their trees, groups and their members in random order."""
    sizes = sorted({probe.tokens for probe in found})
    groups = [[probe for probe in found if probe.tokens == size] for size in sizes]
    for group in groups:
        order.shuffle(group)
    order.shuffle(groups)
    return groups


class _Running:
    """A batch on its way, kept full; each of its rounds is run the way it is told."""

    def __init__(self, family: Family, requests: Sequence[Request], drafter: str | None, batch: int, room: int) -> None:
        self._setup = PLAIN
        self._waiting = cycle(requests)
        self._unread: dict[str, int] = {}  # tokens committed since a drafter with a model last ran it
        names = [LOOKUP]
        if drafter is not None:
            is_alone = is_beside_target(family.drafters[drafter])
            names += [drafter] if is_alone else [drafter, JOINT.join((drafter, LOOKUP))]
        self._models = [name for name in names if name != LOOKUP]
        self._decoder: Decoder = family.decoder(lambda *_: self._setup, names=names, batch=batch, capacity=room)

    def settled_steps(self, setup: RoundSetup, least: int) -> list[tuple[Round, float]]:
        """Run rounds like any but the first of their kind: right after others by the same setup, as a decoder's are.

        What the caches hold behind another kind of round, or a GPU behind another graph, is no cost of it; short
        rounds take as many to settle as the profiler's forwards do, and all at least so many.
        """
        spent_ms, rounds = 0.0, 0
        while spent_ms < SETTLED.untimed_ms or rounds < least:
            spent_ms += self.step(setup)[1]
            rounds += 1
        return [self.step(setup) for _ in range(IN_A_ROW)]

    def step(self, setup: RoundSetup) -> tuple[Round, float]:
        """Run one round; return it and its milliseconds.

        What a text repeats is drafted many tokens at once, and a drafter far behind reads them in forwards that are no
        part of its policy's rounds.
        """
        self._fill()
        if setup.drafter is not None and self._unread.get(setup.drafter, 0) > MOST_BEHIND:
            is_hybrid = isinstance(setup.policy, HybridPolicy)  # whose model may not be asked
            self._run(replace(setup, policy=ChainPolicy(length=1)) if is_hybrid else setup)
        return self._run(setup)

    def _fill(self) -> None:
        """Let texts join; whoever did not draft the round before reads their prompts when it is asked to draft."""
        while self._decoder.has_room:
            request = next(self._waiting)
            self._decoder.admit(request)
            for name in self._models:
                if name != self._setup.drafter:
                    self._unread[name] = self._unread.get(name, 0) + len(request.prompt)

    def _run(self, setup: RoundSetup) -> tuple[Round, float]:
        self._fill()
        self._setup = setup
        start = time.perf_counter_ns()
        done = self._decoder.step()
        ms = (time.perf_counter_ns() - start) / 1e6
        require_faultless(done)
        for name in self._models:
            has_read = name == setup.drafter and bool(done.widths)
            self._unread[name] = max(done.kept) + (0 if has_read else self._unread.get(name, 0))
        return done, ms


class _Probe:
    """What the rounds of one policy took beyond their forwards."""

    def __init__(self, setup: RoundSetup, batch: int) -> None:
        self.setup = setup
        self._batch = batch
        self._host_ms: list[float] = []
        self._alone_ms: list[float] = []  # of the target's forwards
        self._rounds: list[Round] = []

    @property
    def like(self) -> Like:
        """Which rounds its forwards of the target are like."""
        if isinstance(self.setup.policy, PlainPolicy):
            return "plain"
        return "text" if isinstance(self.setup.policy, TextPolicy) else "drafted"

    def turns(self, is_told: bool) -> int:
        """Return how often its rounds are timed, where they tell what the target's forward took or do not."""
        if self.like == "plain":
            return PLAIN_TURNS
        if self.like == "text":
            return TEXT_TURNS if is_told else BLIND_TEXT_TURNS
        return TURNS if is_told else BLIND_TURNS

    @property
    def tokens(self) -> int:
        """Most tokens per sequence one verify feeds."""
        return self.setup.policy.max_verify_tokens

    def keep(self, done: Round, host_ms: float, alone_ms: float) -> None:
        """Note one round, what it took beyond its forwards, and what the target's takes alone."""
        self._rounds.append(done)
        self._host_ms.append(host_ms)
        self._alone_ms.append(alone_ms)

    def samples(self, loss: Loss) -> list[OverheadSample]:
        """Return the host time of the rounds, with what each one's verification has lost, and their mean shape.

        A hybrid's rounds in which its drafter ran are one sample, those in which the text drafted alone another: where
        few ran it, their mean shape would have no drafter, and nothing would tell what it costs.
        """
        if not isinstance(self.setup.policy, HybridPolicy):
            return [self._sample(range(len(self._rounds)), loss)]
        asked = [i for i, done in enumerate(self._rounds) if done.widths]
        copied = [i for i, done in enumerate(self._rounds) if not done.widths]
        return [self._sample(which, loss) for which in (copied, asked) if which]

    def _sample(self, which: Sequence[int], loss: Loss) -> OverheadSample:
        return OverheadSample(
            kind=self.setup.policy.kind,
            batch=self._batch,
            draft_forwards=round(statistics.mean(len(self._rounds[i].widths) for i in which)),
            nodes=round(statistics.mean(self._rounds[i].verify_tokens for i in which)),
            host_ms=tuple(self._host_ms[i] + loss.of(self._alone_ms[i]) for i in which),
        )


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
