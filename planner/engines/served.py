"""What a server yields with drafts of any length, from a few lengths that were measured under load.

At one concurrency c, drafts of k tokens by one source take T_k milliseconds a round and yield E_k tokens of a sequence:

    E_k = 1 + r_k (a_1 + ... + a_k)        a_i: unconditional acceptance of the longest chain that ran
    tokens/s = 1000 c n / (TTFT_k + (n - 1) T_k / E_k)        n: tokens of an answer

r_k, T_k and TTFT_k are interpolated linearly. From plain decoding (k = 0) on, the first drafted token costs `FIRST` of
all that drafting costs more than any further one: the drafter reads what was accepted, too. r_k corrects that rounds of
a shorter chain begin at other places of a text than those of the longest. Between two lengths T may step at any place;
only T rising with length is sure. So beside the guess there are a worst case, T of the next longer length that ran, and
a best case, T of the next shorter.

Source: Leviathan et al. 2023, arXiv:2211.17192, for E_k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ...errors import PlanError

PLAIN = "plain"  # the source that drafts nothing
FIRST, FIRST_ERROR = 0.05, 0.08  # llama.cpp b11434, 1.5B with a 0.5B on 2 cores: 0.06, 0.16 and 0 at 1, 4, 8 at once
BETWEEN = 0.04  # relative error of a guess between two lengths that ran
Z = 1.645  # standard errors of a 90 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A load's result at one concurrency and drafted `length`; 0 is plain decoding, whose source is "plain".

    Attributes:
        ttft_ms, answer_tokens: means.
    """

    source: str
    length: int
    round_ms: float  # of one round, including whatever else the server did meanwhile
    tokens_per_round: float  # of a sequence, its own token included
    acceptance: tuple[float, ...]  # unconditional by position, of all rounds
    ttft_ms: float
    answer_tokens: float
    error: float  # relative standard error of the tokens per second

    def __post_init__(self) -> None:
        numbers = (self.round_ms, self.tokens_per_round, self.ttft_ms, self.answer_tokens, self.error)
        if not all(0.0 <= number < math.inf for number in numbers) or not self.round_ms or not self.tokens_per_round:
            raise PlanError(f"a load has rounds and tokens, got {self}")
        if (self.source == PLAIN) != (self.length == 0):
            raise PlanError(f"plain decoding drafts nothing and nothing else does, got {self.source}, {self.length}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a (source, length) yields at one concurrency, measured or guessed.

    Tokens per second are of all sequences together; least and most are the worst and best case of a round's cost.
    `tokens_per_round` is of a sequence, its own token included. TPOT and TTFT are means; `error` is the relative
    standard error; `is_measured` says whether that length ran.
    """

    source: str
    length: int
    tokens_per_s: float
    least_tokens_per_s: float
    most_tokens_per_s: float
    tokens_per_round: float
    tpot_ms: float
    ttft_ms: float
    error: float
    is_measured: bool

    @property
    def interval(self) -> tuple[float, float]:
        """The 90 % interval of tokens per second."""
        return self.tokens_per_s * (1.0 - Z * self.error), self.tokens_per_s * (1.0 + Z * self.error)


def served(concurrency: int, ran: Sequence[Ran]) -> tuple[Served, ...]:
    """Return what every way yields: plain decoding, then each source's lengths up to its longest that ran.

    PlanError if plain decoding did not run, or a way ran twice.
    """
    places = [(one.source, one.length) for one in ran]
    if len(set(places)) < len(places) or (PLAIN, 0) not in places:
        raise PlanError(f"plain decoding and each length run once, got {sorted(places)}")
    plain = ran[places.index((PLAIN, 0))]
    found = [_measured(concurrency, plain)]
    for source in dict.fromkeys(one.source for one in ran if one.length):
        own = {one.length: one for one in ran if one.source == source}
        found += _lengths(concurrency, plain, own)
    return tuple(found)


def _lengths(concurrency: int, plain: Ran, own: Mapping[int, Ran]) -> list[Served]:
    at = sorted(own)
    sums = list(accumulate(own[at[-1]].acceptance, initial=0.0))
    sums += [sums[-1]] * (at[-1] + 1 - len(sums))
    known = [0, *at]
    ratios = [(own[length].tokens_per_round - 1.0) / sums[length] if sums[length] else 1.0 for length in at]
    rounds_ms = [plain.round_ms, *(own[length].round_ms for length in at)]
    ttfts_ms = [own[length].ttft_ms for length in at]  # a drafter reads prompts, too
    guesses_ms = [plain.round_ms + FIRST * (rounds_ms[1] - plain.round_ms), *rounds_ms[1:]]
    found = []
    for length in range(1, at[-1] + 1):
        if length in own:
            found.append(_measured(concurrency, own[length]))
            continue
        longer = next(one for one in at if one > length)
        tokens = 1.0 + float(np.interp(length, at, ratios)) * sums[length]
        ttft_ms = float(np.interp(length, at, ttfts_ms))
        guess, shorter_ms = float(np.interp(length, known, guesses_ms)), rounds_ms[known.index(longer) - 1]
        worst, best = max(guess, own[longer].round_ms), min(guess, shorter_ms)
        unsure_ms = FIRST_ERROR * abs(rounds_ms[1] - plain.round_ms) * max(1.0 - length / at[0], 0.0)
        answer = own[longer].answer_tokens
        found.append(
            Served(
                source=own[longer].source,
                length=length,
                tokens_per_s=_tokens_per_s(concurrency, answer, ttft_ms, guess / tokens),
                least_tokens_per_s=_tokens_per_s(concurrency, answer, ttft_ms, worst / tokens),
                most_tokens_per_s=_tokens_per_s(concurrency, answer, ttft_ms, best / tokens),
                tokens_per_round=tokens,
                tpot_ms=guess / tokens,
                ttft_ms=ttft_ms,
                error=math.hypot(BETWEEN, unsure_ms / guess, own[longer].error),
                is_measured=False,
            )
        )
    return found


def _measured(concurrency: int, one: Ran) -> Served:
    tpot_ms = one.round_ms / one.tokens_per_round
    tokens_per_s = _tokens_per_s(concurrency, one.answer_tokens, one.ttft_ms, tpot_ms)
    return Served(
        source=one.source,
        length=one.length,
        tokens_per_s=tokens_per_s,
        least_tokens_per_s=tokens_per_s,
        most_tokens_per_s=tokens_per_s,
        tokens_per_round=one.tokens_per_round,
        tpot_ms=tpot_ms,
        ttft_ms=one.ttft_ms,
        error=one.error,
        is_measured=True,
    )


def _tokens_per_s(concurrency: int, answer_tokens: float, ttft_ms: float, tpot_ms: float) -> float:
    return 1000.0 * concurrency * answer_tokens / (ttft_ms + (answer_tokens - 1.0) * tpot_ms)
