"""How many tokens an engine should draft, by its own counters and a few token times: nothing is profiled.

Of all rounds that may draft a chain of k tokens a share a_i accepts the i-th token, so a sequence gets per round

    E_k = 1 + a_1 + ... + a_k

tokens. The engine's time per output token at a length n that ran, TPOT_n, gives its round: T_n = TPOT_n E_n, drafting,
verifying and the host together. Between two lengths that ran, T is guessed on the straight line, as if all drafted
tokens cost the same. Sure is only that a longer draft takes no less time: T_k lies between those of the next shorter
and the next longer length that ran, and bounds TPOT_k = T_k / E_k. Beyond the longest nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...errors import RequestError

AS_GOOD = 0.02  # relative: lengths that are no slower than that are as good as the fastest
NOISE = 0.05  # relative: by so much a longer draft's round may be measured shorter, and is taken to be as long
MOST_TPOT_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthAdvice:
    """What drafting chains of one length brings, in milliseconds per output token of a sequence."""

    length: int  # drafted tokens; 0 is plain decoding
    tokens_per_round: float  # of a sequence, the target's own token included
    tokens_error: float | None  # standard error, rounds taken as independent; None: rounds not counted
    tpot_ms: float  # measured, or guessed between two lengths that were
    least_ms: float  # bound; the measured time where there is one
    most_ms: float  # likewise

    @property
    def is_measured(self) -> bool:
        """Whether nothing of it is guessed."""
        return self.least_ms == self.most_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All lengths from 0 to the longest that ran, and which of them to take."""

    lengths: tuple[LengthAdvice, ...]
    best: LengthAdvice  # the fastest, by measurement or guess
    as_good: tuple[int, ...]  # others that are no slower than the best by more than 2 %, shortest first
    open: tuple[int, ...]  # lengths that were not measured and may be faster than the best by more than 2 %
    notes: tuple[str, ...] = ()  # times that were changed, and why

    @property
    def speedup(self) -> float:
        """Of the best over plain decoding, as far as is guessed."""
        return self.lengths[0].tpot_ms / self.best.tpot_ms

    @property
    def is_longest(self) -> bool:
        """Whether the best is the longest that ran, so that longer ones may be better still."""
        return self.best is self.lengths[-1]


def advise(by_position: Sequence[float], tpot_ms: Mapping[int, float], rounds: int | None = None) -> Advice:
    """Return what drafting chains of each length brings.

    `by_position` is the acceptance of the first, second, ... drafted token over all rounds. `tpot_ms`, by drafted
    tokens, is of a sequence, for 0 (plain decoding) and at least one other length, under the load of the counters.
    `rounds` were counted; None where unknown.

    RequestError: a time of plain decoding or of drafts is missing, a length was not counted, or a round that drafts
    more takes less time by more than noise explains.
    """
    _require_sound(by_position, tpot_ms)
    tokens = [1.0]
    for rate in by_position:
        tokens.append(tokens[-1] + rate)
    round_ms, notes = _rising({length: tpot_ms[length] * tokens[length] for length in sorted(tpot_ms)})
    lengths = tuple(
        LengthAdvice(
            length=length,
            tokens_per_round=tokens[length],
            tokens_error=_error(by_position[:length], rounds),
            tpot_ms=guess / tokens[length],
            least_ms=least / tokens[length],
            most_ms=most / tokens[length],
        )
        for length in range(max(tpot_ms) + 1)
        for least, guess, most in [_round_ms(round_ms, length)]
    )
    best = min(lengths, key=lambda one: one.tpot_ms)
    near, clear = (1.0 + AS_GOOD) * best.tpot_ms, (1.0 - AS_GOOD) * best.tpot_ms
    return Advice(
        lengths=lengths,
        best=best,
        as_good=tuple(one.length for one in lengths if one is not best and one.tpot_ms <= near),
        open=tuple(one.length for one in lengths if not one.is_measured and one.least_ms < clear),
        notes=notes,
    )


def _require_sound(by_position: Sequence[float], tpot_ms: Mapping[int, float]) -> None:
    if 0 not in tpot_ms or len(tpot_ms) < 2:
        raise RequestError(
            f"times of 0 drafted tokens, plain decoding, and of one length or more are needed, got {sorted(tpot_ms)}; "
            "measure the missing one"
        )
    if min(tpot_ms) < 0 or max(tpot_ms) > len(by_position):
        raise RequestError(
            f"the counters tell positions 1 to {len(by_position)}, and times are of {sorted(tpot_ms)} drafted tokens; "
            "count while the longest of them runs"
        )
    for length, time in tpot_ms.items():
        if not 0.0 < time <= MOST_TPOT_MS:
            raise RequestError(
                f"a token of length {length} takes more than 0 ms and at most {MOST_TPOT_MS:g}, got {time}"
            )


def _rising(round_ms: Mapping[int, float]) -> tuple[dict[int, float], tuple[str, ...]]:
    """Return milliseconds of rounds made non-decreasing in the length, and notes on what was raised."""
    risen, notes = dict(round_ms), []
    for shorter, longer in pairwise(round_ms):
        least, told = risen[shorter], round_ms[longer]
        if told < (1.0 - NOISE) * least:
            raise RequestError(
                f"a round of {longer} drafted tokens takes {told:.2f} ms and one of {shorter} {least:.2f}: longer "
                "drafts take no less; measure both under the same load, that of the counters, per output token"
            )
        if told < least:
            risen[longer] = least
            notes.append(
                f"a round of {longer} drafted tokens takes {told:.2f} ms and one of {shorter} {least:.2f}; noise, and "
                "counted as equal"
            )
    return risen, tuple(notes)


def _round_ms(round_ms: Mapping[int, float], length: int) -> tuple[float, float, float]:
    """Return the least that a round of a length takes, the guess, and the most."""
    shorter = max(one for one in round_ms if one <= length)
    longer = min(one for one in round_ms if one >= length)
    least, most = round_ms[shorter], round_ms[longer]
    share = 0.0 if shorter == longer else (length - shorter) / (longer - shorter)
    return least, least + share * (most - least), most


def _error(rates: Sequence[float], rounds: int | None) -> float | None:
    """Return the standard error of a round's mean tokens: P(kept >= i) is the i-th rate."""
    if not rounds:
        return None
    mean = sum(rates)
    square = sum((2 * place - 1) * rate for place, rate in enumerate(rates, 1))
    return math.sqrt(max(square - mean * mean, 0.0) / rounds)
