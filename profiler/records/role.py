"""What a timed forward was for, and how it ran: the words that keep unlike measurements apart.

Roles:   "verify"    the target reads a tree's tokens behind its context
         "draft"     a drafter reads the tokens of one layer of a tree
         "prefill"   a model reads a prompt: context 0, many tokens
         "head"      a feature-level head reads the target's hidden states
         "exit:K"    the target's first K layers alone, for drafting by early exit
         "loop:D"    a whole drafting loop of D layers; tokens is the width of a layer

Regimes: "eager", "compiled", "cuda-graph"    run here; "eager-transformers" where the model is transformers' own
         "engine:NAME"                        run inside a serving engine
         "imported:NAME"                      measured elsewhere, by other software
         "estimated:REGIME", "bound:REGIME"   computed, never measured
"""

from __future__ import annotations

import re
from typing import Literal

from ...errors import MeasurementError

Origin = Literal["measured", "imported", "estimated", "bound"]

ROLE = re.compile(r"verify|draft|prefill|head|exit:[1-9]\d*|loop:[1-9]\d*")
LOCAL = "eager|eager-transformers|compiled|cuda-graph"
REGIME = re.compile(rf"{LOCAL}|engine:\S+|imported:\S+|(estimated|bound):({LOCAL}|engine:\S+)")


def require_role(role: str) -> None:
    """Raise MeasurementError unless a role is one of the known ones."""
    if not ROLE.fullmatch(role):
        raise MeasurementError(f"surface role is {role!r}; use verify, draft, prefill, head, exit:LAYERS or loop:DEPTH")


def require_regime(regime: str) -> None:
    """Raise MeasurementError unless a regime is one of the known ones."""
    if not REGIME.fullmatch(regime):
        raise MeasurementError(
            f"regime is {regime!r}; use eager, compiled, cuda-graph, engine:NAME, imported:NAME, "
            "or estimated: or bound: before one of them"
        )


def origin_of(regime: str) -> Origin:
    """Return where the numbers of a regime come from."""
    prefix = regime.partition(":")[0]
    if prefix == "imported":
        return "imported"
    if prefix == "estimated":
        return "estimated"
    return "bound" if prefix == "bound" else "measured"
