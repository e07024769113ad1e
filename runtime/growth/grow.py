"""Growing a strategy's tree on a device: node for node what the planner draws from equal scores.

A decision that depends on scores is a mask, so every forward is as wide as any sequence could need. There are as many
as any could need unless the host learns in time that all have stopped; the draft has the widths that ran. Sums behind
thresholds are added in the planner's order on a CPU. A GPU's scan may round their last bit differently, which matters
only where a gain and its threshold agree to 16 digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...planner.records.draft import answered
from ...planner.strategies.base import Strategy
from .draft import DeviceDraft, DeviceScorer
from .torch_ops import TorchOps


def grow_on_device(policy: Strategy, scorer: DeviceScorer, batch: int, held: list[Tensor] | None = None) -> DeviceDraft:
    """Return the trees that `policy` drafts for a batch of sequences; nothing is read from the device.

    `scorer` is fresh in every round; plain decoding needs none. `held` takes the memory that captured growing reads at
    every replay. PlanError if no single model drafts, or the scorer serves another batch.
    """
    ops = TorchOps(batch, scorer.device, scorer.none_open, [] if held is None else held)
    return answered(policy.grow(ops), scorer, batch)


def roots_on_device(batch: int, device: torch.device) -> DeviceDraft:
    """Return trees of the root alone."""
    return TorchOps(batch, device).fixed((), (-1,), (0,), ())
