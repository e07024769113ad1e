"""Decode a set of prompts with one setup and count: the ruler that profile, validate and demo share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import ModelError, RequestError
from ...planner.policies.stack import JOINT
from ...runtime.decoder import Decoder, Round
from ...runtime.drafters.head import model_drafter
from ...runtime.drafters.hybrid import HybridDrafter
from ...runtime.drafters.lookup import LookupDrafter
from ...runtime.drafters.protocol import Drafter
from ...runtime.drafters.stack import named_stack
from ...runtime.feed import Feed
from ...runtime.models.forward import CausalModel
from ...runtime.models.tapped import tapped_for
from ...runtime.pad import PivotJudge
from ...runtime.requests import Request
from ...runtime.setup import RoundSetup, Schedule, draft_room

LOOKUP = "lookup"  # name of the drafter that needs no model


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRound:
    """One round and how long it took."""

    ms: float
    round: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What decoding a list of requests did.

    Rounds are in order. A round is *steady* while every slot is busy; tokens/s counts steady rounds
    only, and never the reading of prompts.
    """

    batch: int
    rounds: tuple[TimedRound, ...]
    texts: tuple[tuple[int, ...], ...]  # emitted tokens per request

    @property
    def tokens_per_s(self) -> float:
        """Steady-state throughput of all slots together."""
        steady = steady_rounds(self.rounds, self.batch)
        return 1000.0 * sum(sum(r.round.kept) for r in steady) / sum(r.ms for r in steady)

    @property
    def tokens_per_round(self) -> float:
        """Tokens kept per sequence and steady round."""
        return _kept_per_round(steady_rounds(self.rounds, self.batch))

    @property
    def tokens_per_sequence_round(self) -> float:
        """Tokens kept per sequence and round, over all rounds: the same at every batch size for uncoupled policies."""
        return _kept_per_round(self.rounds)

    def visited(self) -> list[list[int]]:
        """Return the positions each text's rounds began at: tokens emitted by then, less the first."""
        places: list[list[int]] = [[] for _ in self.texts]
        emitted = [0] * len(self.texts)
        for r in self.rounds:
            for index, kept in zip(r.round.sequences, r.round.kept, strict=True):
                places[index].append(emitted[index])
                emitted[index] += kept
        return places


def steady_rounds(rounds: Sequence[TimedRound], batch: int) -> list[TimedRound]:
    """Return the rounds whose slots were all busy.

    Raises:
        RequestError: there are none.
    """
    steady = [r for r in rounds if len(r.round.kept) == batch]
    if not steady:
        raise RequestError(
            f"never were all {batch} sequences of the batch decoded at once, so there is no speed to tell; "
            "add prompts or lower the batch"
        )
    return steady


def _kept_per_round(rounds: Sequence[TimedRound]) -> float:
    return sum(sum(r.round.kept) for r in rounds) / sum(len(r.round.kept) for r in rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A target and its drafters, loaded in one dtype, and what judges their drafts."""

    target: CausalModel
    drafters: Mapping[str, CausalModel]
    judges: Mapping[str, PivotJudge] = field(default_factory=dict)

    def decoder(
        self, schedule: Schedule, *, names: Sequence[str], batch: int, capacity: int, allow_lossy: bool = False
    ) -> Decoder:
        """Return an empty batch over the named drafters, models, stacks of them, or the lookup; or judges.

        Raises:
            RequestError: a name is not in the family.
            ModelError: a stack's model is not.
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
        return Decoder(
            tapped_for(self.target, drafting, also=(judge.reads for judge in judges.values())),
            drafters,
            schedule,
            slots=batch,
            capacity=capacity,
            allow_lossy=allow_lossy,
            judges=judges,
        )


def names_of(setup: RoundSetup) -> list[str]:
    """Return whom a setup needs of a family: what drafts, and what judges the drafts."""
    return [name for name in (setup.drafter, setup.classifier) if name is not None]


def room_for(requests: Sequence[Request], setups: Sequence[RoundSetup], batch: int | None = None) -> int:
    """Return the cache positions the longest request needs, draft nodes included, in the target and in drafters.

    Args:
        requests: what will be decoded.
        setups: how rounds may be run.
        batch: most sequences at once; None where that is open, which may take much more.
    """
    longest = max(len(r.prompt) + r.max_new_tokens for r in requests)
    return longest + draft_room(setups, batch)


def timed_step(decoder: Decoder) -> TimedRound:
    """Run one round and time it.

    Raises:
        ModelError: a drafter failed.
    """
    start = time.perf_counter_ns()
    done = decoder.step()
    ms = (time.perf_counter_ns() - start) / 1e6
    require_faultless(done)
    return TimedRound(ms=ms, round=done)


def require_faultless(done: Round) -> None:
    """Raise ModelError where a drafter failed in a round: its time is not that of its policy."""
    if done.faults:
        fault = done.faults[0]
        raise ModelError(f"{fault.drafter or 'the verification'} failed and cannot be measured: {fault.reason}")


def decode_timed(decoder: Decoder, requests: Sequence[Request], batch: int) -> Run:
    """Decode all requests, refilling free slots in order, and time every round.

    Prompts are read between rounds, outside the clock.
    """
    feed = Feed(decoder, requests)
    rounds: list[TimedRound] = []
    while feed.refill():
        rounds.append(timed_step(decoder))
    return Run(batch=batch, rounds=tuple(rounds), texts=tuple(tuple(s.emitted) for s in feed.sequences))
