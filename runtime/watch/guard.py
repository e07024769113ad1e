"""Which way of a cell is really the fastest, tested now and then while it runs.

A cell has several numbered ways, 0 being the planned one. One is current, the others challenge it. A comparison is a
burst of a challenger's rounds between two windows of the current way, so that what slows the machine slows both. All
its rounds have one batch size. Where batches seldom stay long enough, comparisons get shorter, down to as many rounds
of all sequences together as a lone one gives.

The measure is the time that the challenger would have saved, not how often it wins: copies win seldom and by much.

  saved = 1 - (ms of its round / ms of the current way's) * (its rounds for one of the current way's)

Milliseconds are those of the comparison. The number of rounds scatters far more: the texts that ended since the last
comparison give it where they can (`decoded.py`), else the comparison's own tokens. The current way is left on two
conditions. `EProcess` says, at its rate, that the share of time saved is above `LEAST_SAVED` on average; and it is so
over the latest comparisons together, each weighted by the rounds since the one before. The k-th current way is tested
at rate / (k (k + 1)), shared by its challengers. These add up to `rate`, so it holds for a cell's whole life.

A challenger costs what it loses. So the next comparison waits until the time lost in all of them is the challenger's
share of the time; one that loses nothing waits only for another text, since rounds of one text are alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from .contest import LEAST_SAVED, Contest

SIDE = 24  # rounds of the current way on either side of a burst
PLAIN_BURST, DRAFTED_BURST = 8, 24  # drafted rounds yield different numbers of tokens, so more of them are needed
FEWEST = 3  # rounds of a side or a burst, however many sequences give them
HALVINGS = 3  # of sides and bursts, at most
UNSETTLED = 2  # rounds of a comparison that change the way, and are not measured
MOST_CHANGES = 6  # such rounds during one comparison
EARLY = 8  # the first comparison comes behind a fraction of the rounds that pay for it
CAP = 3.0  # a round counts at most so many times the middle one of its window: a stall says nothing about a way


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of running a cell: its burst of rounds, and the share of time to lose to it while not current."""

    burst: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A cell's change of its way."""

    left: int  # number of the way that is left
    taken: int
    comparisons: int  # of the two
    lost: int  # by the way that is left
    ratio: float  # speed of the new way over the old one, over the latest comparisons together


