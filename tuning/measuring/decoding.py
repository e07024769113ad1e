"""Decode a set of prompts with one setup and count: the ruler that profile, validate and demo share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import ModelError, NoRoomError, RequestError
from ...planner.strategies.stack import JOINT
from ...runtime.batch.sequence import Request
from ...runtime.batch.sequence import Sequence as RunningSequence
from ...runtime.batch.step_config import Schedule, StepConfig, draft_room
from ...runtime.batch.transfer import wait_for
from ...runtime.drafters.base import Drafter
from ...runtime.drafters.head import model_drafter
from ...runtime.drafters.hybrid import HybridDrafter
from ...runtime.drafters.lookup import LookupDrafter
from ...runtime.drafters.stack import named_stack
from ...runtime.engine.engine import Engine
from ...runtime.engine.pad import PivotJudge
from ...runtime.engine.request_state import sequences_of
from ...runtime.engine.scheduler import Scheduler
from ...runtime.engine.step_output import StepOutput
from ...runtime.models.forward import CausalModel
from ...runtime.models.tapped import tapped_for

LOOKUP = "lookup"  # name of the drafter that needs no model


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRound:
    """One round and how long it took."""

    ms: float
    round: StepOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingRun:
    """What decoding a list of requests did, rounds in order.

    Each text's share of its rounds counts, not reading prompts, nor sequences decoded again to fill the slots.
    """

    batch: int
    rounds: tuple[TimedRound, ...]
    texts: tuple[tuple[int, ...], ...]  # emitted tokens per request

    @property
    def tokens_per_s(self) -> float:
        """Steady-state throughput of all slots together, see `throughput`."""
        return throughput(self.rounds, [r.ms for r in self.rounds], self.batch, len(self.texts))

    @property
    def tokens_per_round(self) -> float:
        """Tokens accepted per sequence and round: the same at every batch size for uncoupled policies."""
        kept = [counted(r.round, len(self.texts)) for r in self.rounds]
        return sum(map(sum, kept)) / sum(map(len, kept))

    def visited(self) -> list[list[int]]:
        """Return the positions each text's rounds began at: tokens emitted by then, less the first."""
        places: list[list[int]] = [[] for _ in self.texts]
        emitted = [0] * len(self.texts)
        for r in self.rounds:
            for index, kept in zip(r.round.sequences, r.round.kept, strict=True):
                if index >= len(places):
                    continue
                places[index].append(emitted[index])
                emitted[index] += kept
        return places


def counted(done: StepOutput, texts: int) -> list[int]:
    """Return the tokens accepted by those sequences of a round that are decoded for the first time."""
    return [kept for index, kept in zip(done.sequences, done.kept, strict=True) if index < texts]


