"""What a drafter proposed along the target's own text, and what the target would have accepted of it."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import MeasurementError

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

    ArrayText = dict[str, Any]  # JSON values: {"dtype": str, "shape": [int], "data": str}


class OnWire:
    """Marks an array field: on the wire it is its dtype, its shape and its zlib-compressed bytes in base64."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            self.decode, serialization=core_schema.plain_serializer_function_ser_schema(self.encode)
        )

    def encode(self, array: NDArray[Any]) -> ArrayText:
        """Return the JSON form of an array, bit for bit."""
        packed = zlib.compress(np.ascontiguousarray(array, dtype=self.dtype).tobytes())
        return {"dtype": self.dtype.name, "shape": list(array.shape), "data": base64.b64encode(packed).decode()}

    def decode(self, text: object) -> NDArray[Any]:
        """Return the array of a JSON form; ValueError for another form, dtype or size of the data."""
        if not isinstance(text, dict) or set(text) != {"dtype", "shape", "data"} or text["dtype"] != self.dtype.name:
            raise ValueError(f'need an array as {{"dtype": "{self.dtype.name}", "shape": [...], "data": "..."}}')
        try:
            raw = zlib.decompress(base64.b64decode(text["data"], validate=True))
            array = np.frombuffer(raw, dtype=self.dtype).reshape(text["shape"])
        except (binascii.Error, zlib.error, TypeError, ValueError) as error:
            raise ValueError(f"array data cannot be read: {error}") from error
        return array.astype(self.dtype.newbyteorder("="))


Bytes = Annotated[NDArray[np.uint8], OnWire(np.uint8)]
Shorts = Annotated[NDArray[np.int16], OnWire(np.int16)]
Ints32 = Annotated[NDArray[np.int32], OnWire(np.int32)]
Floats32 = Annotated[NDArray[np.float32], OnWire(np.float32)]


