"""What a strategy brings to a plan's search: what competes, what is searched, and what others publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from ..records.costs import PlannedCosts
from ..records.crossfit import EVERYWHERE
from ..records.knobs import Knobs, Range
from ..records.results import PositionResults

if TYPE_CHECKING:
    from ...profiler.records.calibration import SurvivalCurve
    from ..records.frozen_table import FrozenTable
    from . import TreePolicy

Level: TypeAlias = Literal["chains", "quick", "standard", "full"]  # which trees are recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the grids of a plan.

    Attributes:
        most_tokens: most tokens that one verify can feed.
        tables: frozen tables of n-grams, used behind the texts' own.
        resumes: whether verifications can go on from the states that the drafter, an exit, left.
    """

    most_tokens: int
    tables: tuple[FrozenTable, ...] = ()
    resumes: bool = False


class Graded(NamedTuple):
    """A strategy, what it does at every position, and the half of the texts it was made from, or EVERYWHERE."""

    policy: TreePolicy
    results: PositionResults
    searched_on: int = EVERYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched of one kind of strategy: ranges by knob, and conversions from knobs (`policy`) and to knobs."""

    kind: str
    ranges: Mapping[str, Range]
    policy: Callable[[Knobs], TreePolicy]
    knobs: Callable[[Any], dict[str, float]]  # Any: a strategy of the kind, whichever it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What others publish as their default; `make` raises PlanError where the cell's tables cannot.

    `name` is unique and for people; defaults are priced in the order of `place`.
    """

    name: str
    source: str
    make: Callable[[], TreePolicy]
    place: int


class HalfStudy(Protocol):
    """One cell and drafter, searched on one half of the texts."""

    @property
    def costs(self) -> PlannedCosts:
        """Of the cell."""

    @property
    def drafter(self) -> str:
        """Whose strategies are searched."""

    @property
    def children(self) -> int:
        """Best next tokens of a node that strategies look at."""

    @property
    def best_rate(self) -> float:
        """Most tokens per second in the cell so far."""

    @property
    def survival(self) -> tuple[SurvivalCurve, ...]:
        """The drafter's survival curves on the half."""

    def is_near(self, kind: str) -> bool:
        """Return whether the best of a kind comes near the cell's best."""

    def enter(self, policy: TreePolicy) -> None:
        """Price a strategy that saw no half more than the other."""

    def price(self, policy: TreePolicy) -> float:
        """Price a strategy; return its tokens per second on the half, 0 where it has no price or breaks the bound."""

    def fastest(self, kind: str) -> list[Any]:  # Any: strategies of the kind, whichever it is
        """Return the fastest of a kind on the half, of those that saw no other one."""

    def study(self, space: Space, starts: list[dict[str, float]]) -> None:
        """Search a space from some knobs on."""