def throughput(rounds: Sequence[TimedRound], ms: Sequence[float], batch: int, texts: int) -> float:
    """Return tokens/s of all slots together, in an endless stream of equally frequent texts.

    The slots of a round share its time equally. The speed of one slot is all texts' tokens over all texts' shares. The
    rounds are of a full decoder; `ms` of each may be other than timed. RequestError for no rounds, or fewer texts than
    slots.
    """
    if texts < batch or not rounds:
        raise RequestError(
            f"{texts} texts in {len(rounds)} rounds tell no speed of a batch of {batch}; add prompts or lower the batch"
        )
    kept = [counted(r.round, texts) for r in rounds]
    shared = sum(len(own) * each for own, each in zip(kept, ms, strict=True)) / batch
    return 1000.0 * sum(map(sum, kept)) / shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A target and its drafters, loaded in one dtype, and what judges their drafts."""

    target: CausalModel
    drafters: Mapping[str, CausalModel]
    judges: Mapping[str, PivotJudge] = field(default_factory=dict)

    def decoder(
        self, schedule: Schedule, *, names: Sequence[str], batch: int, capacity: int, allow_lossy: bool = False
    ) -> Engine:
        """Return an empty batch over the named drafters, models, stacks of them, or the lookup; or judges.

        RequestError where a name is not in the family; ModelError where a stack's model is not.
        """
        drafters: dict[str, Drafter] = {}
        for name in names:
            if name == LOOKUP:
                drafters[name] = LookupDrafter()
            elif JOINT in name:
                drafters[name] = named_stack(name, self.drafters, slots=batch, capacity=capacity)
            elif name in self.drafters:
                own = model_drafter(self.drafters[name], slots=batch, capacity=capacity)
                drafters[name] = HybridDrafter(own)
            elif name not in self.judges:
                known = ", ".join([*self.drafters, LOOKUP])
                raise RequestError(f"no drafter called {name!r}; this family has {known}")
        judges = {name: judge for name, judge in self.judges.items() if name in names}
        drafting = [self.drafters[name] for name in names if name in self.drafters]
        return Engine(
            tapped_for(self.target, drafting, also=(judge.reads for judge in judges.values())),
            drafters,
            schedule,
            slots=batch,
            capacity=capacity,
            allow_lossy=allow_lossy,
            judges=judges,
        )


def names_of(setup: StepConfig) -> list[str]:
    """Return whom a setup needs of a family: what drafts, and what judges the drafts."""
    return [name for name in (setup.drafter, setup.classifier) if name is not None]


def room_for(requests: Sequence[Request], setups: Sequence[StepConfig], batch: int | None = None) -> int:
    """Return the cache positions of the longest request with draft nodes; an open `batch` may take much more."""
    longest = max(len(r.prompt) + r.max_new_tokens for r in requests)
    return longest + draft_room(setups, batch)


class Traffic:
    """Requests for a decoder, in order; the decoder has no others.

    With `keeps_full` all of them wait again, with further indices, while any is decoded for the first time: every slot
    stays busy until then.
    """

    def __init__(self, decoder: Engine, requests: Sequence[Request], *, keeps_full: bool = False) -> None:
        self.joined = 0  # requests that have joined so far, repeats included
        self._decoder, self._requests, self._keeps_full = decoder, requests, keeps_full
        self._scheduler = Scheduler(decoder)
        self._states = [self._scheduler.add(request) for request in requests]

    @property
    def sequences(self) -> list[RunningSequence]:
        """The sequences of the requests that have joined, in order and without repeats."""
        return sequences_of(self._states)

    def refill(self) -> bool:
        """Let requests join and wait until their prompts are read; return whether anything is to be decoded.

        A round is timed behind it: it would include what a GPU still reads, and a drafter reads more than plain
        decoding.
        """
        before = self.joined
        is_on = self._keep_full() if self._keeps_full else self._join()
        if self.joined > before:
            wait_for(self._decoder.device)
        return is_on

    def _keep_full(self) -> bool:
        if not self._is_done:
            self._join()
        if self._is_done:
            return False
        if self._decoder.has_room:  # all have joined
            for request in self._requests:
                self._scheduler.add(request)
            self._join()
        return True

    def _join(self) -> bool:
        before = self._scheduler.waiting
        is_on = self._scheduler.schedule()
        self.joined += before - self._scheduler.waiting
        return is_on

    @property
    def _is_done(self) -> bool:
        return len(self.sequences) == len(self._states) and all(one.is_finished for one in self.sequences)


def timed_step(decoder: Engine) -> TimedRound:
    """Run one round and time it; raise as `require_faultless` does."""
    start = time.perf_counter_ns()
    done = decoder.step()
    ms = (time.perf_counter_ns() - start) / 1e6
    require_faultless(done)
    return TimedRound(ms=ms, round=done)


def require_faultless(done: StepOutput) -> None:
    """Raise where something failed in a round: its time is not that of its policy.

    NoRoomError: memory had no room for all of it; ModelError where a drafter failed.
    """
    if not done.faults:
        return
    fault = next((each for each in done.faults if each.is_memory), done.faults[0])
    who, many = fault.drafter or "the verification", len(done.sequences)
    if fault.is_memory:
        raise NoRoomError(
            f"{who} found no memory in a round of {many} sequences ({fault.reason}); measure fewer at once, or shorter "
            "texts with --max-new-tokens"
        )
    remedy = "; repair it or leave it out" if fault.drafter else ""
    raise ModelError(f"{who} failed and cannot be measured: {fault.reason}{remedy}")


def decode_timed(decoder: Engine, requests: Sequence[Request], batch: int, *, keeps_full: bool = False) -> DecodingRun:
    """Decode all requests, refilling free slots in order, and time every round.

    Prompts are read between rounds, outside the clock. With `keeps_full` every slot stays busy until all are decoded.
    """
    traffic = Traffic(decoder, requests, keeps_full=keeps_full)
    rounds: list[TimedRound] = []
    while traffic.refill():
        rounds.append(timed_step(decoder))
    return DecodingRun(batch=batch, rounds=tuple(rounds), texts=tuple(tuple(s.emitted) for s in traffic.sequences))
