"""What the host learns of a growing tree without waiting for the device."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor


class News:
    """Whether any sequence still drafts, as word of it arrives.

    On a GPU word is sent with every layer, and read when it has arrived by itself, so that the host may learn late
    that drafting is over: by then it has asked for forwards that draft for nobody. They cost time and change no tree.
    """

    def __init__(self, device: torch.device) -> None:
        """Know nothing yet."""
        self._device = device
        self._sent: deque[tuple[Tensor, Any]] = (
            deque()
        )  # flags on their way and their events, which torch leaves untyped

    def none_open(self, is_open: Tensor) -> bool:
        """Send word of (any shape) `is_open`; return whether it is known that nobody drafts any more."""
        if self._device.type == "cpu":
            return not is_open.any().numpy()
        if self._device.type != "cuda":
            return False
        new_event: Any = torch.cuda.Event  # Any: torch leaves it untyped
        event = new_event()
        self._sent.append((is_open.any().to("cpu", non_blocking=True), event))
        event.record(torch.cuda.current_stream(self._device))
        while self._sent and self._sent[0][1].query():
            if not self._sent.popleft()[0].numpy():
                return True
        return False
