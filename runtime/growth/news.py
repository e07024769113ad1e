"""What the host learns of a growing tree without waiting for the device."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from ...planner.strategies.base import LATE


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
