"""How far every place of a text agrees with its end, updated where the text grows; for other kernels.

After new tokens a place agrees as far as these do; where they all do, the run of the place so many tokens before it is
added. So a place costs a few loads, however long the agreement is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .jitted import on_device, power_of_two

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

PLACES = 1024  # of a text that are looked at together
TOGETHER = 8  # new tokens of it that a place is compared with
FEW_TOKENS = 16  # new ones: no code is made for fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTexts:
    """What a device holds of the texts of a batch."""

    tokens: Tensor  # (batch, room) int32
    runs: Tensor  # (batch, room) int32, tokens up to each place but the last that agree with the text's end
    lengths: Tensor  # (batch,) int64, tokens taken in


def room_of(state: Tensor, batch: int) -> int:
    """Return the most new tokens of a text that a state holds, see `BatchState`."""
    return state.numel() // batch - 2


def told_in(room: int) -> dict[str, int]:
    """Return the constants of code that takes in so many new tokens of each text."""
    return {"places": PLACES, "together": TOGETHER, "room_padded": max(power_of_two(room), FEW_TOKENS)}


@on_device()
def taken_in(
    state: tl.tensor, live: tl.tensor, text: tl.tensor, lengths: tl.tensor, row: tl.tensor, batch: tl.tensor,
    room: tl.tensor, room_padded: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Write a text's new tokens, where `live`; return where it ends, and how many were new."""
    end, held = tl.load(state + row) + 1, tl.load(lengths + row)
    count, new = tl.load(state + batch + row), end - held
    lane = tl.arange(0, room_padded)
    fresh = tl.load(state + 2 * batch + row * room + count - new + lane, mask=lane < new, other=0)
    tl.store(text + held + lane, fresh.to(tl.int32), mask=lane < tl.where(live, new, 0))
    tl.debug_barrier()  # what other threads of this program have stored is read, and all know what was held
    tl.store(lengths + row, end, mask=live)
    return end, new


@on_device()
def runs_up_to(
    text: tl.tensor, runs: tl.tensor, place: tl.tensor, end: tl.tensor, new: tl.tensor, live: tl.tensor,
    together: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the runs of some places of a text, and write them where `live`; call it from the text's end on."""
    run, does_agree = (place * 0).to(tl.int32), place < end - 1
    for first in range(0, new, together):
        ahead = tl.arange(0, together)  # compared at once, since each load is waited for as long as many
        back = first + ahead
        said = tl.load(text + end - 1 - back, mask=back < new, other=-1)
        at = place[:, None] - back[None, :]
        own = tl.load(text + at, mask=does_agree[:, None] & (at >= 0) & (back < new)[None, :], other=-2)
        alike = tl.min(tl.where(own == said[None, :], together, ahead[None, :]), 1)  # up to the first that differs
        run += tl.where(does_agree, alike, 0)
        does_agree = does_agree & (alike == tl.minimum(together, new - first))
    run += tl.load(runs + place - new, mask=does_agree & (place >= new), other=0)
    tl.debug_barrier()  # all have read what is written over now
    tl.store(runs + place, run, mask=place < tl.where(live, end - 1, 0))
    return run
