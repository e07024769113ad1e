"""Comparisons of one challenger with a cell's current way; see `guard.py`."""

from __future__ import annotations

from collections import deque

from .drift import EProcess

LEAST_SAVED = 0.02  # of the current way's time; less is not worth a change
REMEMBERED = 32  # comparisons that together say what would be saved: what slowed a way once is forgotten
FIRST = 16  # comparisons in which a loss may be of all the time, whatever was lost before
LEAST_LOSS = 0.25  # of the time; what a comparison may lose is taken for no less


class Contest:
    """The comparisons of one challenger with the current way.

    `rest` is the rounds of the current way until the next comparison is due, negative by what the challenger has
    gained. `lost` counts the comparisons that the current way lost by more than a change is worth.
    """

    __slots__ = (
        "_alone",
        "_evidence",
        "_latest",
        "_most_lost",
        "_other_rounds",
        "_own_rounds",
        "_since",
        "_texts",
        "comparisons",
        "lost",
        "rest",
    )

    def __init__(self, rest: int) -> None:
        self.rest = rest
        self.comparisons = self.lost = 0
        self._texts = self._alone = 0
        self._since = 0  # rounds of the current way since the last comparison, which the next one stands for
        self._own_rounds, self._other_rounds = 0, 0.0  # of texts that ended meanwhile
        self._latest: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)  # ms of their rounds, and what was saved
        self._most_lost = LEAST_LOSS
        self._evidence = EProcess()

    @property
    def money(self) -> float:
        """Money won by betting on the challenger; at most 1 while it does not look faster."""
        return self._evidence.money

    @property
    def saved(self) -> float:
        """Share of the current way's time that the challenger would have saved, negative if slower."""
        return sum(saved for _, saved in self._latest) / sum(own for own, _ in self._latest)

    @property
    def rounds_needed(self) -> float | None:
        """Rounds of the challenger per current round, on texts ended since the last comparison; None if unknown."""
        return self._other_rounds / self._own_rounds if self._own_rounds else None

    def pass_round(self) -> None:
        """Count a round of the current way."""
        self.rest -= self.rest > 0
        self._since += 1

    def note_text(self, own_rounds: int, other_rounds: float) -> None:
        """Add a text's rounds of the current way, and those that the challenger would need instead."""
        self._own_rounds += own_rounds
        self._other_rounds += other_rounds

    def is_due(self, texts: int) -> bool:
        """Whether the next comparison may begin, when so many texts have ended."""
        return self.rest <= 0 and (texts >= self._texts or self._since >= self._alone)

    def wait(self, rest: int, *, texts: int = 0, alone: int = 0) -> None:
        """Delay the next comparison by `rest` rounds and `texts` ended, or, for the latter, `alone` rounds."""
        self.rest, self._texts, self._alone = rest, texts, alone

    def add(self, saved: float, round_ms: float) -> None:
        """Add a comparison: share of the current way's time that the challenger saved, and ms of that way's round."""
        stands_for = self._since * round_ms
        self._latest.append((stands_for, stands_for * saved))
        self._since = self._own_rounds = 0
        self._other_rounds = 0.0
        self.comparisons += 1
        self.lost += saved > LEAST_SAVED
        worth = saved - LEAST_SAVED
        self._evidence.add(max(worth / (1.0 if self.comparisons <= FIRST else self._most_lost), -1.0))
        self._most_lost = min(max(self._most_lost, -worth), 1.0)
