"""The noise of `runtime.batch.noise` in one launch, bit for bit: torch takes some twenty, each in 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .hashes import BELOW_ONE, GOLDEN, MULTIPLIER_1, MULTIPLIER_2, POSITION_STEP
from .jitted import on_device, power_of_two, runs_triton

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

CHUNK, WARPS = 512, 4  # tokens whose noise a program draws
FEW_NODES = 16  # of a tree: no code is made for fewer


def is_supported(device: torch.device) -> bool:
    """Return whether the kernel runs on a device."""
    return runs_triton(device)


def noise_behind(
    depths: Tensor, seeds: Tensor, is_sampled: Tensor, first: Tensor, *, places: int, vocabulary: int
) -> Tensor:
    """Return standard Gumbel noise, (batch, places, vocabulary) float32; 0 where a row is not sampled.

    `depths` (batch, n) int64, contiguous, is below `places`; depths without a node are left unwritten, as trees may be
    deeper than they are. The rest is (batch,) int64; `first` is the place in the text of depth 0.
    """
    noise = torch.empty((len(seeds), places, vocabulary), dtype=torch.float32, device=seeds.device)
    assert seeds.is_contiguous() and is_sampled.is_contiguous() and first.is_contiguous(), "a number per row"
    assert depths.is_contiguous() and len(depths) == len(seeds), "a row of nodes per row"
    nodes = depths.shape[1]
    _draw[-(-vocabulary // CHUNK), places, len(seeds)](
        depths, seeds, is_sampled, first, noise, nodes, places, vocabulary,
        padded=max(power_of_two(nodes), FEW_NODES), chunk=CHUNK, golden=GOLDEN, position_step=POSITION_STEP,
        multiplier_1=MULTIPLIER_1, multiplier_2=MULTIPLIER_2, below_one=BELOW_ONE,
        num_warps=WARPS, **chained(seeds.device),
    )  # fmt: skip
    return noise


@on_device()
def _mixed(
    z: tl.tensor,
    multiplier_1: tl.constexpr, multiplier_2: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return int64 numbers mixed by splitmix64's finaliser."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * multiplier_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * multiplier_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@on_device("nodes", "places", "vocabulary", unaligned=("depths", "seeds", "is_sampled", "first"))
def _draw(
    depths: tl.tensor, seeds: tl.tensor, is_sampled: tl.tensor, first: tl.tensor, noise: tl.tensor, nodes: tl.tensor,
    places: tl.tensor, vocabulary: tl.tensor,
    padded: tl.constexpr, chunk: tl.constexpr, golden: tl.constexpr, position_step: tl.constexpr,
    multiplier_1: tl.constexpr, multiplier_2: tl.constexpr, below_one: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Write the noise of some tokens at one place of one text, if a node is there."""
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, ahead, node = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.arange(0, padded)
    depth = tl.load(depths + row * nodes + node, mask=node < nodes, other=-1)
    if tl.min(tl.where(depth == ahead, 0, 1), 0) > 0:
        return
    token = (tl.program_id(0) * chunk + tl.arange(0, chunk)).to(tl.int64)
    seed, place = token * 0 + tl.load(seeds + row), token * 0 + tl.load(first + row) + ahead
    key = _mixed(_mixed(seed + golden, multiplier_1, multiplier_2) + place * position_step, multiplier_1, multiplier_2)
    bits = _mixed(key + (token + 1) * golden, multiplier_1, multiplier_2)
    unit = (((bits >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2^-53
    unit = tl.minimum(unit, tl.full((chunk,), below_one, tl.float64))
    drawn = tl.where(tl.load(is_sampled + row) > 0, (-tl.log(-tl.log(unit))).to(tl.float32), 0.0)
    tl.store(noise + (row * places + ahead) * vocabulary + token, drawn, mask=token < vocabulary)
