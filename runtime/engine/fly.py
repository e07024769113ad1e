"""FLy's acceptance in the engine: LOSSY, and only run where the engine was made with `allow_lossy`.

The rule itself is `planner/records/fly_rule.py`; here are the target's entropies, and a round's statistics. Only gates
within a window are evaluated, so a round without such a mismatch costs nothing.

Source: Li et al. 2025, FLy, arXiv:2511.22972.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor

from ...planner.records.fly_rule import FlyRule, accepted_length, confirmed_mismatches
from ..batch.transfer import fetched_together, sent
from ..sampling.acceptance import Acceptance, Gates, accept


def gates_along(
    matches: Many[bool],
    kept: int,
    *,
    entropies: tuple[float, ...] = (),
    pivots: tuple[float, ...] = (),
    asked: tuple[int, ...] = (),
) -> Gates:
    """Return the gates along a chain of which a rule accepted `kept` tokens."""
    looked_at = min(kept + 1, len(matches))
    matched = sum(matches[:looked_at])
    return Gates(matched=matched, mismatched=looked_at - matched, entropies=entropies, pivots=pivots, asked=asked)


def entropies_of(scores: Tensor, rule: FlyRule) -> Tensor:
    """Return (rows,) float64: each row's entropy by the rule's definition, from processed scores."""
    chances = scores.double().softmax(-1)
    if rule.entropy == "top-nats":
        chances = chances.topk(min(rule.top, scores.shape[-1]), dim=-1).values
    entropies: Tensor = torch.special.entr(chances).sum(-1)
    return entropies / math.log(scores.shape[-1]) if rule.entropy == "normalised" else entropies


def accept_loosely(
    tokens: Many[int],
    parents: Many[int],
    size: int,  # real nodes, root included; the rest is padding
    draws: Many[int],  # (n,) the target's draw behind each node
    *,
    rule: FlyRule,
    scores: Tensor,  # (n, vocabulary), the target's processed scores behind each node
    stop: Collection[int] = (),  # token ids that end the text
) -> tuple[Acceptance, Gates]:
    """Return the part of a drafted chain that the rule accepts, and the gates it met.

    Tokens that may never be drawn, or end the text, are accepted only where they are the target's own. A draft that is
    not a chain is accepted losslessly.

    Args:
        tokens, parents: (n,) drafted ids, the root's ignored; parents before children.
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
