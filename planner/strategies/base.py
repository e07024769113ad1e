"""What every strategy says of itself, and how people read the code that documents keep of it.

A strategy's `code` says every setting in one line; documents keep it, so it never changes. A label is read off the
code, so that documents without the strategy itself, and of older versions, have one too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from ...errors import PlanError
from ..records.draft import Ints
from ..records.tree import TokenTree

if TYPE_CHECKING:
    from .text import TextPolicy

LOOKUP = "lookup"  # the drafter that is the text itself
LATE = 1  # forwards that draft for nobody on a GPU, since word of the end is still on its way
MOST_CAPTURED = 16  # forwards of a draft that is captured whole: of more, too many would draft for nobody

Source: TypeAlias = Literal["none", "text", "model", "models", "both"]
Namer: TypeAlias = Callable[[re.Match[str], str | None], str]  # a code's parts, and who drafts -> what people read

_NAMERS: dict[str, Namer] = {}  # by the pattern of codes, of every strategy that is imported


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How deep, wide and large the trees of a strategy can become.

    Attributes:
        depth: most drafted tokens on one path, so most that one round can accept.
        width: most nodes of one drafter forward; 1 where the text drafts, which runs none.
        tokens: most tokens one verify feeds per sequence, root included.
    """

    depth: int
    width: int
    tokens: int


class Strategy:
    """What to draft each round: a frozen record, and all that holds for it alone. Its fields are its JSON.

    Attributes:
        source: what drafts: nothing, the text, a model, several, or the text and a model.
        complexity: of equally many models and nodes the lower goes first: shapes known before the round, then others.
        is_lossy: whether its output is not the target's own.
        hangs_on_scores: whether the widths of its forwards depend on what the drafter answers.
        names: what people read for a code, by the pattern of codes.
    """

    __slots__ = ()
    source: ClassVar[Source] = "model"
    complexity: ClassVar[int]
    is_lossy: ClassVar[bool] = False
    hangs_on_scores: ClassVar[bool] = False
    names: ClassVar[Mapping[str, Namer]] = {}

    def __init_subclass__(cls) -> None:
        """Read the strategy's codes, too."""
        _NAMERS.update(cls.names)

    @property
    def kind(self) -> str:
        """What names it in JSON."""
        raise NotImplementedError

    @classmethod
    def own_kind(cls) -> str:
        """Return what names all strategies of this class in JSON."""
        kind: str = cls.__dataclass_fields__["kind"].default  # type: ignore[attr-defined]  # of a dataclass
        return kind

    @property
    def code(self) -> str:
        """Every setting in one line, as documents keep it."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Name for people, without who drafts."""
        return name_of(self.code)

    @property
    def widths(self) -> tuple[int, ...]:
        """Most nodes per sequence of every drafter forward, the root's 1 first; none where no single model drafts."""
        return ()

    @property
    def draft_forwards(self) -> int:
        """Most drafter forwards per round."""
        return len(self.widths)

    if TYPE_CHECKING:  # a field of CAST's, to which a property here would be a default

        @property
        def max_verify_tokens(self) -> int:
            """Most tokens one verify feeds per sequence, root included."""

    @property
    def bounds(self) -> Bounds:
        """How deep, wide and large its trees can become; O(nodes) for a static one."""
        tokens = self.max_verify_tokens
        return Bounds(depth=min(self.draft_forwards, tokens - 1), width=max(self.widths, default=0), tokens=tokens)

    def draft_room(self, batch: int | None = None) -> int:
        """Return the most nodes per sequence that a drafter is fed in one round, and so the cache positions it needs.

        Trees that are verified may be smaller: EAGLE-2 and OPT-Tree draft more than they keep.

        Args:
            batch: sequences; None for any number.
        """
        del batch
        return sum(self.widths[1:])

    @property
    def widest_layer(self) -> int:
        """Most tokens per sequence that one forward of a drafter has logits for; 0 where no model drafts."""
        return max(self.widths, default=0)

    @property
    def most_unread(self) -> int:
        """Most committed tokens per sequence that a drafter reads in one forward before it drafts."""
        return 1 + self.bounds.depth

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at; 0 where no model drafts."""
        raise NotImplementedError

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards has for sure; 0 where no model drafts."""
        return 1

    @property
    def score_widths(self) -> tuple[int, ...]:
        """Most nodes per sequence of all forwards that can run; none where these do not hang on scores."""
        return self.widths if self.hangs_on_scores else ()

    @property
    def is_captured_whole(self) -> bool:
        """Whether a draft whose forwards hang on scores is captured work where forwards are."""
        return 0 < len(self.score_widths) <= MOST_CAPTURED

    @property
    def copied_on_gpu(self) -> TextPolicy | None:
        """What of it a GPU copies out of the text by itself where rounds are captured; None where it does not.

        Such rounds run ahead of the host, as large as any might be: a hybrid's model drafts in each of them.
        """
        return None

    @property
    def compact_nodes(self) -> int | None:
        """Most nodes that are expanded, where a drafter's cache holds these alone; None where it holds all layers."""
        return None

    @property
    def fixed_tree(self) -> TokenTree | None:
        """The tree, where it is the same in every round; None where trees differ."""
        return None

    def is_coupled(self, batch: int) -> bool:
        """Return whether sequences of such a batch influence each other's trees."""
        del batch
        return False


