"""Gumbel noise that is a function of (seed, position, token), alike for the target and its drafters.

The target draws argmax(scores + noise). A drafter that adds the same noise to its own scores proposes what it would
draw at that place. The closer its distribution is to the target's, the more often both draws agree: for distributions p
and q at least (1 - d) / (1 + d) of the time, d being their total variation distance.

Source: Gumbel-max trick; shared noise of drafter and target: Daliri, Musco, Suresh 2024, arXiv:2408.07978, Theorem 1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..models.kernels.hashes import BELOW_ONE, GOLDEN, MULTIPLIER_1, MULTIPLIER_2, POSITION_STEP
from ..models.kernels.host_noise import draw_noise
from ..models.kernels.threads import shared_by


def gumbel(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Return (..., vocabulary) standard Gumbel noise, the same on every device; the arguments are broadcast."""
    if seeds.is_cpu and positions.is_cpu:
        own, places = np.broadcast_arrays(seeds.numpy(), positions.numpy())
        noise = torch.empty((*own.shape, vocabulary))
        rows = noise.view(own.size, vocabulary).numpy()
        draw_noise(own.ravel(), places.ravel(), rows, shared_by(torch.get_num_threads()))
        return noise
    return gumbel_of(seeds, positions, torch.arange(vocabulary, device=seeds.device))


def gumbel_of(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return (..., any): the noise of only these tokens (..., any), equal to `gumbel` up to last bits."""
    key = _mix(_mix(seeds + GOLDEN) + positions * POSITION_STEP)
    bits = _mix(key.unsqueeze(-1) + (tokens + 1) * GOLDEN)
    return -torch.log(-torch.log(open_unit(bits))).float()


def open_unit(bits: Tensor) -> Tensor:
    """Return numbers from 64 random bits each, in (0, 1) without ends: else noise is infinite and masks leak."""
    return ((((bits >> 11) & (2**53 - 1)).double() + 0.5) * 2.0**-53).clamp_(max=BELOW_ONE)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ ((z >> 30) & (2**34 - 1))) * MULTIPLIER_1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * MULTIPLIER_2
    return z ^ ((z >> 31) & (2**33 - 1))
