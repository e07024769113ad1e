"""Which texts lie in a decoder's slots, so that a prompt that begins like one of them is not read anew.

A text that has left stays where it lay until its slot is given to another, and moves then to one that nobody uses: so
slots that stand free keep the latest texts. Keys and values are functions of the text up to their token alone.

Source: Zheng et al. 2023, arXiv:2312.07104, Sec. 3: prompts that share a beginning share its keys and values.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from ..planner.kernels.arrays import Ints
from ..planner.records.image_ids import IMAGE_IDS

LEAST = 16  # tokens that are worth a copy: a forward reads as many beside others at little cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """How much of a prompt's beginning lies in a slot, and whether that is all of the text there."""

    slot: int
    tokens: int
    is_all: bool


class PrefixCache:
    """The texts in a decoder's slots: of those that run the prompts, of those that have left all that was read.

    Invariant: of every slot in `_texts` the target's cache holds the keys and values of all of these tokens.
    """

    def __init__(self, *, is_on: bool) -> None:
        """Hold nothing, and for good unless it is on."""
        self._is_on = is_on
        self._texts: dict[int, Ints] = {}  # by slot, the one that was used last behind all others

    @property
    def is_on(self) -> bool:
        """Whether it holds texts."""
        return self._is_on

    def length(self, slot: int) -> int:
        """Return how many tokens are kept of a slot."""
        return len(self._texts[slot]) if slot in self._texts else 0

    def keep(self, slot: int, tokens: Many[int], end: int | None = None) -> None:
        """Take note that a slot holds the keys and values of a text's tokens, up to the first image.

        An image's ids may stand for another one tomorrow.

        Args:
            slot: any.
            tokens: of the text, which begins with what was kept of the slot.
            end: how many of them; None: all.
        """
        if not self._is_on:
            return
        known = self._texts.pop(slot, np.zeros(0, dtype=np.int64))
        new = np.array(tokens[len(known) : end], dtype=np.int64)
        is_image = new >= IMAGE_IDS
        said = np.concatenate((known, new[: is_image.argmax()] if is_image.any() else new))
        if len(said) >= LEAST:
            self._texts[slot] = said

    def drop(self, slot: int) -> None:
        """Take note that a slot is written to from its beginning."""
        self._texts.pop(slot, None)

    def take_out(self, *slots: int) -> dict[int, Ints]:
        """Take note that slots are written to; return what is kept of all, until then."""
        before = self._texts
        self._texts = {slot: text for slot, text in before.items() if slot not in slots}
        return before

    def put_back(self, before: dict[int, Ints], one: int, other: int) -> None:
        """Take note that two slots have exchanged what `take_out` returned, which was not used for that."""
        swapped = {one: other, other: one}
        self._texts = {swapped.get(slot, slot): text for slot, text in before.items()}

    def moved(self, source: int, target: int) -> None:
        """Take note that what lay in one slot lies in another now; it was not used for that."""
        self._texts = {target if slot == source else slot: text for slot, text in self._texts.items() if slot != target}

    def longest(self, prompt: Many[int], near: int) -> Prefix | None:
        """Return where most of a prompt lies: all but its last token at most, which has to be read to be answered.

        Args:
            prompt: that is to be read.
            near: the slot it is to lie in; of several that hold as much this one is taken.
        """
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
        """Return where the text of a slot may move that another needs: where none lies, or an older one.

        None where it is the oldest, or hardly more than the other one begins with.

        Args:
            slot: that is needed.
            free: others that may be written to.
            shared: tokens with which the other text begins as this one does.
        """
        if self.length(slot) < shared + LEAST:
            return None
        empty = [other for other in free if other not in self._texts]
        if empty:
            return max(empty)  # which a growing batch takes last
        oldest = next(other for other in self._texts if other == slot or other in free)
        return None if oldest == slot else oldest


def _shared(one: Ints, other: Ints) -> int:
    """Return with how many tokens two texts begin alike."""
    most = min(len(one), len(other))
    differ = one[:most] != other[:most]
    return int(differ.argmax()) if differ.any() else most
