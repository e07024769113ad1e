"""How often a drafter's chains are the target's own text, depth by depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...planner.kernels.arrays import Bools, Ints
from ...runtime.models.forward import CausalModel
from ..recording.portion import WHOLE
from ..recording.record import AnyPass, pass_of
from .own_text import OwnText, next_tokens

DEPTH = 4  # tokens of a chain


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthAgreement:
    """What a drafter's greedy chains have in common with the target's text."""

    hits: Bools  # (positions,), whether the first token is the target's
    shares: tuple[float, ...]  # by depth: of the tokens that are the target's, where those before them are
    reached: tuple[int, ...]  # by depth: positions at which those before them are


def agreement(drafter: CausalModel, texts: Sequence[OwnText], depth: int = DEPTH) -> DepthAgreement:
    """Return the agreement of chains of `depth` tokens behind every position of the texts."""
    reading = _pass(drafter, texts)
    hits = np.concatenate([_hits_along(reading, text, depth) for text in texts])  # -1: behind the end of a text
    so_far = np.ones(len(hits), dtype=np.bool_)
    shares, reached = list[float](), list[int]()
    for level in hits.T:
        so_far &= level >= 0
        if not so_far.any():
            break
        reached.append(int(so_far.sum()))
        so_far &= level == 1
        shares.append(int(so_far.sum()) / reached[-1])
    return DepthAgreement(hits=hits[:, 0] == 1, shares=tuple(shares), reached=tuple(reached))


def first_hits(drafter: CausalModel, texts: Sequence[OwnText], offset: int = 0) -> Bools:
    """Return (positions,): whether the first drafted token, `offset` added to its id, is the target's."""
    reading = _pass(drafter, texts)
    first = np.concatenate([reading.read(text.read, text.request).tokens[0, :, 0] for text in texts])
    hits: Bools = first + offset == next_tokens(texts)
    return hits


def _pass(drafter: CausalModel, texts: Sequence[OwnText]) -> AnyPass:
    return pass_of(drafter, max(len(text.read) for text in texts), 1)


def _hits_along(reading: AnyPass, text: OwnText, depth: int) -> Ints:
    """Return (positions, depth): 1 where a chain's token is the target's, 0 where not, -1 behind the text's end."""
    own = np.array(text.continuation, dtype=np.int64)
    first = reading.read(text.read, text.request).tokens[0, :, 0]
    chains = np.empty((len(first), depth), dtype=np.int64)
    chains[:, 0] = first
    for start in range(0, len(first), WHOLE.rows):
        rows = np.arange(start, min(start + WHOLE.rows, len(first)))
        reading.stand((len(text.request.prompt) + rows + 1).tolist())
        for level in range(1, depth):
            parents = (level - 1) * len(rows) + np.arange(len(rows))
            chains[rows, level] = reading.expand(parents, chains[rows, level - 1]).tokens[0, :, 0]
    places = 1 + np.arange(len(first))[:, None] + np.arange(depth)
    wanted = own[places.clip(max=len(own) - 1)]
    return np.where(places < len(own), (chains == wanted).astype(np.int64), -1)
