"""The target's own continuations of a set of prompts: what every drafter is measured against."""

from __future__ import annotations

from collections.abc import Sequence

from ..runtime.models.forward import CausalModel
from ..runtime.requests import Request
from ..runtime.setup import PLAIN, always
from .decoding import Family, decode_timed, room_for


def continuations(target: CausalModel, requests: Sequence[Request], *, slots: int = 16) -> list[tuple[int, ...]]:
    """Return what the target itself emits for each request, by plain decoding."""
    batch = min(slots, len(requests))
    family = Family(target=target, drafters={})
    decoder = family.decoder(always(PLAIN), names=(), batch=batch, capacity=room_for(requests, [PLAIN]))
    return list(decode_timed(decoder, requests, batch).texts)
