"""PAD's acceptance in the engine: LOSSY, and only run where the engine was made with `allow_lossy`.

The rule itself is `planner/records/pad_rule.py`; here is the classifier's input. It reads hidden states that the verify
forward leaves in the target's cache, so it costs no forward of the target.

Source: Ziashahabi et al. 2025, PAD, arXiv:2511.00351.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from ...planner.records.fly_rule import accepted_length
from ...planner.records.pad_rule import PadRule
from ..batch.transfer import fetched, sent
from ..models.kv_cache import FeatureCache
from ..models.pivots import BESIDE, features_of
from ..sampling.acceptance import Acceptance, Gates, accept
from .fly import gates_along


class PivotJudge(Protocol):
    """Estimates how likely drafted tokens are pivots."""

    reads: int  # layers of the target that the hidden state it reads has passed

    def chances(self, features: Tensor) -> list[float]:
        """Return the chance in [0, 1] for each row of features (rows, hidden + 2), see `models.pivots.features_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Results of a verify forward for one sequence's chain of n nodes."""

    states: Tensor  # (n, hidden), of the target at each node, after as many layers as the judge reads
    logits: Tensor  # (n, vocabulary), behind each node, raw
    scores: Tensor  # (n, vocabulary), processed; -inf where a token is never drawn


def states_of(cache: FeatureCache, reads: int, slot: int, context: int, nodes: int) -> Tensor:
    """Return (nodes, hidden): the hidden states that a verify forward left behind a sequence's text."""
    width = cache.features.shape[2] // len(cache.after)
    first = cache.after.index(reads) * width
    return cache.features[slot, context : context + nodes, first : first + width]


def accept_by_pivots(
    tokens: Many[int],
    parents: Many[int],
    size: int,
    draws: Many[int],
    *,
    rule: PadRule,
    judge: PivotJudge,
    verified: Verified,
    stop: Collection[int] = (),
) -> tuple[Acceptance, Gates]:
    """Do what `lossy.accept_loosely` does, by a judge of the mismatches that reach the rule's floor."""
    if list(parents[:size]) != list(range(-1, size - 1)):
        return accept(tokens, parents, size, draws), Gates()
    matches = [tokens[place + 1] == draws[place] for place in range(size - 1)]
    foreign = [place for place, fits in enumerate(matches) if not fits and tokens[place + 1] not in stop]
    features, asked = _asked(tokens, foreign, matches, rule, verified)
    chances = judge.chances(features) if asked else []
    passed = [place for place, chance in zip(asked, chances, strict=True) if chance < rule.threshold]
    kept = accepted_length(matches, passed)
    lossy = tuple(place for place in passed if place < kept)
    met = [(place, chance) for place, chance in zip(asked, chances, strict=True) if place <= kept]
    gates = gates_along(
        matches,
        kept,
        pivots=tuple(chance for _, chance in met),
        asked=tuple(tokens[place + 1] for place, _ in met),
    )
    drawn = [*tokens[1 : kept + 1], draws[kept]]
    return Acceptance(nodes=list(range(kept + 1)), drawn=drawn, lossy=lossy), gates


def _asked(
    tokens: Many[int], foreign: Many[int], matches: Many[bool], rule: PadRule, verified: Verified
) -> tuple[Tensor, list[int]]:
    """Return features and places of mismatches that reach the floor and may be drawn, up to the first other one."""
    if not foreign:
        return verified.states[:0], []
    device = verified.logits.device
    rows, ids = sent(np.array([foreign, [tokens[place + 1] for place in foreign]], dtype=np.int64), device)
    found = features_of(verified.states[rows + 1], verified.logits[rows], ids)
    likely = fetched((found[:, -BESIDE] >= rule.floor) & verified.scores[rows, ids].isfinite())
    eligible = [place for place, may in zip(foreign, likely, strict=True) if may]
    reached = accepted_length(matches, eligible)  # were none of them a pivot
    asked = [place for place in eligible if place < reached]
    chosen = np.array([row for row, place in enumerate(foreign) if place in asked], dtype=np.int64)
    return found[sent(chosen, device)], asked
