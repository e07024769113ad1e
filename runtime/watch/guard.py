"""Whether the planned way of a cell is really faster than plain decoding, asked now and then while it runs.

A comparison is a burst of rounds of the other way between two windows of the current one, so that what slows the
machine slows both. All its rounds are of one batch size; where batches seldom stay for long enough, comparisons get
shorter, down to as many rounds of all sequences together as a lone one gives. The current way is left when `Evidence`
says, at its stated rate, that it loses most comparisons.
The k-th way of a cell is judged at rate / (k (k + 1)); these add up to `rate`, so that it holds for the whole life of
a cell, with all its returns.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from statistics import median

from .drift import Evidence

SIDE = 24  # rounds of the current way on either side of a burst
PLAIN_BURST, PLANNED_BURST = 8, 24  # planned rounds yield different numbers of tokens, so more of them are needed
FEWEST = 3  # rounds of a side or a burst, however many sequences give them
HALVINGS = 3  # of sides and bursts, at most
UNSETTLED = 2  # rounds of a comparison that change the way, and are not measured
MOST_CHANGES = 6  # such rounds during one comparison
CAP = 3.0  # a round counts at most so many times the middle one of its window: a stall says nothing about a way
MARGIN = 1.02  # a comparison is lost by more than this factor; less is not worth a change
REMEMBERED = 64  # comparisons that the words of a switch are about


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A cell changes its way of decoding."""

    to_planned: bool
    comparisons: int
    lost: int  # by the way that is left
    ratio: float  # speed of the new way over the old one, in the middle of the comparisons


class Guard:
    """One cell's contest between its planned way and plain decoding.

    Invariant: `_steady` holds rounds of the current way, `_burst` of the other one, all of one batch size.
    """

    def __init__(self, rate: float, share: float, *, is_doubtful: bool = False) -> None:
        """Begin with the planned way.

        Args:
            rate: probability that a cell is ever switched, while its way is more than 2 % slower in
                no more than half of the comparisons, whatever came before.
            share: of all rounds that may be run the other way.
            is_doubtful: whether the first comparison begins at once, since the plan is a guess.
        """
        self.is_planned = True
        self._rate, self._share = rate, share
        self._is_probing = False
        self._batch, self._halvings, self._changes = 1, 0, 0
        self._rest = 0 if is_doubtful else self._calm_rest  # rounds until the next comparison begins
        self._trial = 1
        self._evidence = Evidence()
        self._steady, self._burst = _Window(2 * SIDE), _Window(max(PLAIN_BURST, PLANNED_BURST))
        self._gains: deque[float] = deque(maxlen=REMEMBERED)
        self._comparisons = self._lost = 0

    @property
    def wants_planned(self) -> bool:
        """Whether the next round is to be run the planned way."""
        return self.is_planned != self._is_probing

    def note(self, *, is_planned: bool, batch: int, tokens: int, round_ms: float) -> Switch | None:
        """Take a settled round, one that follows a round of the same way; return a change of ways at its moment."""
        if is_planned != self.wants_planned:
            return None  # it was asked for before the last change
        if batch != self._batch:
            self._break_off()
            self._batch = batch
            return None
        if self._rest:
            self._rest -= 1
            return None
        if self._is_probing:
            self._burst.add(tokens, round_ms)
            self._is_probing = self._burst.count < self._burst_rounds
            return None
        self._steady.add(tokens, round_ms)
        if self._steady.count == self._side and not self._burst.count:
            self._is_probing = True
        return self._compare() if self._steady.count == 2 * self._side else None

    def note_change(self) -> None:
        """Take a round that follows one of another way or cell: where many do, a comparison comes to no end."""
        if not self._steady.count:
            return
        self._changes += 1
        if self._changes > MOST_CHANGES:
            self._break_off()

    @property
    def _burst_rounds(self) -> int:
        return self._shortened(PLAIN_BURST if self.is_planned else PLANNED_BURST)

    @property
    def _side(self) -> int:
        return self._shortened(SIDE)

    def _shortened(self, rounds: int) -> int:
        """Return how many rounds stand for so many of a lone sequence, where batches do not stay for them."""
        return max(FEWEST, -(-rounds // self._batch), rounds >> self._halvings)

    @property
    def _calm_rest(self) -> int:
        """Rounds to wait so that bursts, with the rounds that change the way, keep to their share."""
        return self._rest_behind(self._burst_rounds, 2 * self._side)

    def _rest_behind(self, burst: int, steady: int) -> int:
        """Return the rounds to wait behind a burst, those around it counted."""
        spent = burst + UNSETTLED
        return max(round(spent / self._share) - spent - steady, 0)

    def _break_off(self) -> None:
        """Forget a comparison that cannot be completed, for shorter ones; what was run the other way for it counts."""
        if self._steady.count:
            self._halvings = min(self._halvings + 1, HALVINGS)
        if self._is_probing or self._burst.count:
            unsettled = max(self._changes - UNSETTLED, 0)  # beyond those of a comparison that comes to its end
            self._rest = self._rest_behind(self._burst.count + unsettled, self._steady.count)
        self._begin()

    def _begin(self) -> None:
        """Forget a comparison that is not complete."""
        self._is_probing, self._changes = False, 0
        self._steady.clear()
        self._burst.clear()

    def _compare(self) -> Switch | None:
        current, other = self._steady.tokens_per_ms(), self._burst.tokens_per_ms()
        self._begin()
        self._halvings = max(self._halvings - 1, 0)
        if not current or not other:
            return None  # nobody told times
        is_lost = other > MARGIN * current
        self._comparisons += 1
        self._lost += is_lost
        self._gains.append(other / current)
        money = self._evidence.add(is_lost)
        if money * self._rate >= self._trial * (self._trial + 1):
            return self._switched()
        self._rest = 0 if is_lost else self._calm_rest  # a defeat is looked into at once
        return None

    def _switched(self) -> Switch:
        self.is_planned = not self.is_planned
        done = Switch(
            to_planned=self.is_planned, comparisons=self._comparisons, lost=self._lost, ratio=median(self._gains)
        )
        self._trial += 1
        self._evidence = Evidence()
        self._gains.clear()
        self._comparisons = self._lost = 0
        self._rest = self._calm_rest
        return done


class _Window:
    """Rounds written into arrays that are allocated once."""

    __slots__ = ("_ms", "_tokens", "count")

    def __init__(self, rounds: int) -> None:
        self.count = 0
        self._tokens, self._ms = array("q", [0] * rounds), array("d", [0.0] * rounds)

    def add(self, tokens: int, ms: float) -> None:
        """Take a round."""
        self._tokens[self.count], self._ms[self.count] = tokens, ms
        self.count += 1

    def clear(self) -> None:
        """Forget all rounds."""
        self.count = 0

    def tokens_per_ms(self) -> float:
        """Return tokens over milliseconds, stalls cut down; 0 where no time was told."""
        times = self._ms[: self.count]
        most = CAP * median(times)
        spent = sum(min(ms, most) for ms in times)
        return sum(self._tokens[: self.count]) / spent if spent > 0.0 else 0.0
