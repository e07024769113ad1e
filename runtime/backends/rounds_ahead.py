"""Rounds one ahead of the host: while the host reads and commits a round, the device runs the next one.

The round in flight is a bet that nothing changes: the same sequences in the same slots, the tokens that the device
computed, and a next round of the same setup. If the host finds otherwise, it drops the round. What that round has
written lies behind the committed text, where anything may lie, and later work runs behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from contextlib import suppress
from dataclasses import dataclass

import torch

from ...planner.strategies.hybrid import HybridPolicy
from ...planner.strategies.naming import name_of
from ...planner.strategies.plain import PlainPolicy
from ..batch.faults import Fault, is_out_of_memory, reason_of
from ..batch.sequence import Sequence
from ..batch.step_config import StepConfig
from ..drafters.base import Drafter
from ..growth.captured import CapturedGrowth
from ..models.graphed import GraphedModel
from ..models.kv_cache import KeyValueCache
from ..sampling.captured_sampler import DeviceDraws, draws_ahead, kind_of
from .captured_rounds import CapturedRounds, Key, Launched
from .device_state import Told
from .device_texts import Copies, TextsOnDevice, copied_ahead, drafting_by, load_kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bet:
    batch: list[Sequence]
    starts: list[int]  # tokens in the target's cache of each, when it begins
    round: Launched

    def holds(self, batch: Many[Sequence], setup: StepConfig) -> bool:
        """Whether the next round is this one: the same sequences, slots and lengths, and the same setup."""
        mine = self.round.rounds.setup
        is_same = len(batch) == len(self.batch) and all(a is b for a, b in zip(batch, self.batch, strict=True))
        return is_same and self.starts == [s.context for s in batch] and (setup is mine or setup == mine)


def needs_no_model(setup: StepConfig, device: torch.device) -> bool:
    """Return whether rounds of a setup may run ahead on a device with no model but the target."""
    if isinstance(setup.policy, PlainPolicy):
        return setup.drafter is None
    return not isinstance(setup.policy, HybridPolicy) and copied_ahead(setup.policy, device) is not None


def may_end(batch: Many[Sequence], kept: Many[int], told: Told) -> bool:
    """Return whether a sequence ends with a round or may end: one of the round's tokens is a stop token of it."""
    if any(s.left <= tokens for s, tokens in zip(batch, kept, strict=True)):
        return True
    return any(not s.request.stop.isdisjoint(row) for s, row in zip(batch, told.best.tolist(), strict=True))


def _caught_up(drafter: Drafter, batch: Many[Sequence], most: int, *, is_copied: bool) -> list[list[int]] | None:
    """Return the tokens of each sequence that a drafter has to read first; None where one has more than `most`."""
    unread = drafter.unread(batch)
    if is_copied and max(map(len, unread)) > most:
        try:
            drafter.read_up(batch)
        except Exception:  # when it drafts it will fail again, where its failures are counted
            return None
        unread = drafter.unread(batch)
    return unread if max(map(len, unread)) <= most else None


