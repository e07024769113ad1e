"""A sentinel load: the same few prompts at every start of a server, whose prefill shows the machine's pace.

What a start drafts changes how long decoding takes, but not how long the same tokens take to be read:

    reading = median time to the first token of long prompts - that of short ones

Rounds, drafts behind the first token and the way to the server are in both, and so in neither reading. A drafter that
reads prompts, too, is in all readings of its starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import Any

from ..profiler.prompt import Prompt
from .limits import STALL_S
from .load import Address, SamplingParams, closed_loop

PAIRS = 3  # of a long and a short prompt
SHORT, LONG = 6, (96, 768)  # words of a prompt; the longer ones where the others are read in less than `FAST_MS`
FAST_MS = 100.0
SEEN = 0.5  # of the short ones' time: what long ones take less beyond them is no reading
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world")
NO_WORDS = 0  # the length is not chosen yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Times to the first token of long and of short prompts, in milliseconds; the long ones have so many `words`.

    Both are empty where a prompt was not answered.
    """

    words: int
    long_ms: tuple[float, ...] = ()
    short_ms: tuple[float, ...] = ()

    @property
    def ms(self) -> float | None:
        """How long the long prompts took beyond the short ones; None where that is not seen."""
        if not self.long_ms:
            return None
        beyond = median(self.long_ms) - median(self.short_ms)
        return beyond if beyond > SEEN * median(self.short_ms) else None


def read_pace(
    address: Address, more: Mapping[str, Any], place: int, *, words: int = NO_WORDS, stall_s: float = STALL_S
) -> Reading:
    """Return a server's reading at a place of its start; `more` are fields of every request.

    Prompts of one place are the same in every start, and those of no two places begin alike, so that no prefix cache
    answers them; a server that is not started again is read at other places each time. `NO_WORDS` takes the shortest
    prompts that do not take too short a time.
    """
    found = _read(address, more, place, words or LONG[0], stall_s)
    if words or not found.long_ms or median(found.long_ms) >= FAST_MS:
        return found
    longer = _read(address, more, place, LONG[1], stall_s)
    return longer if longer.long_ms else found  # a short context refuses them


def sentinel_prompts(place: int, words: int) -> list[Prompt]:
    """Return pairs of a long prompt, of so many words, and a short one."""
    starts = [f"{number} {place} {words} pace:" for number in range(2 * PAIRS)]
    return [
        Prompt(text=" ".join([start, *islice(cycle(WORDS), SHORT if number % 2 else words)]))
        for number, start in enumerate(starts)
    ]


def _read(address: Address, more: Mapping[str, Any], place: int, words: int, stall_s: float) -> Reading:
    sampling = SamplingParams(max_tokens=2, ignore_eos=True, more=more)
    ms: list[float] = []
    for prompt in sentinel_prompts(place, words):
        load = closed_loop(address, [prompt], 1, sampling, stall_s=stall_s)
        if not load.ended:
            return Reading(words=words)
        ms.append(load.ended[0].ttft_ms)
    return Reading(words=words, long_ms=tuple(ms[::2]), short_ms=tuple(ms[1::2]))
