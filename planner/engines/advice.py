"""How many tokens an engine should draft, by its own counters and a few token times: nothing is profiled.

A round that drafts a chain of k tokens keeps a_i of its i-th token, unconditional, and yields

    E_k = 1 + a_1 + ... + a_k

tokens of a sequence. The engine's time between two tokens, ITL_n, at a length n that ran tells what its round takes:
T_n = ITL_n E_n, drafting, verifying and the host together. Between two lengths that ran T is not known, and lies
between two bounds: on the straight line, where every drafted token costs as much as the next, and at the longer one's
already, where the first token beyond the shorter one costs as much as all. ITL_k = T_k / E_k lies between what these
two say, as long as no drafted token costs more than the one before it. Beyond the longest that ran nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...errors import RequestError

AS_GOOD = 0.02  # relative: lengths that are no slower than that are as good as the fastest
NOISE = 0.05  # relative: by so much a longer draft's round may be measured shorter, and is taken to be as long
MOST_ITL_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthAdvice:
    """What drafting chains of one length brings.

    Attributes:
        length: drafted tokens; 0 is plain decoding.
        tokens_per_round: of a sequence, its own token included.
        tokens_error: its standard error, rounds taken as independent; None where nobody counted them.
        itl_ms: between two tokens of a sequence, where every drafted token costs as much.
        most_itl_ms: where the first one beyond a length that ran costs all; the same at lengths that ran.
    """

    length: int
    tokens_per_round: float
    tokens_error: float | None
    itl_ms: float
    most_itl_ms: float

    @property
    def is_measured(self) -> bool:
        """Whether the two bounds are one."""
        return self.itl_ms == self.most_itl_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All lengths up to the longest that ran, and which of them to take.

    Attributes:
        lengths: 0 and up, one by one.
        best: the fastest where every drafted token costs as much.
        surest: the fastest where drafts cost as much as they may; the best is sure where it is this one.
        as_good: others that are no slower than the best by more than 2 %, shortest first.
    """

    lengths: tuple[LengthAdvice, ...]
    best: LengthAdvice
    surest: LengthAdvice
    as_good: tuple[int, ...]

    @property
    def speedup(self) -> float:
        """Of the best over plain decoding, as far as the straight line holds."""
        return self.lengths[0].itl_ms / self.best.itl_ms

    @property
    def is_longest(self) -> bool:
        """Whether the best is the longest that ran, so that longer ones may be better still."""
        return self.best is self.lengths[-1]


def advise(by_position: Sequence[float], itl_ms: Mapping[int, float], rounds: int | None = None) -> Advice:
    """Return what drafting chains of each length brings.

    Args:
        by_position: unconditional acceptance of the first, second, ... drafted token.
        itl_ms: by drafted tokens, milliseconds between two tokens of a sequence; of 0, plain decoding, and one or more
            others, measured under the load that the counters are of.
        rounds: that were counted; None where nobody says.

    Raises:
        RequestError: a time of plain decoding or of drafts is missing, a length was not counted, or a round that drafts
            more takes less time by more than noise explains.
    """
    _require_sound(by_position, itl_ms)
    tokens = [1.0]
    for rate in by_position:
        tokens.append(tokens[-1] + rate)
    round_ms = {length: itl_ms[length] * tokens[length] for length in sorted(itl_ms)}
    for shorter, longer in pairwise(round_ms):
        less, more = round_ms[shorter], round_ms[longer]
        if more < (1.0 - NOISE) * less:
            raise RequestError(
                f"a round of {longer} drafted tokens takes {more:.2f} ms and one of {shorter} {less:.2f}: longer "
                "drafts take no less; measure both under the same load, that of the counters"
            )
        round_ms[longer] = max(less, more)
    lengths = tuple(
        LengthAdvice(
            length=length,
            tokens_per_round=tokens[length],
            tokens_error=_error(by_position[:length], rounds),
            itl_ms=least / tokens[length],
            most_itl_ms=most / tokens[length],
        )
        for length in range(max(itl_ms) + 1)
        for least, most in [_bounds(round_ms, length)]
    )
    best = min(lengths, key=lambda one: one.itl_ms)
    as_good = tuple(one.length for one in lengths if one is not best and one.itl_ms <= (1.0 + AS_GOOD) * best.itl_ms)
    return Advice(lengths=lengths, best=best, surest=min(lengths, key=lambda one: one.most_itl_ms), as_good=as_good)


def _require_sound(by_position: Sequence[float], itl_ms: Mapping[int, float]) -> None:
    if 0 not in itl_ms or len(itl_ms) < 2:
        raise RequestError(
            f"times of 0 drafted tokens, plain decoding, and of one length or more are needed, got {sorted(itl_ms)}; "
            "measure the missing one"
        )
    if min(itl_ms) < 0 or max(itl_ms) > len(by_position):
        raise RequestError(
            f"the counters tell positions 1 to {len(by_position)}, and times are of {sorted(itl_ms)} drafted tokens; "
            "count while the longest of them runs"
        )
    for length, time in itl_ms.items():
        if not 0.0 < time <= MOST_ITL_MS:
            raise RequestError(
                f"a token of length {length} takes more than 0 ms and at most {MOST_ITL_MS:g}, got {time}"
            )


def _bounds(round_ms: Mapping[int, float], length: int) -> tuple[float, float]:
    """Return the least and the most that a round of a length takes, as the lengths on both sides of it tell."""
    shorter = max(one for one in round_ms if one <= length)
    longer = min(one for one in round_ms if one >= length)
    if shorter == longer:
        return round_ms[length], round_ms[length]
    share = (length - shorter) / (longer - shorter)
    return round_ms[shorter] + share * (round_ms[longer] - round_ms[shorter]), round_ms[longer]


def _error(rates: Sequence[float], rounds: int | None) -> float | None:
    """Return the standard error of a round's mean tokens: P(kept >= i) is the i-th rate."""
    if not rounds:
        return None
    mean = sum(rates)
    square = sum((2 * place - 1) * rate for place, rate in enumerate(rates, 1))
    return math.sqrt(max(square - mean * mean, 0.0) / rounds)