class Guard:
    """One cell's contest between its ways; `current` is the number of the one in use."""

    def __init__(self, rate: float, ways: Sequence[Way], *, is_doubtful: bool = False) -> None:
        """Begin with the planned way, the first of two or more.

        Args:
            rate: probability that a cell is ever switched while no other way would save more than 2 % of its time on
                average, whatever came before. A comparison's loss counts as at most all of its time; after the first 16
                of two ways as at most the largest loss before, or a quarter.
            is_doubtful: begin the first comparisons at once, since the plan is a guess.
        """
        self.current = 0
        self._rate, self._ways = rate, tuple(ways)
        self._challenger = 1  # of the comparison that runs, or comes next
        self._is_probing = False
        self._batch, self._halvings = 1, 0
        self._changes, self._changing_ms = 0, 0.0  # rounds of this comparison that changed the way, and their time
        self._unjudged = 0  # of its burst, that say nothing of the way
        self._trial = 1
        self._texts = self._texts_by_then = 0  # that have ended; when the newest burst was over
        self._dice = Random(0)  # where batches come and go in a rhythm, comparisons do not
        self._steady, self._burst = _Window(2 * SIDE), _Window(max(way.burst for way in ways))
        self._contests = [Contest(0 if is_doubtful else self._calm_rest(way) // EARLY) for way in self._ways]

    @property
    def wanted(self) -> int:
        """Number of the way for the next round."""
        return self._challenger if self._is_probing else self.current

    def hurry(self) -> None:
        """Compare every challenger as soon as possible: something speaks against the current way."""
        for contest in self._contests:
            contest.wait(0)

    def note(self, *, way: int, batch: int, tokens: int, round_ms: float, texts: int = 0) -> Switch | None:
        """Add a settled round, one after a round of the same way; return any switch. `texts` have ended so far."""
        self._texts = texts
        if way != self.wanted:
            return None  # it was asked for before the last change
        if batch != self._batch:
            self._break_off()
            self._batch = batch
            return None
        if self._is_probing:
            self._burst.add(tokens, round_ms)
            self._is_probing = self._burst.count < self._burst_rounds
            self._texts_by_then = texts
            return None
        for contest in self._contests:
            contest.pass_round()
        if not self._steady.count and not self._has_challenger():
            return None
        self._steady.add(tokens, round_ms)
        if self._steady.count == self._side and not self._burst.count:
            self._is_probing = True
        return self._compare() if self._steady.count == 2 * self._side else None

    def note_unjudged(self, way: int) -> None:
        """Add a settled round whose time may include the reading of a prompt; many break a comparison off."""
        if not self._is_probing or way != self.wanted:
            return
        self._unjudged += 1
        if self._unjudged >= self._burst_rounds:
            self._break_off()

    def note_text(self, challenger: int, own_rounds: int, other_rounds: float) -> None:
        """Add a finished text's rounds of the current way, and those that the challenger would need instead."""
        self._contests[challenger].note_text(own_rounds, other_rounds)

    def note_change(self, round_ms: float = 0.0) -> None:
        """Add a round after one of another way or cell, with its drafter's reading; many break a comparison off."""
        if not self._steady.count:
            return
        self._changes += 1
        self._changing_ms += round_ms
        if self._changes > MOST_CHANGES:
            self._break_off()

    def _has_challenger(self) -> bool:
        """Choose the challenger that is due and likeliest to win; return whether there is one."""
        contests = enumerate(self._contests)
        due = [number for number, one in contests if number != self.current and one.is_due(self._texts)]
        if due:
            self._challenger = max(due, key=lambda number: (self._contests[number].money, -number))
        return bool(due)

    @property
    def _burst_rounds(self) -> int:
        return self._shortened(self._ways[self._challenger].burst)

    @property
    def _side(self) -> int:
        return self._shortened(SIDE)

    def _shortened(self, rounds: int) -> int:
        """Return the rounds of a batch that replace so many of a lone sequence."""
        return max(FEWEST, -(-rounds // self._batch), rounds >> self._halvings)

    def _calm_rest(self, way: Way) -> int:
        """Return the rounds to wait so that a way's bursts, with the rounds that change ways, take only their share."""
        return _rest_behind(self._shortened(way.burst) + UNSETTLED, 2 * self._side, way.share)

    def _break_off(self) -> None:
        """Drop an incomplete comparison, for shorter ones; the challenger's rounds count as cost."""
        if self._steady.count:
            self._halvings = min(self._halvings + 1, HALVINGS)
        if self._is_probing or self._burst.count:
            spent = self._burst.count + self._unjudged + max(self._changes, UNSETTLED, self._changed_rounds())
            share = self._ways[self._challenger].share
            contest = self._contests[self._challenger]
            contest.wait(_rest_behind(spent, self._steady.count, share) + self._dice.randrange(SIDE))
        self._begin()

    def _begin(self) -> None:
        self._is_probing, self._changes, self._changing_ms, self._unjudged = False, 0, 0.0, 0
        self._steady.clear()
        self._burst.clear()

    def _compare(self) -> Switch | None:
        contest, way = self._contests[self._challenger], self._ways[self._challenger]
        steady, burst = self._steady, self._burst
        own_ms, other_ms = steady.ms() / steady.count, burst.ms() / burst.count
        needed = contest.rounds_needed or steady.tokens_a_round() / burst.tokens_a_round()
        changed = max(self._changed_rounds() - self._changes, 0)
        compared, challenging = steady.count + burst.count, burst.count + self._unjudged
        self._begin()
        self._halvings = max(self._halvings - 1, 0)
        if not own_ms or not other_ms:
            return None  # nobody told times
        contest.add(1.0 - other_ms / own_ms * needed, own_ms)
        limit = self._trial * (self._trial + 1) * (len(self._ways) - 1) / self._rate
        if contest.money >= limit and contest.saved > LEAST_SAVED:
            return self._switched()
        lost = challenging * (other_ms / own_ms - 1.0 / needed) + changed  # in rounds of the current way
        calm = self._calm_rest(way)
        rest = max(contest.rest + round(lost / way.share) - compared, -calm)
        contest.wait(rest, texts=self._texts_by_then + 1, alone=calm)
        return None

    def _changed_rounds(self) -> int:
        usual = self._steady.ms() / self._steady.count
        return round(self._changing_ms / usual) if usual > 0.0 else 0

    def _switched(self) -> Switch:
        taken, contest = self._challenger, self._contests[self._challenger]
        done = Switch(
            left=self.current,
            taken=taken,
            comparisons=contest.comparisons,
            lost=contest.lost,
            ratio=1.0 / (1.0 - contest.saved),
        )
        self._trial += 1
        self._contests = [
            Contest(self._calm_rest(way) if number in (self.current, taken) else 0)  # the others may be better still
            for number, way in enumerate(self._ways)
        ]
        self.current = taken
        return done


class _Window:
    __slots__ = ("_ms", "_tokens", "count")

    def __init__(self, rounds: int) -> None:
        self.count = 0
        self._tokens, self._ms = array("q", [0] * rounds), array("d", [0.0] * rounds)

    def add(self, tokens: int, ms: float) -> None:
        self._tokens[self.count], self._ms[self.count] = tokens, ms
        self.count += 1

    def clear(self) -> None:
        self.count = 0

    def tokens_a_round(self) -> float:
        """Return the mean tokens of the rounds, of at least one token in all."""
        return max(sum(self._tokens[: self.count]), 1) / self.count

    def ms(self) -> float:
        """Return the time of all rounds, with stalls capped."""
        times = self._ms[: self.count]
        most = CAP * median(times)
        return sum(min(ms, most) for ms in times)


def _rest_behind(spent: int, steady: int, share: float) -> int:
    """Return how many rounds to wait after `spent` rounds of another way and `steady` around them."""
    return max(round(spent / share) - spent - steady, 0)
