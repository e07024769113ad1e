"""FLy's acceptance in the decoder: LOSSY, and never run unless the decoder was made with `allow_lossy`.

The rule is `planner/records/fly_rule.py`; here are the target's entropies, and what is said of every round. Only the
gates that a window lets through are asked, so that a round without such a mismatch costs nothing.

Source: Li et al. 2025, FLy, arXiv:2511.22972.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..planner.records.fly_rule import FlyRule, accepted_length, confirmed_mismatches
from .transfer import fetched_together, sent
from .walk import Acceptance, accept


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What the rule met along one sequence's chain.

    Attributes:
        matched: drafted tokens that were the target's own, up to where the chain ended.
        mismatched: those that were not; the one that ended it is among them.
        entropies: of every gate of FLy that was asked.
        pivots: the chance of being a pivot of every token that PAD's classifier was asked about.
        asked: these tokens.
    """

    matched: int = 0
    mismatched: int = 0
    entropies: tuple[float, ...] = ()
    pivots: tuple[float, ...] = ()
    asked: tuple[int, ...] = ()


def gates_along(
    matches: Many[bool],
    kept: int,
    *,
    entropies: tuple[float, ...] = (),
    pivots: tuple[float, ...] = (),
    asked: tuple[int, ...] = (),
) -> Gates:
    """Return what a rule met along a chain of which it let `kept` tokens be."""
    looked_at = min(kept + 1, len(matches))
    matched = sum(matches[:looked_at])
    return Gates(matched=matched, mismatched=looked_at - matched, entropies=entropies, pivots=pivots, asked=asked)


def entropies_of(scores: Tensor, rule: FlyRule) -> Tensor:
    """Return (rows,) float64: the entropy of each row's distribution by the rule's definition.

    Args:
        scores: (rows, vocabulary), processed; -inf where a token is never drawn.
        rule: whose definition counts.
    """
    chances = scores.double().softmax(-1)
    if rule.entropy == "top-nats":
        chances = chances.topk(min(rule.top, scores.shape[-1]), dim=-1).values
    entropies: Tensor = torch.special.entr(chances).sum(-1)
    return entropies / math.log(scores.shape[-1]) if rule.entropy == "normalised" else entropies


def accept_loosely(
    tokens: Many[int],
    parents: Many[int],
    size: int,
    draws: Many[int],
    *,
    rule: FlyRule,
    scores: Tensor,
    stop: Collection[int] = (),
) -> tuple[Acceptance, Gates]:
    """Return the part of a drafted chain that stays by the rule, and what the rule met.

    A token that may never be drawn, and one that would end the text, stay only where the target says them itself. A
    draft that is no chain is accepted without loss.

    Args:
        tokens: (n,) drafted ids; tokens[0] is the root's and is not read.
        parents: (n,) parents before children.
        size: real nodes, root included; the rest is padding.
        draws: (n,) the target's draw behind each node.
        rule: of acceptance.
        scores: (n, vocabulary), the target's processed scores behind each node.
        stop: token ids that end the text.
    """
    if list(parents[:size]) != list(range(-1, size - 1)):
        return accept(tokens, parents, size, draws), Gates()
    matches = [tokens[place + 1] == draws[place] for place in range(size - 1)]
    asked = [place for place in confirmed_mismatches(matches, rule) if tokens[place + 1] not in stop]
    reached = accepted_length(matches, asked)  # were all gates open
    asked = [place for place in asked if place < reached]
    entropies, drawable = _told(scores, asked, [tokens[place + 1] for place in asked], rule)
    passed = [
        place
        for place, entropy, may in zip(asked, entropies, drawable, strict=True)
        if may and entropy >= rule.threshold
    ]
    kept = accepted_length(matches, passed)
    lossy = tuple(place for place in passed if place < kept)
    met = tuple(value for place, value in zip(asked, entropies, strict=True) if place <= kept)
    gates = gates_along(matches, kept, entropies=met)
    drawn = [*tokens[1 : kept + 1], draws[kept]]
    return Acceptance(nodes=list(range(kept + 1)), drawn=drawn, lossy=lossy), gates


def _told(scores: Tensor, places: Many[int], tokens: Many[int], rule: FlyRule) -> tuple[list[float], list[bool]]:
    """Return the entropy at each place, and whether the token drafted behind it may be drawn at all."""
    if not places:
        return [], []
    rows, ids = sent(np.array([places, tokens], dtype=np.int64), scores.device)
    entropies, drawable = fetched_together(entropies_of(scores[rows], rule), scores[rows, ids].isfinite())
    return entropies.tolist(), drawable.tolist()
