"""The target's own continuations of a set of prompts: what every drafter is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import NoRoomError
from ...profiler.protocols import Parts
from ...runtime.batch.faults import memory_for
from ...runtime.batch.sequence import Request
from ...runtime.batch.step_config import PLAIN, always
from ...runtime.models.forward import CausalModel
from ..measuring.decoding import Family, decode_timed, room_for
from ..parts import kept_or_made

SLOTS = 16  # prompts decoded at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """What the target emitted for some prompts, in their order."""

    texts: tuple[tuple[int, ...], ...]


def continuations(
    target: CausalModel, requests: Sequence[Request], *, slots: int = SLOTS, parts: Parts | None = None
) -> list[tuple[int, ...]]:
    """Return the target's plain-decoded continuation of each request; NoRoomError where memory lacks room for one text.

    Prompts are decoded in groups of `slots`. A resumed run decodes the missing groups in the same company, so that not
    even a rounding differs. Where memory has no room for a group, it and later ones are halved. `parts` get finished
    groups by the place of the first prompt, as "continuation from 16".
    """
    found: list[tuple[int, ...]] = []
    while len(found) < len(requests):
        group = requests[len(found) : len(found) + slots]
        name = f"continuation from {len(found)}"  # "continuation 1" of older profiles is their second group
        try:
            with memory_for("the target's own text", "free some, or ask for shorter texts with --max-new-tokens"):
                made = kept_or_made(parts, name, Continued, partial(_continued, target, group))
        except NoRoomError:
            if len(group) == 1:
                raise
            slots = len(group) // 2
        else:
            found.extend(made.texts)
    return found


def _continued(target: CausalModel, requests: Sequence[Request]) -> Continued:
    family = Family(target=target, drafters={})
    decoder = family.decoder(always(PLAIN), names=(), batch=len(requests), capacity=room_for(requests, [PLAIN]))
    return Continued(texts=decode_timed(decoder, requests, len(requests)).texts)