class RoundsAhead:
    """The rounds of one engine over a captured target."""

    def __init__(
        self, target: GraphedModel, cache: KeyValueCache, *, seen_in: Callable[[int], int], faults: list[Fault]
    ) -> None:
        self._target, self._cache, self._seen_in, self._faults = target, cache, seen_in, faults
        load_kernels()
        self._rounds: dict[Key, CapturedRounds] = {}
        self._refused: list[Key] = []  # that failed once
        self._bet: _Bet | None = None
        self._texts: TextsOnDevice | None = None  # from the first round on that copies out of one

    @torch.inference_mode()
    def note_joined(self, batch: Many[Sequence]) -> None:
        """Send new texts to the device, if rounds search texts, while the device still reads prompts."""
        if self._texts is not None:
            with suppress(Exception):  # who joins has joined: the round that wants its text tries again, and tells
                self._texts.take_in(batch)

    def told(self, batch: Many[Sequence], setup: StepConfig, drafter: Drafter | None) -> Told | None:
        """Return a round's result, its keys moved, with the next round launched; None where it cannot run ahead."""
        bet, self._bet = self._bet, None
        current = bet.round if bet is not None and bet.holds(batch, setup) else None
        key = self._key_of(batch, setup, drafter) if current is None else current.rounds.key
        if key is None:
            return None
        try:
            current = current or self._begun(batch, key, drafter)
            return None if current is None else self._read(current, batch)
        except Exception as error:  # whatever is wrong with it, nothing is committed: the round can run as any other
            self._refuse(key, error)
            return None
        except BaseException:  # somebody stops it
            self._forget_texts()
            raise

    def _key_of(self, batch: Many[Sequence], setup: StepConfig, drafter: Drafter | None) -> Key | None:
        requests = [s.request for s in batch]
        is_known = drafter is not None or needs_no_model(setup, self._target.device)
        if not is_known or not draws_ahead(requests):
            return None
        key = setup, len(batch), kind_of(requests)
        return None if key in self._refused else key

    def _begun(self, batch: Many[Sequence], key: Key, drafter: Drafter | None) -> Launched | None:
        setup, _, kind = key
        growth: CapturedGrowth | None = None
        fresh: list[list[int]] | None = None
        if drafter is not None:
            is_copied = copied_ahead(setup.policy, self._target.device) is not None
            is_ahead = is_copied or setup.policy.is_of_one_size  # of others the host sees how large a tree is first
            growth = drafter.growth_for(batch, setup.policy) if is_ahead else None
            if growth is None:
                return None
            fresh = _caught_up(drafter, batch, setup.policy.bounds.depth + 1, is_copied=is_copied)
            if fresh is None:
                return None
        rounds = self._rounds.get(key)
        if rounds is None:
            rounds = self._rounds[key] = CapturedRounds(
                setup,
                len(batch),
                self._target,
                self._cache,
                seen_in=self._seen_in,
                growth=growth,
                copies=self._copies_by(setup),
                draws=None if kind is None else DeviceDraws(kind, len(batch), self._target.device),
            )
        longest = max(s.context for s in batch)
        if not rounds.has_room(longest):
            return None
        return rounds.launch(longest) if rounds.begin(batch, fresh) else None

    def _copies_by(self, setup: StepConfig) -> Copies | None:
        policy = copied_ahead(setup.policy, self._target.device)
        if policy is None:
            return None
        if self._texts is None:
            self._texts = TextsOnDevice(self._cache.slots, self._cache.capacity + 1, self._target.device)
        return Copies(texts=self._texts, by=drafting_by(policy))

    def _read(self, current: Launched, batch: Many[Sequence]) -> Told:
        rounds = current.rounds
        following = self._following(rounds, batch)
        told = current.told()
        kept = [end - s.context for end, s in zip(told.ends, batch, strict=True)]
        if following is None and rounds.key not in self._refused and not may_end(batch, kept, told):
            following = self._launched(rounds, max(told.ends), batch)
        if following is not None:
            rounds.note_ahead(told.ends)
            self._bet = _Bet(batch=list(batch), starts=told.ends, round=following)
        rounds.ends.note(kept)
        return told

    def _following(self, rounds: CapturedRounds, batch: Many[Sequence]) -> Launched | None:
        """Launch the round behind one in flight, if likely to pay: a lost bet costs a round, a won one saves less."""
        if rounds.ends.are_likely([s.left for s in batch]):
            return None
        return self._launched(rounds, max(s.context for s in batch) + rounds.most_read, batch)  # all may be accepted

    def _launched(self, rounds: CapturedRounds, context: int, batch: Many[Sequence]) -> Launched | None:
        if not rounds.has_room(context):
            return None
        try:
            return rounds.launch(context)
        except Exception as error:  # the round in flight is none the worse for it
            self._refuse(rounds.key, error)
            return None

    def _forget_texts(self) -> None:
        if self._texts is not None:
            self._texts.forget()

    def _refuse(self, key: Key, error: Exception) -> None:
        self._bet = None
        self._forget_texts()
        self._refused.append(key)
        self._rounds.pop(key, None)
        setup, batch, kind = key
        what = "rounds" if kind is None else "sampled rounds"
        name = name_of(setup.policy.code, setup.drafter)
        reason = f"{what} of {name} over {batch} sequences do not run ahead of the host any more: {reason_of(error)}"
        self._faults.append(Fault(drafter=None, reason=reason, is_memory=is_out_of_memory(error)))
