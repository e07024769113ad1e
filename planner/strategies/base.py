"""What every strategy says of itself, and does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, Union

import numpy as np

from ...errors import PlanError
from ..lockstep import Replay, replay_results
from ..records.costs import PlannedCosts
from ..records.draft import DraftBatch, Growth, Ints, LayerScorer, answered
from ..records.ops import NumpyOps, Ops
from ..records.recording import Recorded, Recording
from ..records.results import PositionResults
from ..records.tree import TokenTree
from .naming import NAMERS, Namer, name_of
from .offers import Graded, HalfStudy, Level, Limits, Published, Space

if TYPE_CHECKING:
    from . import TreePolicy

DEEPEST = 10  # layers of nodes of what is searched
MOST_CHILDREN = 10  # best next tokens looked at per node
LATE = 1  # forwards that draft for nobody on a GPU, since word of the end is still on its way
MOST_CAPTURED = 16  # forwards of a draft that is captured whole: of more, too many would draft for nobody

Source: TypeAlias = Literal["none", "text", "model", "models", "both"]
Trees = TypeVar("Trees")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a strategy's trees: drafted tokens on one path, nodes of one drafter forward, tokens of one verify.

    `width` is 1 where the text drafts; `tokens` is per sequence, root included.
    """

    depth: int
    width: int
    tokens: int


class Strategy:
    """What to draft each round: a frozen record with all that holds for it alone. Its fields are its JSON.

    Attributes:
        source: what drafts: nothing, the text, a model, several, or the text and a model.
        complexity: the lower goes first of equally many models and nodes: shapes known before the round, then others.
        hangs_on_scores: whether the widths of its forwards depend on what the drafter answers.
        is_recorded: whether it replays from the recording of its drafter.
        is_of_one_cell: whether it holds costs of one cell, so that its replay is of no use elsewhere.
        has_shape: whether its trees are counted by depth along the texts.
        sweeps_together: whether a sweep of several takes little more time than that of one.
        in_hybrids: whether hybrids copy so, or draft so where the text has no copy.
        grid_place, search_place: the order of pricing and of searching; None where there is no grid or space.
        names: names for people, by the pattern of codes.
    """

    __slots__ = ()
    source: ClassVar[Source] = "model"
    complexity: ClassVar[int]
    is_lossy: ClassVar[bool] = False
    hangs_on_scores: ClassVar[bool] = False
    is_recorded: ClassVar[bool] = True
    is_of_one_cell: ClassVar[bool] = False
    has_shape: ClassVar[bool] = True
    sweeps_together: ClassVar[bool] = False
    in_hybrids: ClassVar[bool] = False
    grid_place: ClassVar[int | None] = None
    search_place: ClassVar[int | None] = None
    names: ClassVar[Mapping[str, Namer]] = {}

    def __init_subclass__(cls) -> None:
        NAMERS.update(cls.names)

    @property
    def kind(self) -> str:
        """The strategy's name in JSON."""
        raise NotImplementedError

    @classmethod
    def own_kind(cls) -> str:
        """Return the JSON name of all strategies of this class."""
        kind: str = cls.__dataclass_fields__["kind"].default  # type: ignore[attr-defined]  # of a dataclass
        return kind

    @property
    def code(self) -> str:
        """Every setting in one line, as documents store it."""
        raise NotImplementedError

    @property
    def written(self) -> str:
        """The key by which hybrids are ordered; it never changes, whatever records and fields are called."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """A name for people, without the drafter's."""
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
        """Return the most nodes per sequence that a drafter is fed in one round: the cache positions it needs.

        It may exceed the verified tree: EAGLE-2 and OPT-Tree draft more. None stands for any number of sequences.
        """
        return sum(self.widths[1:])

    @property
    def widest_layer(self) -> int:
        """Most tokens per sequence for which one drafter forward has logits; 0 where no model drafts."""
        return max(self.widths, default=0)

    @property
    def most_unread(self) -> int:
        """Most committed tokens per sequence that a drafter reads in one forward before it drafts."""
        return 1 + self.bounds.depth

    @property
    def children(self) -> int:
        """Best next tokens of a node that it considers; 0 where no model drafts."""
        return 1

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards always has; 0 where no model drafts."""
        return 1

    @property
    def score_widths(self) -> tuple[int, ...]:
        """Most nodes per sequence of each forward that can run; empty where these do not hang on scores."""
        return self.widths if self.hangs_on_scores else ()

    @property
    def is_captured_whole(self) -> bool:
        """Whether a draft whose forwards hang on scores is captured work where forwards are."""
        return 0 < len(self.score_widths) <= MOST_CAPTURED

    @property
    def is_of_one_size(self) -> bool:
        """Whether number and width of forwards and number of nodes are fixed: what hybrids draft."""
        return self.in_hybrids and self.source == "model"

    @property
    def is_of_one_shape(self) -> bool:
        """Whether the parents of its nodes do not hang on scores either."""
        return self.is_of_one_size and self.fixed_tree is not None

    @property
    def copied_on_gpu(self) -> TreePolicy | None:
        """What a GPU copies out of the text by itself in captured rounds; None where it does not.

        Such rounds run ahead of the host at their largest size: a hybrid's model drafts in each of them.
        """
        return None

    @property
    def compact_nodes(self) -> int | None:
        """Most expanded nodes, where a drafter's cache holds these alone; None where it holds all layers."""
        return None

    @property
    def fixed_tree(self) -> TokenTree | None:
        """The tree, where it is the same in every round; None where trees differ."""
        return None

    def is_coupled(self, batch: int) -> bool:
        """Return whether sequences of such a batch influence each other's trees."""
        return False

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        """Grow the trees that it drafts for a batch of sequences; PlanError if no single model drafts.

        It yields what it asks of the drafter, `Asked`, and is sent the children, in arrays as the operations have. Path
        scores are float32 sums of conditional log-probabilities from the root down; ties go to the shallower node, then
        to the one recorded first.
        """
        raise PlanError(f"a {self.label} is not drafted by one scorer; ask the runtime's drafter")

    def results(self, recorded: Recorded) -> PositionResults:
        """Return what it would have accepted at every position of the recorded texts.

        PlanError if its trees depend on more than the committed text, or too few children were recorded.
        """
        raise PlanError(f"{self.label} has no results of single positions; replay it")

    def replay(self, recorded: Recorded, batch: int) -> Replay:
        """Return the rounds of `batch` slots over the texts; PlanError if these or the recording are too few."""
        return replay_results(self.results(recorded), recorded.rows, batch)

    @classmethod
    def sweep(cls, recorded: Recorded, variants: Sequence[Any]) -> Iterator[Graded]:  # Any: of this very class
        """Yield the results of variants in as few passes as possible, in any order.

        Variants that need more children than were recorded are left out where several are swept together.
        """
        for one in variants:
            yield Graded(one, one.results(recorded))

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        """Yield what competes in every cell."""
        return iter(())

    @classmethod
    def unrecorded(cls, children: int) -> Iterable[TreePolicy]:
        """Return one strategy of the grid for each width that needs more children than were recorded."""
        return ()

    @classmethod
    def recorded_at(cls, level: Level) -> Sequence[TreePolicy]:
        """Return those that ask a drafter, between them, all that recordings of a level hold for the kind."""
        return ()

    @classmethod
    def space(cls, children: int, most_tokens: int) -> Space | None:
        """Return what is searched, by the children recorded per node and the tokens one verify can feed."""
        return None

    @classmethod
    def search(cls, hunts: Sequence[HalfStudy]) -> None:
        """Search a cell on each half of the texts."""
        space = cls.space(hunts[0].children, hunts[0].costs.verify.most_tokens)
        if space is not None and hunts[0].is_near(space.kind):
            for hunt in hunts:
                hunt.study(space, [space.knobs(policy) for policy in hunt.fastest(space.kind)])

    @classmethod
    def engine_grid(cls) -> Sequence[TreePolicy]:
        """Return those worth a look in engines that know the kind."""
        return ()

    @classmethod
    def probes(cls, most_tokens: int) -> Sequence[TreePolicy]:
        """Return those whose short rounds show what rounds of the kind take beyond their forwards.

        They prune nothing where a setting allows that, so their shapes do not hang on the drafter; `most_tokens` is at
        least 8.
        """
        return ()

    @classmethod
    def smallest(cls) -> Sequence[TreePolicy]:
        """Return those to grow once, so that no round waits for a kernel that grows them on the host."""
        return ()

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        """Return what others publish as their default; with `drafter` None those that need no model."""
        return ()