def frozen_copy(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous copy that cannot be written to."""
    copy = np.array(array, order="C")
    copy.setflags(write=False)
    return copy


MISS = 255  # "not among the recorded children", in next_rank and hit_rank
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ARRAYS = ("next_rank", "offsets", "parent", "rank", "log_probs", "hit_rank")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptTrace:
    """The drafter's recorded expansions at every position of one continuation; arrays are copied and read-only.

    Position t (0 .. len(continuation) - 2) has committed prompt + continuation[:t + 1]; the last of those tokens is
    the tree's root, and the truth that follows is continuation[t + 1:]. E expansions in all, the root's first at
    each position, parents before children.
    """

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]  # the target's own tokens, at least 2
    next_rank: Bytes  # (positions,), drafter's rank of continuation[t + 1] after the committed text, or MISS
    offsets: Ints32  # (positions + 1,), position t owns expansions offsets[t]:offsets[t + 1]
    parent: Shorts  # (E,), index within the position of the expansion this node is a child of; -1 for the root
    rank: Bytes  # (E,), which child of that parent it is, 0 = most likely; 0 for the root
    log_probs: Floats32  # (E, children), conditional log-probabilities of the node's best next tokens, descending
    hit_rank: Bytes  # (E,), rank of the target's token if the node lies on the target's own path, else MISS

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, frozen_copy(getattr(self, name)))
        _check_layout(self)
        _check_tree(self)
        _check_scores(self)

    @property
    def positions(self) -> int:
        """Positions recorded: one fewer than continuation tokens."""
        return len(self.continuation) - 1

    @property
    def children(self) -> int:
        """Best next tokens recorded per expansion."""
        return int(self.log_probs.shape[1])

    @property
    def nodes(self) -> int:
        """Tree nodes recorded: every child of an expansion has its own score."""
        return int(self.log_probs.size)

    @property
    def array_bytes(self) -> int:
        """Memory of all arrays; the two texts come on top."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    @property
    def contexts(self) -> Ints:
        """(positions,): tokens in the target's cache before a round there; the root is not among them."""
        return len(self.prompt) + np.arange(self.positions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PromptTrace):
            return NotImplemented
        return all(_is_same(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    def __hash__(self) -> int:
        """Hash the tokens alone: equal traces have equal tokens."""
        return hash((self.prompt, self.continuation))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceTrace:
    """One drafter recorded against one target on one workload; every prompt has the same number of children."""

    target: str  # ModelIdentity.key
    drafter: str  # ModelIdentity.key, or a name for a drafter without weights
    drafter_name: str
    workload: str
    temperature: float  # of the target's continuation; 0.0 is greedy
    seed: int
    children: int
    prefix_exact: bool  # the proposal is a function of the committed text alone, so next_rank alone replays chains
    prompts: tuple[PromptTrace, ...]

    def __post_init__(self) -> None:
        if not (self.target and self.drafter and self.drafter_name and self.workload and self.prompts):
            raise MeasurementError("a trace needs target, drafter, drafter_name, workload and at least one prompt")
        if not 1 <= self.children < MISS or not 0.0 <= self.temperature < math.inf:
            raise MeasurementError(
                f"need 1 <= children < {MISS} and temperature >= 0, got {self.children} and {self.temperature}"
            )
        for index, prompt in enumerate(self.prompts):
            if prompt.children != self.children:
                raise MeasurementError(f"prompt {index} records {prompt.children} children, the trace {self.children}")

    @property
    def positions(self) -> int:
        """Positions over all prompts."""
        return sum(prompt.positions for prompt in self.prompts)

    @property
    def bytes_per_node(self) -> float:
        """Memory per recorded tree node: 4 of its score, and its share of its expansion's parent, rank and hit."""
        return self._array_bytes / sum(prompt.nodes for prompt in self.prompts)

    @property
    def bytes_per_position(self) -> float:
        """Memory per position."""
        return self._array_bytes / self.positions

    @property
    def _array_bytes(self) -> int:
        return sum(prompt.array_bytes for prompt in self.prompts)

    def rank_acceptance(self) -> Floats:
        """Return the unconditional share of positions whose true next token has rank r: (children,), sum <= 1."""
        ranks = np.concatenate([prompt.next_rank for prompt in self.prompts])
        counts = np.bincount(ranks, minlength=MISS + 1)[: self.children]
        return counts / self.positions


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseAcceptance:
    """How often each pair of models agrees on the next token, over the same positions.

    A first choice is a model's argmax; of sampled texts, that of its scores with the noise of the target's own draws.
    """

    models: tuple[str, ...]  # names, distinct
    greedy: tuple[tuple[float, ...], ...]  # (n, n), share of positions with the same first choice
    overlap: tuple[tuple[float, ...], ...]  # (n, n), mean over positions of sum over tokens of min(p, q)
    positions: int
    target: str = ""  # ModelIdentity.key of the model that wrote the text; "" where it was not written down
    workload: str = ""  # likewise
    temperature: float | None = None  # of the text and of the distributions; None where it was not written down

    def __post_init__(self) -> None:
        if not self.models or len(set(self.models)) < len(self.models) or self.positions < 1:
            raise MeasurementError(f"need distinct models and positions >= 1, got {self.models} and {self.positions}")
        for name, matrix in (("greedy", self.greedy), ("overlap", self.overlap)):
            if [len(row) for row in matrix] != [len(self.models)] * len(self.models):
                raise MeasurementError(f"{name} must be {len(self.models)} x {len(self.models)}, one row per model")
            if not all(0.0 <= share <= 1.0 + 1e-6 for row in matrix for share in row):  # sums of rounded terms
                raise MeasurementError(f"{name} holds a share outside [0, 1]: {matrix}")
        if self.temperature is not None and not 0.0 <= self.temperature < math.inf:
            raise MeasurementError(f"the temperature must be finite and at least 0, got {self.temperature}")


def _check_layout(trace: PromptTrace) -> None:
    if len(trace.continuation) < 2 or not trace.prompt:
        raise MeasurementError(
            f"need a prompt and at least 2 continuation tokens, got {len(trace.prompt)} and {len(trace.continuation)}"
        )
    if trace.log_probs.ndim != 2 or not 1 <= trace.log_probs.shape[1] < MISS:
        raise MeasurementError(f"log_probs must be (E, children), 1..254 children, got {trace.log_probs.shape}")
    expansions = len(trace.log_probs)
    for name, dtype, shape in (
        ("next_rank", np.uint8, (trace.positions,)),
        ("offsets", np.int32, (trace.positions + 1,)),
        ("parent", np.int16, (expansions,)),
        ("rank", np.uint8, (expansions,)),
        ("log_probs", np.float32, (expansions, trace.children)),
        ("hit_rank", np.uint8, (expansions,)),
    ):
        array = getattr(trace, name)
        if array.dtype != dtype or array.shape != shape:
            raise MeasurementError(f"{name} must be {np.dtype(dtype)} {shape}, got {array.dtype} {array.shape}")


def _check_tree(trace: PromptTrace) -> None:
    offsets, expansions = trace.offsets.astype(np.int64), len(trace.parent)
    sizes = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != expansions or sizes.min() < 1:
        raise MeasurementError(f"offsets must rise from 0 to {expansions}, one expansion or more per position")
    within = np.arange(expansions) - np.repeat(offsets[:-1], sizes)
    is_root = within == 0
    is_placed = np.where(is_root, trace.parent == -1, (trace.parent >= 0) & (trace.parent < within))
    if not is_placed.all():
        at = int(np.argmin(is_placed))
        raise MeasurementError(f"expansion {at} has parent {trace.parent[at]}; need -1 for a root, else an earlier one")
    if (trace.rank >= trace.children).any() or trace.rank[is_root].any():
        raise MeasurementError(f"ranks must be below the {trace.children} children recorded, and 0 for a root")
    owner = np.repeat(offsets[:-1], sizes) + trace.parent
    nodes = np.where(is_root, -1 - np.arange(expansions), owner * MISS + trace.rank)
    if len(np.unique(nodes)) < expansions:
        raise MeasurementError("one child of a node is expanded twice; record each node once per position")


def _check_scores(trace: PromptTrace) -> None:
    with np.errstate(invalid="ignore"):
        is_descending = (trace.log_probs[:, 1:] <= trace.log_probs[:, :-1]).all()
    if not is_descending or not (trace.log_probs <= 1e-3).all():  # a rounded log-softmax may exceed 0 a little
        raise MeasurementError("log_probs must be descending along children, at most 0 and not NaN")
    for name, ranks in (("next_rank", trace.next_rank), ("hit_rank", trace.hit_rank)):
        if ((ranks >= trace.children) & (ranks != MISS)).any():
            raise MeasurementError(f"{name} holds a rank beyond the {trace.children} children; use {MISS} for a miss")
    if not np.array_equal(trace.hit_rank[trace.offsets[:-1]], trace.next_rank):
        raise MeasurementError("a root's hit_rank differs from next_rank; both are the rank of continuation[t + 1]")


def _is_same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return left == right
