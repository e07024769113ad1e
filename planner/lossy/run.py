"""What one lossy way of decoding did on a workload, round by round: what the planner replays and prices.

Lossy texts are not the target's, so a recording along its text says nothing behind the first such token. Therefore the
decoder runs each way once at each batch size, and its rounds are stored. Pricing them on any device's latencies is
exact; what did not run has a forecast (see `search/lossy_search.py`) and no price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError, SpectuneError
from ...profiler.records.acceptance import Floats32, Ints32, frozen_copy
from ...profiler.records.wire import from_json, to_json
from ..kernels.slots import NOBODY
from ..lockstep import Replay
from ..strategies.base import Registered
from ..strategies.lossy import LossyPolicy
from .quality import Quality

_ARRAYS = ("contexts", "nodes", "catch_up", "widths", "levels", "texts", "kept", "entropies", "pivots")
if TYPE_CHECKING:
    from ..strategies.fly import FlyPolicy
    from ..strategies.pad import PadPolicy

    LossyWay: TypeAlias = FlyPolicy | PadPolicy
else:
    LossyWay = Annotated[LossyPolicy, Registered(lambda one: one.is_lossy)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossyRun:
    """The rounds of one policy at one batch size, and what the texts were worth; arrays are read-only.

    Arrays up to `kept` are as `Replay` has them. FLy's gate decides where its window accepts a mismatch, PAD's
    classifier where a mismatch has the floor.
    """

    target: str  # ModelIdentity.key
    dtype: str
    workload: str
    temperature: float
    seed: int
    max_new_tokens: int
    batch: int
    drafters: tuple[tuple[str, str], ...]  # names and keys of the models that drafted
    drafter: str  # what a plan's cell calls them together
    policy: LossyWay
    quality: Quality
    prompts: tuple[tuple[int, ...], ...]  # in order; texts are named by their place in it
    contexts: Ints32
    nodes: Ints32
    catch_up: Ints32
    widths: Ints32
    levels: Ints32  # (rounds, forwards), as in `StackReplay`; NOBODY where none ran, and for a chain
    texts: Ints32
    kept: Ints32
    matched: int  # drafted tokens that were the target's own, up to where each chain ended
    mismatched: int  # the others, likewise, with the one that ended a chain
    entropies: Floats32  # of the target where the gate decided, by the rule's definition
    pivots: Floats32 = field(default_factory=lambda: np.zeros(0, dtype=np.float32))  # chances, by PAD's classifier

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, frozen_copy(getattr(self, name)))
        rounds = len(self.contexts)
        forwards = self.widths.shape[1] if self.widths.ndim == 2 else 0
        shapes = {
            "contexts": (rounds,),
            "nodes": (rounds,),
            "catch_up": (rounds,),
            "widths": (rounds, forwards),
            "levels": (rounds, forwards),
            "texts": (rounds, self.batch),
            "kept": (rounds, self.batch),
        }
        wrong = [name for name, shape in shapes.items() if getattr(self, name).shape != shape]
        wrong += [name for name in ("entropies", "pivots") if getattr(self, name).ndim != 1]
        if not rounds or wrong:
            raise PlanError(f"a lossy run needs rounds, and arrays of one length; wrong: {wrong or ['rounds']}")
        if self.kept.min() < 1 or self.texts.min() < NOBODY or self.texts.max() >= len(self.prompts):
            raise PlanError(
                "a lossy run keeps a token or more per round and sequence, of texts that it has prompts for"
            )
        if min(self.matched, self.mismatched) < 0:
            raise PlanError(f"counts must not be negative, got {self.matched} and {self.mismatched}")

    @property
    def replay(self) -> Replay:
        """The rounds as the planner prices them; nothing of them is modelled."""

        def wide(array: NDArray[np.int32]) -> NDArray[np.int64]:
            return array.astype(np.int64)

        return Replay(
            contexts=wide(self.contexts),
            nodes=wide(self.nodes),
            catch_up=wide(self.catch_up),
            widths=wide(self.widths),
            texts=wide(self.texts),
            kept=wide(self.kept),
            censored=0,
        )

    @property
    def tokens_per_round(self) -> float:
        """Tokens per sequence and round."""
        return float(self.kept[self.texts != NOBODY].mean())

    def shortened(self, new_tokens: int) -> LossyRun:
        """Return the rounds of answers of at most so many tokens, the first of which comes with the prompt.

        Counts of drafted tokens, and the quality, stay those of the whole answers.
        """
        if self.max_new_tokens <= new_tokens:
            return self
        left = new_tokens - 1 - _decoded_before(self.texts, self.kept)
        counts = (self.texts != NOBODY) & (left > 0)
        rows = counts.any(axis=1)
        cut = {name: getattr(self, name)[rows] for name in ("contexts", "nodes", "catch_up", "widths", "levels")}
        return replace(
            self,
            max_new_tokens=new_tokens,
            texts=np.where(counts, self.texts, NOBODY)[rows],
            kept=np.where(counts, np.minimum(self.kept, left), self.kept)[rows],
            **cut,
        )


def _decoded_before(texts: Ints32, kept: Ints32) -> Ints32:
    """Return (rounds, batch): tokens of a slot's text from the rounds before; 0 where it holds none."""
    before = np.zeros(texts.size, dtype=np.int32)
    for text in set(texts[texts != NOBODY].tolist()):
        own = np.flatnonzero(texts == text)
        before[own] = kept.ravel()[own].cumsum() - kept.ravel()[own]
    return before.reshape(texts.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossyRuns:
    """The document that `spectune lossy` writes and `spectune plan --lossy` reads."""

    runs: tuple[LossyRun, ...]
    kind: Literal["lossy runs"] = "lossy runs"
    version: Literal[1] = 1


def write_runs(path: Path, runs: Sequence[LossyRun]) -> None:
    """Write runs as one JSON document."""
    path.write_text(to_json(LossyRuns(runs=tuple(runs))), encoding="utf-8")


def read_runs(path: Path) -> tuple[LossyRun, ...]:
    """Return the runs of a document; PlanError where the file cannot be read, or is no such document."""
    try:
        return from_json(LossyRuns, path.read_text(encoding="utf-8")).runs
    except (OSError, UnicodeDecodeError, SpectuneError) as error:
        reason = " ".join(str(error).split())
        raise PlanError(
            f"cannot read lossy runs from {path} ({reason}); write them with: spectune lossy -o FILE"
        ) from error