def widths_on_gpu(policy: Strategy, widths: Ints, *, is_captured: bool = False) -> Ints:
    """Return (rounds, forwards): nodes per sequence of each drafter forward as it runs, 0 = does not.

    Args:
        policy: that drafts.
        widths: (rounds, forwards), what sequences need; what is drafted without looking at scores runs as it is.
        is_captured: whether whole drafts are, of strategies that say `is_captured_whole`.
    """
    most = np.array(policy.score_widths, dtype=np.int64)
    if not len(most):
        return widths
    needed = (widths > 0).sum(axis=1)
    is_whole = is_captured and policy.is_captured_whole
    run = np.where(needed > 0, len(most) if is_whole else needed + LATE, 0)
    return np.where(np.arange(len(most)) < run[:, None], most, 0)


def layer_widths(max_depth: int, children: int, most: list[int]) -> tuple[int, ...]:
    """Return the widths of the root and of layers that have so many candidates per node above, and are bounded."""
    widths = [1]
    for bound in most[: max_depth - 1]:
        widths.append(min(bound, widths[-1] * children))
    return tuple(widths)


def require_at_least(name: str, value: int, least: int) -> None:
    """Raise PlanError where a number of a strategy is too small."""
    if value < least:
        raise PlanError(f"{name} must be at least {least}, got {value}; raise it")


def require_chance(name: str, value: float) -> None:
    """Raise PlanError where a number of a strategy is no probability."""
    if not 0.0 <= value <= 1.0:
        raise PlanError(f"{name} is a probability, got {value}; take one of 0 to 1")


def name_of(code: str, drafter: str | None = None) -> str:
    """Return a way of drafting as people say it, and who drafts.

    Args:
        code: a strategy's code; other text, such as what a published default is called, is left as it is.
        drafter: the cell's; None leaves it out.
    """
    for pattern, namer in _NAMERS.items():
        found = re.fullmatch(pattern, code)
        if found is not None:
            return namer(found, drafter)
    return name_by(code, drafter)


def name_by(name: str, drafter: str | None) -> str:
    """Return a name that is no code, such as a published default's, and who drafts."""
    return name if drafter in (None, LOOKUP) else f"{name} by {drafter}"


def named_tree(of: str) -> Namer:
    """Return what names trees of a model whose code tells their nodes."""
    return lambda found, drafter: name_by(f"tree of {found['nodes']} nodes", drafter) + f" ({of})"


def counted(number: int, thing: str) -> str:
    """Return "1 token", "2 tokens"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
