"""The forwards of a draft that grows on a GPU, where the host reads no score: how wide they are, and how many run.

A width that hangs on scores is not known to the host, so a forward is as wide as any sequence could need. That all
sequences have stopped the host learns one forward late (`runtime/growth/news.py`), and not at all where a whole draft
of few forwards is captured work (`runtime/growth/captured.py`): then all run that any sequence could need.
"""

from __future__ import annotations

import numpy as np

from ..policies import (
    CastPolicy,
    ChainPolicy,
    ConfidentChainPolicy,
    Eagle2Policy,
    HybridPolicy,
    LookupPolicy,
    OptTreePolicy,
    StaticPolicy,
    SuffixPolicy,
    SuffixTreePolicy,
    TalonPolicy,
    TreePolicy,
)
from .draft import Ints

LATE = 1  # forwards that draft for nobody, since word of the end is still on its way
MOST_GROWN = 64  # nodes of a suffix tree that a GPU grows by itself; larger ones are the host's
MOST_CAPTURED = 16  # forwards of a draft that is captured whole: of more, too many would draft for nobody


def is_captured_whole(policy: TreePolicy) -> bool:
    """Return whether a draft whose forwards hang on scores is captured work where forwards are."""
    return 0 < len(most_widths(policy)) <= MOST_CAPTURED


def copied_on_gpu(policy: TreePolicy) -> SuffixPolicy | SuffixTreePolicy | LookupPolicy | None:
    """Return what of a policy copies out of the text, which a GPU does by itself where rounds are captured.

    Its rounds run ahead of the host, as large as any might be: a hybrid's model drafts in each of them.
    """
    copies = policy.text if isinstance(policy, HybridPolicy) else policy
    if isinstance(copies, LookupPolicy):
        return copies if copies.occurrence != "mapped" else None
    if isinstance(copies, SuffixTreePolicy):
        return copies if copies.nodes <= MOST_GROWN else None
    return copies if isinstance(copies, SuffixPolicy) else None


def fixed_widths(policy: ChainPolicy | StaticPolicy | Eagle2Policy) -> tuple[int, ...]:
    """Return the nodes per sequence of all forwards of a draft that hangs on no score."""
    match policy:
        case ChainPolicy():
            return (1,) * policy.length
        case StaticPolicy():
            return policy.tree.widths
        case Eagle2Policy():
            return _layers(policy.depth + 1, policy.top_k, [policy.top_k] * policy.depth)


def widths_on_gpu(policy: TreePolicy, widths: Ints, *, is_captured: bool = False) -> Ints:
    """Return (rounds, forwards): nodes per sequence of each drafter forward as it runs, 0 = does not.

    Args:
        policy: that drafts.
        widths: (rounds, forwards), what sequences need; what is drafted without looking at scores runs as it is.
        is_captured: whether whole drafts are, of policies that `is_captured_whole` tells.
    """
    most = np.array(most_widths(policy), dtype=np.int64)
    if not len(most):
        return widths
    needed = (widths > 0).sum(axis=1)
    is_whole = is_captured and is_captured_whole(policy)
    run = np.where(needed > 0, len(most) if is_whole else needed + LATE, 0)
    return np.where(np.arange(len(most)) < run[:, None], most, 0)


def most_widths(policy: TreePolicy) -> tuple[int, ...]:
    """Return the nodes per sequence of all forwards that can run; none where these do not hang on scores."""
    match policy:
        case ConfidentChainPolicy():
            return (1,) * policy.length
        case CastPolicy():
            return (1,) + (policy.max_width,) * (policy.max_depth - 1)
        case OptTreePolicy():
            return _layers(policy.max_depth, policy.children, [policy.nodes] * policy.max_depth)
        case TalonPolicy():
            return _layers(policy.max_depth, policy.children, most_expanded(policy))
        case _:
            return ()


def most_expanded(policy: TalonPolicy) -> list[int]:
    """Return the most nodes that any tree of TALON's expands of its layers 1, 2 and so on.

    Every layer before one has a node at least, and one place stays free.
    """
    most = list(range(policy.nodes - 2, 0, -1))
    return [min(most[0], policy.top_k), *most[1:]] if most else []


def _layers(max_depth: int, children: int, most: list[int]) -> tuple[int, ...]:
    """Return the widths of the root and of layers that have so many candidates per node above, and are bounded."""
    widths = [1]
    for bound in most[: max_depth - 1]:
        widths.append(min(bound, widths[-1] * children))
    return tuple(widths)