def grow(policy: Strategy, scorer: LayerScorer, batch: int) -> DraftBatch:
    """Return the trees of `Strategy.grow` on the host, by a scorer that is fresh in every round.

    PlanError if no single model drafts, or the scorer serves another batch.
    """
    return answered(policy.grow(NumpyOps(batch)), scorer, batch)


def results_of(policy: Strategy, recording: Recording) -> PositionResults:
    """Return what a drafted strategy would have accepted at every position, as `Strategy.results` says."""
    return policy.results(Recorded.by(recording))


def known() -> Mapping[str, type[TreePolicy]]:
    """Return the registered strategies by kind."""
    from . import REGISTRY  # it imports the files of all strategies, and these this one

    return REGISTRY


def made(kind: str, **settings: Any) -> TreePolicy:  # Any: the fields of whichever strategy it is
    """Return the strategy of a kind; PlanError if no such kind is registered, or the strategy refuses the settings."""
    strategies = known()
    if kind not in strategies:
        raise PlanError(f"no strategy of kind {kind!r} is registered; use one of {', '.join(strategies)}")
    return strategies[kind](**settings)


class Registered:
    """A field of JSON that holds any registered strategy that `picks` accepts."""

    def __init__(self, picks: Callable[[type[TreePolicy]], bool]) -> None:
        self._picks = picks

    def __get_pydantic_core_schema__(self, kind: object, handler: Callable[[Any], Any]) -> Any:  # Any: pydantic's
        picked = tuple(filter(self._picks, known().values()))
        return handler(Union[picked])  # noqa: UP007  # of as many as there are


def widths_on_gpu(policy: Strategy, widths: Ints, *, is_captured: bool = False) -> Ints:
    """Return (rounds, forwards): nodes per sequence of each drafter forward as it runs, 0 = does not run.

    `widths` holds what sequences need. Whole drafts may be captured where a strategy says `is_captured_whole`.
    """
    most = np.array(policy.score_widths, dtype=np.int64)
    if not len(most):
        return widths
    needed = (widths > 0).sum(axis=1)
    is_whole = is_captured and policy.is_captured_whole
    run = np.where(needed > 0, len(most) if is_whole else needed + LATE, 0)
    return np.where(np.arange(len(most)) < run[:, None], most, 0)


def layer_widths(max_depth: int, children: int, most: list[int]) -> tuple[int, ...]:
    """Return the widths of the root and of bounded layers with `children` candidates per node above."""
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
