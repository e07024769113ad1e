"""Measure what a round takes beyond its forwards timed alone: short real rounds of every kind of policy.

It is the host's own work, and what a forward loses by running between others: the target pushes the drafter's weights
out of the caches, and the other way round.

On a CPU a forward has ended when its call returns, so a round tells what its forwards took: what is left is a
difference of two small numbers, not of two large ones that the machine's moods keep apart. All alike rounds of a batch
tell the loss of the target's forward (`in_rounds.py`): plain rounds, which lose least; text copies, whose sizes change;
and those behind a drafter. All rounds of one role tell the drafter's loss: only its first forward finds the weights
pushed out.

Long forwards read weights that no cache holds, in a round and alone. Their loss would be the noise of a single timing,
eight times in a chain of eight. So where time is limited and all forwards are long, none is timed alone.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from ...planner.strategies import TreePolicy
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.hybrid import HybridPolicy
from ...planner.strategies.stack import JOINT, StackPolicy
from ...profiler.records.overhead import MODEL, OverheadSample
from ...profiler.records.pooling import LONG_MS
from ...profiler.repeats import SETTLED
from ...runtime.batch.sequence import Request
from ...runtime.batch.step_config import PLAIN, StepConfig, always
from ...runtime.batch.transfer import wait_for
from ...runtime.engine.engine import Engine
from ...runtime.engine.step_output import StepOutput
from ...runtime.models.drafter import role_of
from ...runtime.models.exit import ExitModel
from ...runtime.models.forward import Resuming
from ...runtime.models.graphed import GraphedModel
from ...runtime.models.tapped import is_beside_target
from .alone import Alone, Forwards
from .decoding import LOOKUP, Family, require_faultless, room_for
from .in_rounds import FEWEST_PROBED, MOST_PROBED, Losses, Lost, Spent, clocked, like, probes

IN_A_ROW = 3  # rounds of a kind that are timed in each of its turns
TURNS = 2  # per policy that runs a drafter
TEXT_TURNS = 3  # per one that drafts from the text: its drafts cost little, and it differs from others by less
STACK_TURNS = 5  # per stack, none of whose forwards is like another policy's
PLAIN_TURNS = 9  # of plain decoding, which all speed-ups are over
BLIND_TURNS, BLIND_TEXT_TURNS = 3, 7  # where only whole rounds are told: forwards differ from call to call
SETTLING = 2  # rounds of a kind before timed ones, at least, where one behind them may have run ahead of the host
MOST_TRIED = 2 * IN_A_ROW  # for as many in which nothing is captured that no round has met before
LONG_ROUND_MS = 40.0  # whose weights are far larger than any cache
LONG_FORWARD_MS = LONG_MS / 2  # likewise of a forward, a drafter's among them
MOST_BEHIND = 16  # tokens; a drafter that is further behind catches up in an untimed round first


def measure_overhead(
    family: Family,
    requests: Sequence[Request],
    *,
    batch: int,
    drafter: str | None,
    identity: str = "",
    seed: int = 0,
    limit_s: float = math.inf,
    most_tokens: int = MOST_PROBED,
) -> list[OverheadSample]:
    """Return the samples of one batch size: one of each probe, and of a hybrid one of each way in which it drafted.

    All policies take turns on one batch of texts, some rounds each, of which the last are timed. Policies that verify
    equally many tokens follow each other in random order. Right after them their forwards are timed alone, so that both
    meet the same mood of the machine. A round of each kind goes before.

    Args:
        requests: at least one; each joins again when all others have.
        drafter: the one the probes draft with; None where the family has none.
        identity: ModelIdentity.key of a drafter that represents no other; see `OverheadSample.drafter`.
        limit_s: seconds, after which no turn begins but the first.
        most_tokens: of a sequence that are verified at once; at least 8.

    Raises:
        MemoryError, RuntimeError, NoRoomError: memory has no room for the rounds (`memory_for`).
        ModelError: the drafter failed.
    """
    setups = [probe for probe in probes(drafter, most_tokens) if _is_run(probe.policy, family, drafter)]
    unending = [replace(r, stop=frozenset(), max_new_tokens=max(r.max_new_tokens, 2)) for r in requests]
    room = room_for(unending, setups, batch)
    is_sampled = any(request.temperature > 0.0 for request in requests)
    role = MODEL if drafter is None else str(role_of(family.drafters[drafter]))
    found = [_Probe(setup, batch, is_sampled=is_sampled, role=role, drafter=identity) for setup in setups]
    order, is_told = random.Random(seed), tells_forwards(family)
    least = 1 if is_told else SETTLING
    losses = Losses()
    with clocked(family.drafters[drafter] if drafter and is_told else None) as drafted:
        is_hurried = is_told and math.isfinite(limit_s)
        running = _RunningEngine(family, unending, drafter, batch, room, drafted, is_hurried=is_hurried)
        small = probes(drafter, FEWEST_PROBED) if is_hurried else setups  # the same kinds, whose rounds are shorter
        first = [running.step(setup) for setup in small if _is_run(setup.policy, family, drafter)]
        is_long = is_hurried and min(step.shortest_ms for step in first) >= LONG_FORWARD_MS
        alone = None if is_long else Alone(family, drafter, batch, room)  # last: it takes what memory rounds leave
        for group in _turns(found, order, limit_s, is_told=is_told):
            timed = [(probe, step) for probe in group for step in running.settled_steps(probe.setup, least)]
            _keep(timed, alone, losses, is_told=is_told)
    lost = losses.told() if is_told else None  # else nothing is apart
    return [sample for probe in found for sample in probe.samples(lost)]


def _turns(found: Sequence[_Probe], order: random.Random, limit_s: float, *, is_told: bool) -> Iterator[list[_Probe]]:
    """Yield the probes that are timed behind each other, turn by turn; after the limit no turn begins but the first."""
    begun_ns = time.perf_counter_ns()
    for turn in range(max(probe.turns(is_told) for probe in found)):
        if turn and time.perf_counter_ns() - begun_ns > 1e9 * limit_s:
            return
        yield from _groups([probe for probe in found if turn < probe.turns(is_told)], order)


def _keep(timed: Sequence[tuple[_Probe, _Step]], alone: Alone | None, losses: Losses, *, is_told: bool) -> None:
    """Time the forwards of some rounds alone, and note what each round took beside its own."""
    told = [step.forwards for _, step in timed]
    forwards = told if alone is None else alone.forwards([step.done for _, step in timed])
    for (probe, step), own in zip(timed, forwards, strict=True):
        inside = step.forwards if is_told else own
        probe.keep(step.done, step.ms - inside.verify_ms - inside.draft_ms, own)
        losses.note(probe.setup.policy, inside, own)


def tells_forwards(family: Family) -> bool:
    """Whether a round shows what its forwards took: on a CPU they have ended when their calls return.

    Where a whole round is one call, the draws behind the target's forward count as its loss in rounds.
    """
    return family.target.device.type == "cpu"


def _is_run(policy: TreePolicy, family: Family, drafter: str | None) -> bool:
    """Return whether a drafter drafts a policy: only models are in stacks, and only exits leave states."""
    model = None if drafter is None else family.drafters[drafter]
    if isinstance(policy, StackPolicy):
        return model is not None and not is_beside_target(model)
    return policy.kind != "resumed" or (isinstance(model, ExitModel) and isinstance(family.target, Resuming))


def _groups(found: Sequence[_Probe], order: random.Random) -> list[list[_Probe]]:
    sizes = sorted({probe.tokens for probe in found})
    groups = [[probe for probe in found if probe.tokens == size] for size in sizes]
    for group in groups:
        order.shuffle(group)
    order.shuffle(groups)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    done: StepOutput
    ms: float
    draft_ms: float
    captured: int  # pieces of work that no round had met before: a decoder meets them once

    @property
    def forwards(self) -> Forwards:
        return Forwards(verify_ms=self.done.verify_ms, draft_ms=self.draft_ms)

    @property
    def shortest_ms(self) -> float:
        drafted = len(self.done.widths)
        return min(self.done.verify_ms, self.draft_ms / drafted) if drafted and self.draft_ms else self.done.verify_ms


class _RunningEngine:
    _is_hurried = False  # whether time is limited

    def __init__(
        self,
        family: Family,
        requests: Sequence[Request],
        drafter: str | None,
        batch: int,
        room: int,
        drafted: Spent,
        *,
        is_hurried: bool = False,
    ) -> None:
        self._setup, self._drafted, self._is_hurried = PLAIN, drafted, is_hurried
        models = (family.target, *([] if drafter is None else [family.drafters[drafter]]))
        self._captures = [model for model in models if isinstance(model, GraphedModel)]
        self._waiting = cycle(requests)
        self._unread: dict[str, int] = {}  # tokens committed since a drafter with a model last ran it
        names = [LOOKUP]
        if drafter is not None:
            is_alone = is_beside_target(family.drafters[drafter])
            names += [drafter] if is_alone else [drafter, JOINT.join((drafter, LOOKUP))]
        self._models = [name for name in names if name != LOOKUP]
        self._decoder: Engine = family.decoder(always(PLAIN), names=names, batch=batch, capacity=room)

    def settled_steps(self, setup: StepConfig, least: int) -> list[_Step]:
        """Run rounds right behind others of the same setup, as a decoder's are, until they settle.

        What caches hold behind another kind of round, or a GPU behind another graph, is no cost of it. Short rounds
        settle as the profiler's forwards do, in at least `least` rounds. With limited time, a long round on a CPU,
        which finds no weights in the caches in any case, is timed once.
        """
        first = self.step(setup)
        if self._is_hurried and first.ms >= LONG_ROUND_MS:
            is_plain = like(setup.policy) == "plain"
            return [first, *(self.step(setup) for _ in range(IN_A_ROW - 1 if is_plain else 0))]
        spent_ms, rounds = first.ms, 1
        while spent_ms < SETTLED.untimed_ms or rounds < least:
            spent_ms += self.step(setup).ms
            rounds += 1
        settled, capturing = list[_Step](), list[_Step]()
        while len(settled) < IN_A_ROW and len(settled) + len(capturing) < MOST_TRIED:
            step = self.step(setup)
            (capturing if step.captured else settled).append(step)
        missing = IN_A_ROW - len(settled)
        return settled + capturing[len(capturing) - missing :]

    def step(self, setup: StepConfig) -> _Step:
        """Run one round.

        A drafter far behind, as after much copied text, reads first: these forwards are no part of its policy's rounds.
        """
        self._fill()
        if setup.drafter is not None and self._unread.get(setup.drafter, 0) > MOST_BEHIND:
            is_hybrid = isinstance(setup.policy, HybridPolicy)  # whose model may not be asked
            self._run(replace(setup, policy=ChainPolicy(length=1)) if is_hybrid else setup)
        return self._run(setup)

    def _fill(self) -> None:
        """Let texts join; a drafter that did not draft the round before reads their prompts at its next draft."""
        if not self._decoder.has_room:
            return
        while self._decoder.has_room:
            request = next(self._waiting)
            self._decoder.admit(request)
            for name in self._models:
                if name != self._setup.drafter:
                    self._unread[name] = self._unread.get(name, 0) + len(request.prompt)
        wait_for(self._decoder.device)  # which would read them in the round that is timed next

    def _run(self, setup: StepConfig) -> _Step:
        self._fill()
        self._setup, drafted_ms, captured = setup, self._drafted.ms, self._captured()
        start = time.perf_counter_ns()
        done = self._decoder.step(setup)
        ms = (time.perf_counter_ns() - start) / 1e6
        require_faultless(done)
        for name in self._models:
            has_read = name == setup.drafter and bool(done.widths)
            self._unread[name] = max(done.kept) + (0 if has_read else self._unread.get(name, 0))
        return _Step(done=done, ms=ms, draft_ms=self._drafted.ms - drafted_ms, captured=self._captured() - captured)

    def _captured(self) -> int:
        return sum(model.recorded for model in self._captures)


class _Probe:
    def __init__(
        self, setup: StepConfig, batch: int, *, is_sampled: bool, role: str = MODEL, drafter: str = ""
    ) -> None:
        self.setup = setup
        self._batch, self._is_sampled, self._role, self._drafter = batch, is_sampled, role, drafter
        self._host_ms: list[float] = []
        self._alone: list[Forwards] = []
        self._rounds: list[StepOutput] = []

    def turns(self, is_told: bool) -> int:
        """Return how often its rounds are timed; it depends on whether they tell the time of the target's forward."""
        rounds = like(self.setup.policy)
        if rounds == "plain":
            return PLAIN_TURNS
        if rounds == "text":
            return TEXT_TURNS if is_told else BLIND_TEXT_TURNS
        turns = STACK_TURNS if isinstance(self.setup.policy, StackPolicy) else TURNS
        return turns if is_told else BLIND_TURNS

    @property
    def tokens(self) -> int:
        return self.setup.policy.max_verify_tokens

    def keep(self, done: StepOutput, host_ms: float, alone: Forwards) -> None:
        self._rounds.append(done)
        self._host_ms.append(host_ms)
        self._alone.append(alone)

    def samples(self, lost: Lost | None) -> list[OverheadSample]:
        """Return the rounds' host time, their shape, and their forwards' loss where that is apart.

        Of rounds ahead of the host and others, the majority counts. A hybrid gives two samples, with its drafter and by
        text alone: where few ran it, a mean shape would have no drafter, and nothing would tell its cost.
        """
        usual = statistics.mode(done.is_ahead for done in self._rounds)
        kept = [i for i, done in enumerate(self._rounds) if done.is_ahead == usual]
        if not isinstance(self.setup.policy, HybridPolicy):
            return [self._sample(kept, lost)]
        asked = [i for i in kept if self._rounds[i].widths]
        copied = [i for i in kept if not self._rounds[i].widths]
        return [self._sample(which, lost) for which in (copied, asked) if which]

    def _sample(self, which: Sequence[int], lost: Lost | None) -> OverheadSample:
        return OverheadSample(
            kind=self.setup.policy.kind,
            batch=self._batch,
            draft_forwards=round(statistics.mean(len(self._rounds[i].widths) for i in which)),
            nodes=round(statistics.mean(self._rounds[i].verify_tokens for i in which)),
            host_ms=tuple(self._host_ms[i] + self._lost_ms(i, lost) for i in which),
            is_sampled=self._is_sampled,
            role=self._role,
            drafter=self._drafter,
            is_ahead=self._rounds[which[0]].is_ahead,
        )

    def _lost_ms(self, place: int, lost: Lost | None) -> float:
        return 0.0 if lost is None else lost.of(self.setup.policy, self._alone[place])
