"""Memory of drafters beside a target: heads, block drafters and exits, by the sizes of their tensors.

Every number is alive at the named moment of `runtime/models/{eagle,medusa,ctc,specformer,exit}.py`, counted in hidden
states (H), heads' queries, keys and values, MLP widths (I) and logits (V), per row or per place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...errors import PlanError
from ...profiler.records.architecture import Architecture, bytes_of
from ..records.beside import Beside, BlockMemory
from ..records.footprint import (
    Footprint,
    folded_lines,
    footprint_of,
    halves_save,
    layer_numbers,
    most_widened,
    table_bytes,
)
from .recycling import recycling_footprint

Form = Literal["eagle", "eagle3", "medusa", "ctc", "specformer", "exit", "recycling"]
DRAWN = 4  # bytes of a number that tokens are drawn or chosen by
FRAME_GROUPS = 16  # tokens whose frames a CTC drafter's cache has room for: as runtime/models/ctc.py
SOUGHT = 9  # bytes of a mask's entry while the last token in sight is sought: a truth value and its column
TRIE_NUMBERS = 5  # of what a trie of frames works on at once, per token of the vocabulary, what it gathers apart
ID_BYTES = 8  # of a token's id


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterParts:
    """What is known of a drafter beside its target without loading it."""

    form: Form
    target: Architecture
    sizes: Mapping[str, tuple[int, ...]]  # of the tensors that it keeps, by name
    head_dim: int = 0  # of a form of EAGLE's; the others have their target's
    stored_dtype: str = ""  # number format of the matrices in its file
    reads: tuple[int, ...] = ()  # how many of the target's layers each hidden state it reads has passed
    successors: int = 0  # that are kept of every token, where nothing was trained


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def projected(self) -> int:
        """Numbers of a token's query, key and value."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def turned(self) -> int:
        """Numbers of its query, key, value and angles."""
        return self.projected + 2 * self.head_dim

    @property
    def cached(self) -> int:
        """Numbers of its key and value."""
        return 2 * self.kv_heads * self.head_dim


def footprint_beside(parts: DrafterParts, dtype: str) -> Footprint:
    """Return what a drafter beside its target takes; ModelError: unknown format, PlanError: a missing tensor."""
    try:
        return _FOOTPRINTS[parts.form](parts, dtype)
    except KeyError as error:
        raise PlanError(f"a drafter of the form {parts.form} lacks the tensor {error}; train it again") from error


