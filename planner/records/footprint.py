"""What one model takes of memory in the number format it runs in, as the lean forward keeps and runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ...errors import PlanError
from ...profiler.records.architecture import Architecture, bytes_of
from .beside import Beside

LEAN_FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"}  # as runtime/models/anatomy.py
LEAST_HALVED = 2**16  # elements of a weight that is kept in halves: as runtime/models/projection.py
MOST_ROWS = 64  # of a product with halves as they are; for more they are widened: as runtime/models/projection.py
MOST_WIDENED = 2**20  # elements at once: as runtime/models/projection.py
BEYOND = 64  # positions behind the longest context that position tables hold for drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one model takes in the number format it runs in; what is 0 is not counted."""

    weight_bytes: int
    kv_bytes_per_token: int  # of all layers
    table_bytes: int = 0  # cosines and sines of all positions
    tied_head_bytes: int = 0  # of an output head that is the token table, as a CPU may hold it a second time
    halved_bytes: int = 0  # that a CPU saves by keeping float32 weights of a bfloat16 checkpoint as their upper halves
    widened_bytes: int = 0  # of these, alive a second time while many rows are multiplied by them
    row_bytes: int = 0  # alive at once inside a layer, per token fed
    pair_bytes: int = 0  # of a layer's mask, per token fed and cache position in its sight
    left_bytes: int = 0  # alive beside its logits when they come about, per token that has some
    vocabulary: int = 0
    number_bytes: int = 0
    looking_bytes: int = 0  # alive at once while an image is looked at
    beside: Beside | None = None  # of a drafter that works beside its target

    def __post_init__(self) -> None:
        least = 1 if self.beside is None else 0  # what looks up may have no weights
        if self.weight_bytes < least or self.kv_bytes_per_token < 0:
            raise PlanError(f"a footprint needs weight_bytes >= {least} and kv_bytes_per_token >= 0, got {self}")


class Attention(Protocol):
    """The heads of a layer."""

    @property
    def heads(self) -> int:
        """How many ask."""

    @property
    def kv_heads(self) -> int:
        """How many are requested."""

    @property
    def head_dim(self) -> int:
        """Numbers of each."""


def footprint_of(architecture: Architecture, dtype: str) -> Footprint:
    """Return what a model takes in a number format in the lean forward; ModelError where the format is unknown."""
    size = bytes_of(dtype)
    is_lean = architecture.family in LEAN_FAMILIES
    has_halves = is_lean and (dtype, architecture.stored_dtype) == ("float32", "bfloat16")
    is_kept_again = has_halves or (is_lean and dtype == "bfloat16")
    kept_again = bytes_of("bfloat16") if is_kept_again else 0  # of each number of a tied head
    head = (architecture.vocabulary, architecture.hidden)  # of a tied one too: it is kept again
    return Footprint(
        weight_bytes=architecture.weight_bytes(dtype),
        halved_bytes=halves_save(_matrices(architecture)) if has_halves else 0,
        widened_bytes=most_widened([*_matrices(architecture), head]) if has_halves else 0,
        kv_bytes_per_token=architecture.kv_bytes_per_token(dtype),
        table_bytes=table_bytes(architecture, dtype, architecture.head_dim),
        tied_head_bytes=kept_again * architecture.vocabulary * architecture.hidden if architecture.is_tied else 0,
        row_bytes=size * layer_numbers(architecture, architecture.hidden, architecture.intermediate),
        pair_bytes=size * folded_lines(architecture),
        left_bytes=2 * size * architecture.hidden,
        vocabulary=architecture.vocabulary,
        number_bytes=size,
    )


def layer_numbers(attention: Attention, hidden: int, intermediate: int) -> int:
    """Return how many numbers are alive at once inside a layer of the Llama kind, per token fed.

    The peak is just after the MLP's product is added: the layer's input, that normed, and its sum with attention;
    query, key and value, attention's output, the angles; the MLP's halves, their product, its output, and the sum.
    """
    return 5 * hidden + 2 * (attention.heads + attention.kv_heads + 1) * attention.head_dim + 3 * intermediate


def folded_lines(attention: Attention) -> int:
    """Return how often a layer's mask is written: once per query head of a group, not at all where that is one."""
    return attention.heads // attention.kv_heads if attention.heads > attention.kv_heads else 0


def table_bytes(architecture: Architecture, dtype: str, head_dim: int) -> int:
    """Return what the cosines and sines of all of a model's positions take, and of those that only drafts reach."""
    positions = architecture.longest_context + BEYOND if architecture.longest_context else 0
    return 2 * bytes_of(dtype) * positions * head_dim


def _matrices(architecture: Architecture) -> list[tuple[int, int]]:
    """Return the sizes (out, in) of a lean model's matrices, joined as in memory."""
    heads = architecture.head_dim * architecture.heads
    both = architecture.head_dim * 2 * architecture.kv_heads
    hidden, inner = architecture.hidden, architecture.intermediate
    matrices = [(heads + both, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)] * architecture.layers
    return matrices if architecture.is_tied else [*matrices, (architecture.vocabulary, hidden)]


def halves_save(matrices: Iterable[tuple[int, int]]) -> int:
    """Return the bytes that upper halves of float32 matrices (out, in) save, as far as they are stored so."""
    saved = bytes_of("float32") - bytes_of("bfloat16")
    return saved * sum(rows * columns for rows, columns in matrices if is_halved(rows, columns))


def most_widened(matrices: Iterable[tuple[int, int]]) -> int:
    """Return the most bytes that a product of many rows with halves (out, in) widens at once."""
    kept = ((rows, columns) for rows, columns in matrices if is_halved(rows, columns))
    widened = (min(rows, max(1, MOST_WIDENED // columns)) * columns for rows, columns in kept)
    return bytes_of("float32") * max(widened, default=0)


def is_halved(rows: int, columns: int) -> bool:
    """Whether a matrix (out, in) that bfloat16 holds is stored as upper halves; see runtime/models/projection.py."""
    return rows * columns >= LEAST_HALVED and rows % 2 == 0
