"""What a timed forward was for, and how it ran: the words that keep unlike measurements apart.

Roles:   "verify"    the target reads a tree's tokens behind its context
         "draft"     a drafter reads the tokens of one layer of a tree
         "prefill"   a model reads a prompt: context 0, many tokens
         "read"      a target or a drafter reads a whole prompt, as it does where a sequence joins: context 0
         "head"      a feature-level head reads the target's hidden states
         "block"     a block drafter reads what was committed and says a whole round's tokens in the same forward
         "self"      a target's own first layers, behind an imitation network, read the tokens of one layer of a tree
         "resume"    a target reads a chain whose nodes but the last its own exit has read: that one through the exit's
                     layers, all of them through the others; told by the exit, tokens counts the root
         "exit:K"    the target's first K layers alone, for drafting by early exit
         "loop:D"    a whole drafting loop of D layers; tokens is the width of a layer
         "round:WHO" a whole round of another engine, with what it drafts and who drafts it; tokens counts the root

Regimes: "eager", "compiled", "cuda-graph"    run here; "eager-transformers" where the model is transformers' own
         "engine:NAME"                        run inside a serving engine
         "server:NAME-VERSION@FINGERPRINT"    rounds under load of a server that people run, its settings as a hash
         "imported:NAME"                      measured elsewhere, by other software
         "estimated:REGIME", "bound:REGIME"   computed, never measured
"""

from __future__ import annotations

import re
from typing import Literal

from ...errors import MeasurementError

Origin = Literal["measured", "imported", "estimated", "bound"]

HEAD, BLOCK, SELF = "head", "block", "self"
DRAFT_ROLES = ("draft", HEAD, BLOCK, SELF)  # of a drafter's forwards
RESUME = "resume"
READ = "read"
ROUND = "round:"  # before who drafts in a whole round of another engine
ROLE = re.compile(rf"verify|prefill|{READ}|{'|'.join(DRAFT_ROLES)}|{RESUME}|exit:[1-9]\d*|loop:[1-9]\d*|{ROUND}\S+")
CAPTURED = "cuda-graph"  # the regime in which every shape is captured by itself
EAGER, TRANSFORMERS, COMPILED = "eager", "eager-transformers", "compiled"
LOCAL = f"{EAGER}|{TRANSFORMERS}|{COMPILED}|{CAPTURED}"
REGIME = re.compile(rf"{LOCAL}|(engine|server|imported):\S+|(estimated|bound):({LOCAL}|engine:\S+)")


def require_role(role: str) -> None:
    """Raise MeasurementError unless a role is one of the known ones."""
    if not ROLE.fullmatch(role):
        raise MeasurementError(
            f"surface role is {role!r}; use verify, draft, prefill, read, head, block, self, resume, exit:LAYERS, "
            "loop:DEPTH or round:WHO"
        )


def require_regime(regime: str) -> None:
    """Raise MeasurementError unless a regime is one of the known ones."""
    if not REGIME.fullmatch(regime):
        raise MeasurementError(
            f"regime is {regime!r}; use eager, compiled, cuda-graph, engine:NAME, server:NAME, imported:NAME, "
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


def running_of(regime: str) -> str:
    """Return the `LOCAL` regime of a process whose forwards are of a regime; "" where that is not known.

    Transformers' own forwards run eagerly beside others. A bound holds however forwards run.
    """
    ran = regime.removeprefix("estimated:")
    if ran == TRANSFORMERS:
        return EAGER
    return ran if ran in (EAGER, COMPILED, CAPTURED) else ""


def run_beside(regime: str, role: str, target_regime: str) -> bool:
    """Return whether forwards of a role and a target's regime can be of one process, as far as is known.

    Exits and block drafters are never captured: they run eagerly beside captured targets, too.
    """
    if role in (BLOCK, SELF, RESUME) and running_of(target_regime) == CAPTURED:
        return running_of(regime) in (EAGER, "")
    return run_alike(regime, target_regime)


def run_alike(*regimes: str) -> bool:
    """Say whether forwards of these regimes can be of one process, as far as is known."""
    return len({running_of(regime) for regime in regimes} - {""}) <= 1