def _eagle(parts: DrafterParts, dtype: str) -> Footprint:
    """Return that of a head of EAGLE's forms: a layer behind the target, fed like a model.

    While its layer runs it holds the features, the embedding, and what attention reads of both.
    """
    sizes, size, hidden = parts.sizes, bytes_of(dtype), parts.target.hidden
    layer = "layers.0." if parts.form == "eagle" else "midlayer."
    queries, keys = (sizes[f"{layer}self_attn.{one}_proj.weight"] for one in "qk")
    own = _Heads(heads=queries[0] // parts.head_dim, kv_heads=keys[0] // parts.head_dim, head_dim=parts.head_dim)
    inner = sizes[f"{layer}mlp.gate_proj.weight"][0]
    joined = 1 if parts.form == "eagle" else 2  # hidden states' worth of what attention reads
    in_layer = layer_numbers(own, hidden, inner) + joined * hidden
    is_reduced = "d2t" in sizes
    drafted = sizes["lm_head.weight"][0] if is_reduced else 0  # logits that are put into their places among all
    matrices = [sizes["fc.weight"], (queries[0] + 2 * keys[0], queries[1]), sizes[f"{layer}self_attn.o_proj.weight"]]
    matrices += [(2 * inner, hidden), (hidden, inner)]
    matrices += [sizes["lm_head.weight"]] if parts.form == "eagle3" else []
    lines = folded_lines(own)
    return Footprint(
        weight_bytes=size * _numbers(sizes, but="d2t") + (ID_BYTES * drafted if is_reduced else 0),
        **_halved(parts, dtype, matrices),
        table_bytes=table_bytes(parts.target, dtype, parts.head_dim),
        kv_bytes_per_token=size * (own.cached + hidden),
        row_bytes=size * in_layer,
        pair_bytes=size * max(lines, 1),
        left_bytes=size * (2 * (1 + joined) * hidden + drafted),
        vocabulary=parts.target.vocabulary,
        number_bytes=size,
        beside=_tapping(
            parts,
            dtype,
            Beside(
                read_bytes=size * (in_layer + len(parts.reads) * hidden), sight_bytes=max(SOUGHT, size * (1 + lines))
            ),
        ),
    )


def _medusa(parts: DrafterParts, dtype: str) -> Footprint:
    size, hidden, vocabulary = bytes_of(dtype), parts.target.hidden, parts.target.vocabulary
    said = BlockMemory(
        places=parts.sizes["outs.weight"][0],
        row_bytes=3 * size * hidden,
        made_bytes=size * (3 * hidden + vocabulary),
        kept_bytes=size * vocabulary,
    )
    read_bytes = size * len(parts.reads) * hidden
    return _block(parts, dtype, said, read_bytes=read_bytes, kv_numbers=0, matrices=["heads.weight"])


def _ctc(parts: DrafterParts, dtype: str) -> Footprint:
    """Return that of a CTC drafter: frames in one layer, whose chances a trie reads.

    A token is read as its embedding, its normed state, both together and what joins them.
    """
    size, hidden, vocabulary = bytes_of(dtype), parts.target.hidden, parts.target.vocabulary
    own, lines = _target_heads(parts), folded_lines(parts.target)
    frames, inner = parts.sizes["queries.weight"][0], parts.sizes["layer.mlp.gate_proj.weight"][0]
    wide = 0 if size >= DRAWN else DRAWN  # of a score's copy in float32
    said = BlockMemory(
        places=frames,
        row_bytes=size * layer_numbers(own, hidden, inner),
        pair_bytes=size * (1 + lines),
        made_bytes=3 * size * hidden + vocabulary * max(2 * size, size + wide + DRAWN, 2 * DRAWN),
        kept_bytes=DRAWN * vocabulary,
        asked_bytes=DRAWN * vocabulary * max(frames + 1, TRIE_NUMBERS),
    )
    return _block(
        parts,
        dtype,
        said,
        read_bytes=size * max(6 * hidden, 3 * hidden + own.turned),
        kv_numbers=own.cached,
        carried_numbers=hidden,
        further=FRAME_GROUPS * frames,
        matrices=["join.weight", *_fused(parts, "layer")],
    )


def _specformer(parts: DrafterParts, dtype: str) -> Footprint:
    """Return that of a SpecFormer: a token's states are stacked, normed and joined, and places attend to each other."""
    sizes, size, hidden = parts.sizes, bytes_of(dtype), parts.target.hidden
    own, width, inputs = _target_heads(parts), sizes["join.weight"][0], sizes["norms.weight"][0]
    fresh = int(parts.target.layers in parts.reads) + int(0 not in parts.reads)  # states that are made for it
    states = len(parts.reads) * hidden
    inner = sizes["draft.mlp.gate_proj.weight"][0]
    said = BlockMemory(
        places=sizes["places.weight"][0] // hidden,
        row_bytes=size * (4 * hidden + own.projected + 2 * own.heads * own.head_dim + 3 * inner),
        made_bytes=size * (3 * hidden + parts.target.vocabulary),
        kept_bytes=size * parts.target.vocabulary,
    )
    return _block(
        parts,
        dtype,
        said,
        read_bytes=size * max(states + (fresh + 3 * inputs) * hidden, states + 2 * width + own.turned),
        kv_numbers=own.cached,
        matrices=["join.weight", "places.weight", *_fused(parts, "context"), *_fused(parts, "draft")],
    )


def _exit(parts: DrafterParts, dtype: str) -> Footprint:
    """Return that of an exit: its layers and its cache are the target's."""
    whole, names = footprint_of(parts.target, dtype), ("imitation.up.weight", "imitation.down.weight")
    return Footprint(
        weight_bytes=bytes_of(dtype) * _numbers(parts.sizes),
        **_halved(parts, dtype, [parts.sizes[name] for name in names]),
        kv_bytes_per_token=0,
        row_bytes=whole.row_bytes,
        pair_bytes=whole.pair_bytes,
        left_bytes=3 * bytes_of(dtype) * parts.target.hidden,
        vocabulary=parts.target.vocabulary,
        number_bytes=bytes_of(dtype),
        beside=Beside(has_own_text=False, state_bytes=bytes_of(dtype) * parts.target.hidden),
    )


def _recycling(parts: DrafterParts, dtype: str) -> Footprint:
    own = recycling_footprint(parts.target, parts.successors, dtype)
    return replace(own, beside=_tapping(parts, dtype, own.beside or Beside()))


_FOOTPRINTS: Mapping[Form, Callable[[DrafterParts, str], Footprint]] = {
    "eagle": _eagle,
    "eagle3": _eagle,
    "medusa": _medusa,
    "ctc": _ctc,
    "specformer": _specformer,
    "exit": _exit,
    "recycling": _recycling,
}


def _block(
    parts: DrafterParts,
    dtype: str,
    said: BlockMemory,
    *,
    read_bytes: int,
    kv_numbers: int,
    matrices: list[str | tuple[int, ...]],
    carried_numbers: int = 0,
    further: int = 0,
) -> Footprint:
    """Return a block drafter's footprint; matrices are named, or given by their sizes where they are joined."""
    size = bytes_of(dtype)
    known = [parts.sizes[one] if isinstance(one, str) else one for one in matrices]
    return Footprint(
        weight_bytes=size * _numbers(parts.sizes),
        **_halved(parts, dtype, known),
        kv_bytes_per_token=size * kv_numbers,
        pair_bytes=size * folded_lines(parts.target) if kv_numbers else 0,
        vocabulary=parts.target.vocabulary,
        number_bytes=size,
        beside=_tapping(
            parts,
            dtype,
            Beside(
                read_bytes=read_bytes,
                carried_bytes=size * (len(parts.reads) * parts.target.hidden + carried_numbers),
                further_positions=further,
                said=said,
            ),
        ),
    )


def _tapping(parts: DrafterParts, dtype: str, beside: Beside) -> Beside:
    """Return how a drafter works, with the hidden states that its target keeps for it."""
    whole, state = parts.target.layers, bytes_of(dtype) * parts.target.hidden
    return replace(
        beside,
        tapped_bytes=len(parts.reads) * state,
        waiting_bytes=sum(passed < whole - 1 for passed in parts.reads) * state,
        answering_bytes=sum(passed < whole for passed in parts.reads) * state,
    )


def _target_heads(parts: DrafterParts) -> _Heads:
    target = parts.target
    return _Heads(heads=target.heads, kv_heads=target.kv_heads, head_dim=target.head_dim)


def _fused(parts: DrafterParts, name: str) -> list[tuple[int, ...]]:
    """Return the sizes of a layer's matrices in memory: those of one input as one."""
    sizes = {one: parts.sizes.get(f"{name}.{one}_proj.weight") for one in ("mlp.gate", "mlp.down")}
    queries, keys, out = (parts.sizes[f"{name}.self_attn.{one}_proj.weight"] for one in "qko")
    found: list[tuple[int, ...]] = [(queries[0] + 2 * keys[0], queries[1]), out]
    gate, down = sizes["mlp.gate"], sizes["mlp.down"]
    return found if gate is None or down is None else [*found, (2 * gate[0], gate[1]), down]


def _halved(parts: DrafterParts, dtype: str, matrices: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return what halves of matrices save and take again, by `Footprint`'s names."""
    if (dtype, parts.stored_dtype) != ("float32", "bfloat16"):
        return {}
    sizes = [(rows, columns) for rows, columns in matrices]
    return {"halved_bytes": halves_save(sizes), "widened_bytes": most_widened(sizes)}


def _numbers(sizes: Mapping[str, tuple[int, ...]], but: str = "") -> int:
    return sum(math.prod(size) for name, size in sizes.items() if name != but)
