"""What edge drafting will do: devices and a server simulated on the recorded texts.

Every device drafts, sends, drafts on while it waits, and takes the answer; the server gathers drafts and verifies them
together. All randomness is in the recording, so the result is deterministic.

    next chain begins   max(answer comes, forward that was begun while waiting ends)
    chain is sent       draft_ms * (its tokens - those drafted ahead that still hold) later
    draft arrives       rtt / 2 later
    verification        begins when the rule says so and the server is free, for ms(drafts, longest + 1)
    answer comes        rtt / 2 behind its end

Source: Li et al. 2025, arXiv:2506.09397 (SLED); the wait of devices for each other is simulated, not approximated.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import PlanError
from .costs import EdgeRounds, ServerCosts
from .setting import BatchRule, DeviceDrafting, EdgeDevice

NOBODY = -1
ROUNDS, LEAST_EACH = 800, 60
WARM_SHARE = 0.1  # of the rounds, before counting begins: devices start all at once, as they never are later


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeForecast:
    """What to expect of some devices and a server."""

    tokens_per_s: tuple[float, ...]  # of each device
    rows: float  # mean number of drafts verified together
    busy: float  # share of the time in which the server computes
    wasted: float  # share of the drafter's forwards whose token the target did not accept
    answer_ms: float  # mean, from sending a draft to its answer

    @property
    def total_tokens_per_s(self) -> float:
        """Of all devices together."""
        return sum(self.tokens_per_s)

    @property
    def slowest_tokens_per_s(self) -> float:
        """Of the device that is served worst."""
        return min(self.tokens_per_s)


def forecast(
    devices: Sequence[EdgeDevice],
    draftings: Sequence[DeviceDrafting],
    rounds: Sequence[EdgeRounds],
    rule: BatchRule,
    costs: ServerCosts,
    *,
    rounds_in_all: int = ROUNDS,
) -> EdgeForecast:
    """Simulate devices and their server, and return what came of it.

    `rounds` are each device's along the texts, shared by devices that draft alike; each begins with another text.
    `rounds_in_all` is the number over all devices, at least LEAST_EACH of each. PlanError: drafts are longer, or more
    at once, than was priced.
    """
    longest = max(int(one.drafted.max()) for one in rounds) + 1
    if longest > costs.most_tokens or len(devices) > costs.most_rows:
        raise PlanError(
            f"{len(devices)} drafts of {longest} tokens were not priced, at most {costs.most_rows} of "
            f"{costs.most_tokens}; profile larger forwards, or draft less"
        )
    players = [
        _Player(device=device, drafting=drafting, rounds=own, at=int(own.starts[place % len(own.starts)]))
        for place, (device, drafting, own) in enumerate(zip(devices, draftings, rounds, strict=True))
    ]
    return _Play(players, rule, costs).run(max(rounds_in_all // len(players), LEAST_EACH))


@dataclass(slots=True)
class _Player:
    device: EdgeDevice
    drafting: DeviceDrafting
    rounds: EdgeRounds
    at: int  # round
    ready: int = 0  # tokens that are drafted behind the chain that is on its way
    sent_ms: float = 0.0
    emitted: int = 0
    forwards: int = 0
    accepted: int = 0
    answers_ms: list[float] = field(default_factory=list)
    done: int = 0  # rounds

    def forget(self) -> None:
        """Begin to count."""
        self.emitted = self.forwards = self.accepted = self.done = 0
        self.answers_ms.clear()

    def answered(self, at_ms: float) -> tuple[int, float]:
        """Take an answer; return how many tokens of the next chain are there, and when the device is free for it."""
        rounds, waited = self.rounds, at_ms - self.sent_ms
        begun = min(max(self.drafting.ahead - self.ready, 0), math.ceil(waited / self.device.draft_ms))
        goes_on, drafted = bool(rounds.goes_on[self.at]), int(rounds.drafted[self.at])
        held = max(self.ready + begun - 1, 0) if goes_on else 0
        self.forwards += begun
        self.emitted += int(rounds.kept[self.at])
        self.accepted += min(int(rounds.kept[self.at]) - 1, drafted)
        self.answers_ms.append(waited)
        self.done += 1
        self.at = (self.at + 1) % len(rounds.drafted)
        is_new_text = bool((rounds.starts == self.at).any())
        return 0 if is_new_text else held, max(at_ms, self.sent_ms + begun * self.device.draft_ms)

    def send(self, held: int, at_ms: float) -> float:
        """Draft what is missing of the chain; return when it arrives."""
        drafted = int(self.rounds.drafted[self.at])
        missing = max(drafted - held, 0)
        self.ready = max(held - drafted, 0)
        self.forwards += missing
        self.sent_ms = at_ms + missing * self.device.draft_ms
        return self.sent_ms + self.device.rtt_ms / 2.0

    @property
    def tokens(self) -> int:
        """Tokens of the draft that is on its way, its root included."""
        return 1 + int(self.rounds.drafted[self.at])


class _Play:
    def __init__(self, players: list[_Player], rule: BatchRule, costs: ServerCosts) -> None:
        self._players, self._rule, self._costs = players, rule, costs
        self._events: list[tuple[float, int, int]] = []  # when, in which order, whose draft arrives; NOBODY: look again
        self._queue: deque[tuple[float, int]] = deque()  # when it came, whose draft
        self._now_ms = self._free_ms = self._busy_ms = 0.0
        self._order = self._verified = self._forwards = 0

    def run(self, rounds_each: int) -> EdgeForecast:
        """Play so many rounds of every device; the first are not counted."""
        for who, player in enumerate(self._players):
            self._push(player.send(0, 0.0), who)
        self._until(math.ceil(rounds_each * WARM_SHARE))
        begun_ms = self._now_ms
        for player in self._players:
            player.forget()
        self._busy_ms, self._verified, self._forwards = 0.0, 0, 0
        self._until(rounds_each)
        passed_ms = self._now_ms - begun_ms
        forwards = sum(player.forwards for player in self._players)
        return EdgeForecast(
            tokens_per_s=tuple(1000.0 * player.emitted / passed_ms for player in self._players),
            rows=self._verified / self._forwards,
            busy=min(self._busy_ms / passed_ms, 1.0),
            wasted=1.0 - sum(player.accepted for player in self._players) / forwards if forwards else 0.0,
            answer_ms=statistics.fmean(ms for player in self._players for ms in player.answers_ms),
        )

    def _until(self, rounds_each: int) -> None:
        while min(player.done for player in self._players) < rounds_each:
            self._now_ms, _, who = heapq.heappop(self._events)
            if who != NOBODY:
                self._queue.append((self._now_ms, who))
            if self._queue and self._now_ms >= self._free_ms:
                self._verify_where_due()

    def _verify_where_due(self) -> None:
        came_ms, _ = self._queue[0]
        is_everybody_here = len(self._queue) == len(self._players)
        if not is_everybody_here and not self._rule.is_due(len(self._queue), self._now_ms - came_ms):
            self._push(came_ms + self._rule.wait_ms, NOBODY)
            return
        taken = [who for _, who in self._queue]
        self._queue.clear()
        took_ms = float(self._costs.ms[len(taken), max(self._players[who].tokens for who in taken)])
        self._free_ms = self._now_ms + took_ms
        self._busy_ms += took_ms
        self._verified += len(taken)
        self._forwards += 1
        self._push(self._free_ms, NOBODY)
        for who in taken:
            player = self._players[who]
            held, begin_ms = player.answered(self._free_ms + player.device.rtt_ms / 2.0)
            self._push(player.send(held, begin_ms), who)

    def _push(self, at_ms: float, who: int) -> None:
        heapq.heappush(self._events, (at_ms, self._order, who))
        self._order += 1
