"""A model's answers to a tree that grows on its device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...planner.records.draft import ROOT_TOKEN
from ...planner.strategies.base import LATE
from ..models.forward import ForwardInput
from ..models.kernels.children import is_supported
from .draft import DeviceChildren, children_by_kernels, children_of, only_children_of
from .layout import LayerLayout

Scores = Callable[[Tensor, Tensor], Tensor]  # (logits, paths (batch, width, depth)) -> scores


class DevicePass:
    """One round's `DeviceScorer`: depth 1 from the committed text, then layer by layer; the host reads nothing."""

    def __init__(
        self,
        *,
        catch_up: Callable[[], Tensor],  # reads the committed text; returns logits (batch, 1, vocabulary) behind it
        feed: Callable[[ForwardInput], Tensor],  # runs a forward; returns logits (batch, width, vocabulary)
        scores: Scores,  # turns logits into those of the distribution that is sampled from behind nodes with such paths
        layout: LayerLayout,  # starts behind the committed text
        device: torch.device,
        is_captured: bool = False,  # whether this is captured for replay, so that the host learns nothing of it
        asks_rates: bool = True,
    ) -> None:
        """Start a round.

        Args:
            asks_rates: whether log-probabilities are read; otherwise an only child has its score, at no cost.
        """
        self.device = device
        self._catch_up, self._feed, self._scores = catch_up, feed, scores
        self._layout, self._news = layout, None if is_captured else News(device)
        self._asks_rates = asks_rates
        self._tokens = self._paths = torch.empty(0, dtype=torch.int64, device=device)

    def root(self, children: int) -> DeviceChildren:
        """Return the first layer's candidates, one row per sequence."""
        logits = self._catch_up()
        self._paths = self._paths.new_empty(len(logits), 1, 0)
        return self._answer(logits, children)

    def expand(self, parents: Tensor, ranks: Tensor, children: int) -> DeviceChildren:
        """Feed the chosen nodes of the layer before and return their children."""
        slots = parents.clamp(min=0)
        tokens = self._tokens.flatten(1).gather(1, slots * self._tokens.shape[2] + ranks)
        if self._news is not None:  # what is captured knows no penalty, and asks for no path
            above = self._paths.gather(1, slots.unsqueeze(2).expand(-1, -1, self._paths.shape[2]))
            self._paths = torch.cat((above, tokens.unsqueeze(2)), dim=2)
        return self._answer(self._feed(self._layout.layer(tokens, parents)), children)

    def none_open(self, is_open: Tensor) -> bool:
        """Return whether it is known already that nothing is drafted any more; see `DeviceScorer`."""
        return self._news is not None and self._news.none_open(is_open)

    def _answer(self, logits: Tensor, count: int) -> DeviceChildren:
        answer = self._children(self._scores(logits, self._paths), count)
        self._tokens = answer.tokens
        no_numbers = answer.log_probs.isnan()  # the host finds out with the tree: no token has this id
        return replace(answer, tokens=answer.tokens.masked_fill(no_numbers, ROOT_TOKEN))

    def _children(self, scores: Tensor, count: int) -> DeviceChildren:
        if self._news is None and is_supported(scores.device, scores.dtype, count):  # captures: launches cost a host
            return children_by_kernels(scores, count)
        return children_of(scores, count) if self._asks_rates or count > 1 else only_children_of(scores)


class News:
    """Whether any sequence still drafts, as far as the host knows.

    On a GPU a flag is copied with every layer, and read once it has arrived, at the latest one layer later. So the GPU
    always has a layer before it, and the host learns at most one forward late that drafting is over. That extra forward
    costs time and changes no tree.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sent: deque[tuple[Tensor, Any]] = (
            deque()
        )  # flags on their way and their events, which torch leaves untyped

    def none_open(self, is_open: Tensor) -> bool:
        """Send `is_open` (any shape); return whether it is known that no sequence drafts any more."""
        if self._device.type == "cpu":
            return not is_open.any().numpy()
        if self._device.type != "cuda":
            return False
        new_event: Any = torch.cuda.Event  # Any: torch leaves it untyped
        event = new_event()
        self._sent.append((is_open.any().to("cpu", non_blocking=True), event))
        event.record(torch.cuda.current_stream(self._device))
        while self._sent and (len(self._sent) > LATE or self._sent[0][1].query()):
            is_any_open, arrived = self._sent.popleft()
            arrived.synchronize()
            if not is_any_open.numpy():
                return True
        return False
