"""The texts in an engine's slots, so that a prompt that begins like one of them is not read again.

A text that has left stays in its slot until another needs it, then moves to an unused one: so free slots hold the
latest texts. Keys and values depend only on the text up to their token.

Source: Zheng et al. 2023, arXiv:2312.07104, Sec. 3: prompts that share a beginning share its keys and values.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from ...planner.kernels.arrays import Ints
from ...planner.records.image_ids import IMAGE_IDS

LEAST = 16  # tokens that are worth a copy: a forward reads as many beside others at little cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """How much of a prompt's beginning a slot holds, and whether that is all of the slot's text."""

    slot: int
    tokens: int
    is_all: bool


class PrefixCache:
    """The texts in an engine's slots, whose keys and values are in the target's cache."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._texts: dict[int, Ints] = {}  # by slot, the one that was used last behind all others

    @property
    def is_on(self) -> bool:
        """Whether it stores texts."""
        return self._is_on

    def length(self, slot: int) -> int:
        """Return how many tokens are stored for a slot."""
        return len(self._texts[slot]) if slot in self._texts else 0

    def keep(self, slot: int, tokens: Many[int], end: int | None = None) -> None:
        """Note that a slot holds the first `end` tokens of a text (None: all), up to an image, whose ids recur."""
        if not self._is_on:
            return
        known = self._texts.pop(slot, np.zeros(0, dtype=np.int64))
        new = np.array(tokens[len(known) : end], dtype=np.int64)
        is_image = new >= IMAGE_IDS
        said = np.concatenate((known, new[: is_image.argmax()] if is_image.any() else new))
        if len(said) >= LEAST:
            self._texts[slot] = said

    def drop(self, slot: int) -> None:
        """Note that a slot is overwritten from its beginning."""
        self._texts.pop(slot, None)

    def take_out(self, *slots: int) -> dict[int, Ints]:
        """Note that slots are overwritten; return all stored texts from before."""
        before = self._texts
        self._texts = {slot: text for slot, text in before.items() if slot not in slots}
        return before

    def put_back(self, before: dict[int, Ints], one: int, other: int) -> None:
        """Restore what `take_out` returned with two slots exchanged, in unchanged order of use."""
        swapped = {one: other, other: one}
        self._texts = {swapped.get(slot, slot): text for slot, text in before.items()}

    def moved(self, source: int, target: int) -> None:
        """Note that a text has moved to another slot, in unchanged order of use."""
        self._texts = {target if slot == source else slot: text for slot, text in self._texts.items() if slot != target}

    def longest(self, prompt: Many[int], near: int) -> Prefix | None:
        """Return the longest prefix of a prompt, without its last token, which must be read; `near` wins ties."""
        if not self._texts:
            return None
        wanted = np.array(prompt[:-1], dtype=np.int64)
        best: Prefix | None = None
        for slot, text in self._texts.items():
            tokens = _shared(wanted, text)
            is_more = best is None or (tokens, slot == near) > (best.tokens, best.slot == near)
            if tokens >= LEAST and is_more:
                best = Prefix(slot=slot, tokens=tokens, is_all=tokens == len(text))
        return best

    def refuge(self, slot: int, free: Collection[int], shared: int = 0) -> int | None:
        """Return where to move the text of a slot that another text needs: an empty slot, or one with an older text."""
        if self.length(slot) < shared + LEAST:
            return None
        empty = [other for other in free if other not in self._texts]
        if empty:
            return max(empty)  # which a growing batch takes last
        oldest = next(other for other in self._texts if other == slot or other in free)
        return None if oldest == slot else oldest


def _shared(one: Ints, other: Ints) -> int:
    most = min(len(one), len(other))
    differ = one[:most] != other[:most]
    return int(differ.argmax()) if differ.any() else most
