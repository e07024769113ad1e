"""Drawing of tokens by captured work: `runtime.batch.sampling` and `runtime.batch.noise` in tensors of fixed shape.

Every replay reads settings and seeds from the device; what is captured is a `DrawKind`. A repetition penalty depends on
the text, so no kind supports it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...planner.records.draft import DraftBatch
from ..batch.sequence import Request, Sampling, are_greedy
from ..batch.transfer import sent
from ..models.forward import ForwardInput
from ..models.kernels import gumbel as kernels
from ..models.kernels.best_tokens import Noise, best_of
from .filters import NEVER, kept_by_top_k, masks_of, tempered, with_min_p, with_top_k, with_top_p
from .noise import gumbel

FEW_KEPT = 64  # of top-k: no other work is captured for fewer
SEED, TEMPERATURE, TOP_K, LEFT_OUT, MIN_P, IS_SAMPLED = range(6)  # what is told of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawKind:
    """Processing of a batch's scores before noise; `most_kept` is at least the k of any row's top-k, 0 without one."""

    most_kept: int = 0
    has_top_p: bool = False
    has_min_p: bool = False

    @property
    def masks(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.most_kept > 0 or self.has_top_p or self.has_min_p


def draws_ahead(samplings: Many[Sampling]) -> bool:
    """Return whether captured work may draw for such requests: none penalises tokens of its text."""
    return not any(s.penalises for s in samplings)


def kind_of(samplings: Many[Sampling]) -> DrawKind | None:
    """Return the kind of draws of requests that `draws_ahead` allows; None where all are greedy."""
    if are_greedy(samplings):
        return None
    sampled, most_kept = [s for s in samplings if s.temperature > 0], max(kept_by_top_k(s) for s in samplings)
    return DrawKind(
        most_kept=max(1 << (most_kept - 1).bit_length(), FEW_KEPT) if most_kept else 0,  # not one kind for every k
        has_top_p=any(s.top_p < 1 for s in sampled),
        has_min_p=any(s.min_p > 0 for s in sampled),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeDraws:
    """How tokens are drawn behind trees that the host lays out; see `GraphedModel.best`."""

    draws: DeviceDraws
    most: int  # at least the depth of any node

    def behind(self, logits: Tensor, step: ForwardInput) -> Tensor:
        """Return the token drawn behind every node, (batch, n)."""
        assert step.tree is not None, "a captured forward has a tree"
        starts = step.tree.starts
        return self.draws.drawn(logits, starts + 1, step.positions - starts.unsqueeze(1), self.most)


class TreeSamplers:
    """Captured draws behind trees that the host lays out, by their kind, depth and number."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[tuple[DrawKind, int, int], TreeDraws] = {}

    def of(self, requests: Many[Request], draft: DraftBatch, fed: int, depth: int) -> TreeDraws | None:
        """Return how to draw behind trees of `fed` nodes, padded, at most `depth` deep; None where all are greedy."""
        kind = kind_of(requests)
        if kind is None:
            return None
        most = min(max(depth, 1), fed - 1)  # 1: of padding
        if draft.depths.max() > most:  # of trees that come from elsewhere
            most = fed - 1
        key = kind, most, len(requests)
        if key not in self._known:
            self._known[key] = TreeDraws(draws=DeviceDraws(kind, len(requests), self._device), most=most)
        self._known[key].draws.put(requests)
        return self._known[key]


class DeviceDraws:
    """Draws of one kind for the tokens of a batch."""

    def __init__(self, kind: DrawKind, batch: int, device: torch.device) -> None:
        self.kind = kind
        self._requests: list[Request] = []
        self._numbers = torch.zeros((IS_SAMPLED + 1, batch), dtype=torch.int64, device=device)
        self._floats = self._numbers.view(torch.float64)
        self._floats[TEMPERATURE] = 1.0

    def put(self, requests: Many[Request]) -> None:
        """Set the requests, one per row, of the next replays, without waiting for the device."""
        if len(requests) == len(self._requests) and all(a is b for a, b in zip(requests, self._requests, strict=True)):
            return
        numbers = np.empty(self._numbers.shape, dtype=np.int64)
        settings = numbers.view(np.float64)
        for row, each in enumerate(requests):
            settings[:, row] = _settings_of(each)
            numbers[SEED, row], numbers[IS_SAMPLED, row] = each.seed, each.temperature > 0
        self._numbers.copy_(sent(numbers, self._numbers.device))
        self._requests = list(requests)  # where memory was short the device has what it had

    def drawn(self, logits: Tensor, first: Tensor, depths: Tensor, most: int) -> Tensor:
        """Return draws (batch, n); `first` (batch,) is the place in the text behind each root. Is captured."""
        return best_of(*self.noisy_parts(logits, first, depths, most))

    def noisy_parts(self, logits: Tensor, first: Tensor, depths: Tensor, most: int) -> tuple[Tensor, Noise]:
        """Return scores and the noise to add before the best is drawn; for the arguments see `drawn`."""
        depths = depths.contiguous()
        lines = self._noise(first, depths, most + 1, logits.shape[2])
        temperatures = self._floats[TEMPERATURE]
        if self.kind.masks or logits.dtype == torch.float64:  # only scores over their temperatures are masked
            logits, temperatures = self._scored(logits), torch.ones_like(temperatures)
        return logits, Noise(temperatures=temperatures, lines=lines, depths=depths)

    def drafted(self, logits: Tensor, places: Tensor) -> Tensor:
        """Return a drafter's scores behind nodes of one depth as `sampling.draft_scores` does; is captured."""
        lines = self._noise(places, torch.zeros_like(places).unsqueeze(1), 1, logits.shape[2])
        scores = self._scored(logits.float()) + lines
        return scores.clamp(min=NEVER) if self.kind.masks else scores

    def _scored(self, logits: Tensor) -> Tensor:
        scores = logits if logits.dtype == torch.float64 else logits.float()
        scores = tempered(scores, self._column(TEMPERATURE, scores))
        if self.kind.most_kept:
            counts = self._column(TOP_K, scores)
            kept = with_top_k(scores, counts.clamp(min=1), self.kind.most_kept)
            scores = torch.where(counts > 0, kept, scores)
        if self.kind.has_top_p:
            left_out = self._column(LEFT_OUT, scores)
            scores = torch.where(left_out > 0, with_top_p(scores, left_out), scores)
        if self.kind.has_min_p:
            least = self._column(MIN_P, scores)
            scores = torch.where(least > 0, with_min_p(scores, least), scores)
        return scores

    def _noise(self, first: Tensor, depths: Tensor, places: int, vocabulary: int) -> Tensor:
        """Return noise (batch, places, vocabulary) from place `first` of each text on, for nodes of such depths."""
        seeds, is_sampled = self._numbers[SEED], self._numbers[IS_SAMPLED]
        if kernels.is_supported(first.device):
            numbers = depths, seeds, is_sampled, first.contiguous()
            return kernels.noise_behind(*numbers, places=places, vocabulary=vocabulary)
        each = first.unsqueeze(1) + torch.arange(places, device=first.device)
        return torch.where(is_sampled.view(-1, 1, 1) > 0, gumbel(seeds.unsqueeze(1), each, vocabulary), 0.0)

    def _column(self, setting: int, like: Tensor) -> Tensor:
        return self._floats[setting].to(like.dtype).view(-1, 1, 1)


def _settings_of(request: Request) -> tuple[float, ...]:
    temperature, left_out, min_p = masks_of(request)
    return 0.0, temperature or 1.0, kept_by_top_k(request), left_out, min_p, 0.0
