"""What the comparisons of one challenger with the current way of a cell have said; see `guard.py`."""

from __future__ import annotations

from collections import deque

from .drift import Evidence

LEAST_SAVED = 0.02  # of the current way's time; less is not worth a change
REMEMBERED = 32  # comparisons that together say what would be saved: what slowed a way once is forgotten


class Contest:
    """What the comparisons of one challenger with the current way have said.

    Attributes:
        rest: rounds of the current way until the next comparison is due.
        awaited: texts that have ended when it is due all the same; None where only the rest counts.
        comparisons, lost: how many there were, and how many the current way lost by more than is worth a change.
    """

    __slots__ = ("_evidence", "_latest", "_since", "awaited", "comparisons", "lost", "rest")

    def __init__(self, rest: int) -> None:
        """Begin with nothing compared, due behind so many rounds."""
        self.rest = rest
        self.awaited: int | None = None
        self.comparisons = self.lost = 0
        self._since = 0  # rounds of the current way since the last comparison, which the next one stands for
        self._latest: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)  # ms of their rounds, and what was saved
        self._evidence = Evidence()

    @property
    def money(self) -> float:
        """What betting on the challenger has won; 1 or less as long as it does not look faster."""
        return self._evidence.money

    @property
    def saved(self) -> float:
        """Share of the current way's time that the challenger would have saved, below 0 where it is slower.

        Only behind a comparison.
        """
        return sum(saved for _, saved in self._latest) / sum(own for own, _ in self._latest)

    def pass_round(self) -> None:
        """Let a round of the current way pass."""
        self.rest = max(self.rest - 1, 0)
        self._since += 1

    def is_due(self, texts: int) -> bool:
        """Whether the next comparison may begin, when so many texts have ended."""
        return not self.rest or (self.awaited is not None and texts >= self.awaited)

    def add(self, own_ms: float, other_ms: float, tokens: float) -> bool:
        """Take a comparison; return whether the current way has lost it.

        Args:
            own_ms, other_ms: a token's, of the current way and of the challenger.
            tokens: of a round of the current way.
        """
        saved = 1.0 - other_ms / own_ms
        stands_for = self._since * tokens
        self._latest.append((stands_for * own_ms, stands_for * (own_ms - other_ms)))
        self._since = 0
        self.comparisons += 1
        self.lost += saved > LEAST_SAVED
        self._evidence.add(max(saved - LEAST_SAVED, -1.0))
        return saved > LEAST_SAVED
