"""Growing a strategy's tree on a device: node for node what the planner draws from equal scores.

A decision that depends on scores is a mask, so every forward is as wide as any sequence could need. There are as many
as any could need unless the host learns in time that all have stopped; the draft has the widths that ran. Sums behind
thresholds are added in the planner's order on a CPU. A GPU's scan may round their last bit differently, which matters
only where a gain and its threshold agree to 16 digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...planner.records.draft import ROOT_TOKEN, answered
from ...planner.records.ops import Numbers
from ...planner.strategies.base import Strategy
from ..batch.transfer import sent
from .draft import DeviceDraft, DeviceScorer, rooted


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


@dataclass(frozen=True, slots=True)
class TorchOps:
    """The operations on a device; see `planner.records.ops.Ops`.

    Attributes:
        held: memory that the operations read, which captured work reads at every replay.
    """

    batch: int
    device: torch.device
    none_open: Callable[[Tensor], bool] = lambda _: False  # see `DeviceScorer`
    held: list[Tensor] = field(default_factory=list)

    def row(self, values: Numbers) -> Tensor:
        kept = _row(values, type(values[0]).__name__, self.device)
        self.held.append(kept)
        return kept

    def rows(self, values: Numbers) -> Tensor:
        return self.row(values).expand(self.batch, -1)

    def best(self, scores: Tensor, count: int) -> Tensor:
        return (-scores).sort(dim=1, stable=True).indices[:, :count]

    def take(self, values: Tensor, places: Tensor) -> Tensor:
        return values.gather(1, places)

    def where(self, condition: Tensor, value: Tensor | float, other: Tensor | float) -> Tensor:
        return torch.where(condition, value, other)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(tuple(parts), dim=1)

    def double(self, values: Tensor) -> Tensor:
        return values.double()

    def exp(self, values: Tensor) -> Tensor:
        return values.double().exp()

    def marked(self, places: Tensor, is_real: Tensor, columns: int) -> Tensor:
        targets = torch.where(is_real, places, columns)  # one column more, for what is not real
        room = torch.zeros(self.batch, columns + 1, dtype=torch.bool, device=self.device)
        return room.scatter(1, targets, True)[:, :columns]

    def used(self, places: Tensor) -> Tensor:
        return places

    def stopped(self, is_open: Tensor) -> bool:
        return self.none_open(is_open)

    def located(self, kept: Tensor, children: int) -> tuple[Tensor, Tensor]:
        place = kept.clamp(min=0)
        return (place // children).masked_fill(kept < 0, -1), place % children

    def added(self, kept: Tensor, start: int, above: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        scores = above.gather(1, kept.clamp(min=0)).unsqueeze(2) + log_probs
        parents = (kept + start).unsqueeze(2).expand_as(log_probs)
        return scores.masked_fill((kept < 0).unsqueeze(2), -torch.inf).flatten(1), parents.flatten(1)

    def fixed(
        self, drafted: Sequence[Tensor], parents: Sequence[int], depths: Sequence[int], widths: tuple[int, ...]
    ) -> DeviceDraft:
        return DeviceDraft(
            tokens=self.concat((self.rows((ROOT_TOKEN,)), *drafted)),
            parents=self.rows(tuple(parents)),
            depths=self.rows(tuple(depths)),
            sizes=self.rows((len(parents),))[:, 0],
            widths=widths,
        )

    def best_tree(
        self,
        scores: Tensor,
        tokens: Tensor,
        parents: Tensor,
        starts: Sequence[int],
        count: int,
        widths: tuple[int, ...],
    ) -> DeviceDraft:
        places = self.best(scores, count)
        is_chosen = self.marked(places, torch.ones_like(places, dtype=torch.bool), scores.shape[1])
        return self.tree(tokens, parents, starts, is_chosen, places.shape[1], widths)

    def tree(
        self,
        tokens: Tensor,
        parents: Tensor,
        starts: Sequence[int],
        is_chosen: Tensor,
        most: int,
        widths: tuple[int, ...],
    ) -> DeviceDraft:
        places = is_chosen.cumsum(dim=1)  # node of each chosen candidate
        above = places.gather(1, parents.clamp(min=0)).masked_fill(parents < 0, 0)
        targets = (places - 1).masked_fill(~is_chosen, most)  # one column more, for what is not chosen

        def placed(values: Tensor, padding: int) -> Tensor:
            room = torch.full((self.batch, most + 1), padding, dtype=values.dtype, device=self.device)
            return room.scatter(1, targets, values)[:, :most]

        ends = (*starts[1:], tokens.shape[1])
        layers = zip(starts, ends, strict=True)
        depths = [torch.full_like(tokens[:, start:end], depth) for depth, (start, end) in enumerate(layers, start=1)]
        drafted = placed(tokens, ROOT_TOKEN), placed(above, 0), placed(self.concat(depths), 1)
        return rooted(*drafted, places[:, -1] + 1, widths)


@lru_cache(maxsize=1024)
def _row(values: Numbers, kind: str, device: torch.device) -> Tensor:
    """Return (1, values) on a device, cached: a tree is grown every round. `kind` tells 1 from 1.0 and from True."""
    return sent(np.array(values)[None], device)
