"""What decoding by a policy takes of memory at its peak: weights, caches, masks, and the largest forward's own results.

    peak     = held + the most that any forward has alive at once
    held     = weights and tables of target and drafters + slots * capacity * (key-value bytes per token of all) + masks
    capacity = context + what a round drafts or verifies at most + 1
    forward  = max(rows * row_bytes + pairs * pair_bytes,  rows * vocabulary * bytes per logit)

A forward's first peak lies inside a layer, its second where tokens are drawn from its logits. A pair is a fed token
and a cache position in its sight; masks have an entry for each. All of it is counted in bytes that torch's allocator
hands out, for the lean forward run eagerly: what libraries map or keep for themselves, and CUDA graphs, are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import PlanError
from ..profiler.records.architecture import Architecture, bytes_of
from .cost import Cell
from .policy import (
    CachebackPolicy,
    CastPolicy,
    ChainPolicy,
    ConfidentChainPolicy,
    Eagle2Policy,
    HybridPolicy,
    LookupPolicy,
    LossyPolicy,
    OptTreePolicy,
    PlainPolicy,
    StackPolicy,
    StaticPolicy,
    SuffixPolicy,
    SuffixTreePolicy,
    TalonPolicy,
    TreePolicy,
    drafting,
)
from .room import most_drafted

if TYPE_CHECKING:
    from .inputs import PlanInputs

LOOKUP = "lookup"  # drafts from the text itself, without weights or a cache
PIECE = 512  # most tokens of a prompt that are read at once
LEAST_HALVED = 2**16  # elements of a weight that is kept in halves: as runtime/models/few_rows.py
BEYOND = 64  # positions behind the longest context that position tables hold for drafts
DRAWN = 4  # bytes of a number that tokens are drawn or chosen by
NOISE = 24  # bytes alive at once for each number of noise that is made: three of 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one model takes in the number format it runs in; what is 0 is not counted."""

    weight_bytes: int
    kv_bytes_per_token: int  # of all layers
    table_bytes: int = 0  # cosines and sines of all positions
    tied_head_bytes: int = 0  # of an output head that is the token table, as a CPU may hold it a second time
    halved_bytes: int = 0  # that a CPU saves by keeping float32 weights of a bfloat16 checkpoint as their upper halves
    row_bytes: int = 0  # alive at once inside a layer, per token fed
    pair_bytes: int = 0  # of a layer's mask, per token fed and cache position in its sight
    vocabulary: int = 0
    number_bytes: int = 0

    def __post_init__(self) -> None:
        if self.weight_bytes < 1 or self.kv_bytes_per_token < 0:
            raise PlanError(f"a footprint needs weight_bytes >= 1 and kv_bytes_per_token >= 0, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The most that a decoder holds and feeds at once."""

    slots: int  # sequences
    capacity: int  # cache positions of each
    prompt_tokens: int  # of the longest prompt
    verify_tokens: int  # per sequence, root and padding included
    verify_depths: int = 1  # different places in the text that these tokens stand at
    layer_tokens: int = 0  # per sequence, in the widest forward of a drafter; 0 without a drafting model
    scored_tokens: int = 0  # of these, those whose scores are looked at
    is_ranked: bool = False  # those forwards are asked for their best tokens alone, not for probabilities
    unread_tokens: int = 0  # per sequence, committed since the drafter last read


def footprint_of(architecture: Architecture, dtype: str) -> Footprint:
    """Return what a model takes in a number format, as the lean forward keeps and runs it.

    A row's numbers are most where the MLP's first product is ready and the layer's before is not yet forgotten: the
    layer's input, its sum with attention and that normed; query, key and value, what attention mixed, the angles; and
    both halves of the MLP twice.

    Raises:
        ModelError: the format is unknown.
    """
    size, heads, kv_heads = bytes_of(dtype), architecture.heads, architecture.kv_heads
    attention = 2 * (heads + kv_heads + 1) * architecture.head_dim
    positions = architecture.longest_context + BEYOND if architecture.longest_context else 0
    is_halved = (dtype, architecture.stored_dtype) == ("float32", "bfloat16")
    kept_again = bytes_of("bfloat16") if is_halved or dtype == "bfloat16" else 0  # of each number of a tied head
    return Footprint(
        weight_bytes=architecture.weight_bytes(dtype),
        halved_bytes=_halved_bytes(architecture) if is_halved else 0,
        kv_bytes_per_token=architecture.kv_bytes_per_token(dtype),
        table_bytes=2 * size * positions * architecture.head_dim,
        tied_head_bytes=kept_again * architecture.vocabulary * architecture.hidden if architecture.is_tied else 0,
        row_bytes=size * (3 * architecture.hidden + attention + 4 * architecture.intermediate),
        pair_bytes=size * (heads // kv_heads),
        vocabulary=architecture.vocabulary,
        number_bytes=size,
    )


def memory_bytes(
    cell: Cell, policy: TreePolicy, drafter: str | None, inputs: PlanInputs, run_tokens: Sequence[int] = ()
) -> int | None:
    """Return the peak of decoding by a policy in a cell; None where a model's footprint is not known.

    Args:
        cell: its batch and context.
        policy: what is drafted.
        drafter: name among the inputs' drafters, of a stack, "lookup", or None.
        inputs: whose footprints count, on whose device.
        run_tokens: index = tokens in the tree, value = tokens fed; where a round runs padded.
    """
    drafts = drafting(policy)
    names = drafts.models if isinstance(drafts, StackPolicy) else [drafter]
    keys = [inputs.drafter(name).model.key for name in names if name not in (None, LOOKUP)]
    if any(key not in inputs.footprints for key in (inputs.target.key, *keys)):
        return None
    return peak_bytes(
        inputs.footprints[inputs.target.key],
        [inputs.footprints[key] for key in keys],
        load_of(cell, policy, run_tokens),
        device_kind=inputs.device.kind,
        is_sampled=inputs.temperature > 0,
    )


def load_of(cell: Cell, policy: TreePolicy, run_tokens: Sequence[int] = ()) -> Load:
    """Return what a policy holds and feeds in a cell, the cell's context being taken for the longest prompt."""
    verified, drafts = policy.max_verify_tokens, drafting(policy)
    fed = max(verified, *run_tokens[: verified + 1], 1)
    return Load(
        slots=cell.batch,
        capacity=cell.context + max(most_drafted(policy, cell.batch), fed) + 1,
        prompt_tokens=cell.context,
        verify_tokens=fed,
        verify_depths=1 + _deepest(policy),
        layer_tokens=widest_layer(policy),
        scored_tokens=drafts.max_chain + 1 if isinstance(drafts, StackPolicy) else widest_layer(policy),
        is_ranked=isinstance(drafts, StackPolicy),
        unread_tokens=1 + _deepest(policy),
    )


def peak_bytes(
    target: Footprint, drafters: Sequence[Footprint], load: Load, *, device_kind: str, is_sampled: bool
) -> int:
    """Return the most bytes that a decoder's tensors take at once.

    Args:
        target: its footprint.
        drafters: of every model that drafts.
        load: what is held and fed.
        device_kind: "cpu" or "cuda".
        is_sampled: whether requests have a temperature above 0.
    """
    piece, models = min(PIECE, load.prompt_tokens), [target, *drafters]
    prompt_pairs = piece * load.prompt_tokens
    fed = {"verify": load.verify_tokens, "layer": load.layer_tokens, "unread": load.unread_tokens}
    rows = {name: load.slots * tokens for name, tokens in fed.items()}
    pairs = {name: count * load.capacity for name, count in rows.items()}
    held = sum(_held(model, device_kind) for model in models)
    held += load.slots * load.capacity * sum(model.kv_bytes_per_token for model in models)
    piece_pairs = piece * load.capacity  # masks have room for the whole cache from the first
    held += max(piece_pairs, pairs["verify"]) * _mask_bytes(target, device_kind)
    held += sum(max(piece_pairs, *pairs.values()) * _mask_bytes(model, device_kind) for model in drafters)
    forwards = [_inside(model, piece, prompt_pairs) for model in models]
    forwards += [
        _inside(target, rows["verify"], pairs["verify"]),
        _drawing_bytes(target, load, device_kind, is_sampled),
    ]
    for model in drafters:
        forwards += [_inside(model, rows[name], pairs[name]) for name in ("layer", "unread")]
        forwards.append(_scoring_bytes(model, load, is_sampled))
    return held + max(forwards)


def widest_layer(policy: TreePolicy) -> int:
    """Return the most tokens per sequence that one forward of a drafter has logits for; 0 where no model drafts."""
    match policy:
        case PlainPolicy() | LookupPolicy() | SuffixPolicy() | SuffixTreePolicy() | CachebackPolicy():
            return 0
        case ChainPolicy() | ConfidentChainPolicy():
            return 1
        case HybridPolicy():
            return widest_layer(policy.model)
        case LossyPolicy():
            return widest_layer(policy.draft)
        case StackPolicy():
            return 1 + 2 * policy.max_chain  # what was committed is read again before what is drafted below
        case StaticPolicy():
            return max(len(inner) for inner in policy.tree.inner_by_depth())
        case Eagle2Policy():
            return policy.top_k
        case CastPolicy():
            return policy.max_width
        case OptTreePolicy():
            return min(policy.nodes, int(policy.children ** (policy.max_depth - 1)))
        case TalonPolicy():
            return max(1, min(policy.top_k, policy.nodes - 2), policy.nodes - 2 - policy.top_k)


def _deepest(policy: TreePolicy) -> int:
    """Return the most drafted tokens on one path of a tree."""
    match policy:
        case LookupPolicy() | SuffixPolicy():
            return policy.length
        case SuffixTreePolicy():
            return policy.nodes - 1
        case CachebackPolicy():
            return min(policy.max_depth, policy.nodes - 1)
        case HybridPolicy():
            return max(_deepest(policy.text), _deepest(policy.model))
        case LossyPolicy():
            return _deepest(policy.draft)
        case StackPolicy():
            return policy.max_chain
        case _:
            return min(policy.draft_forwards, policy.max_verify_tokens - 1)


def _held(model: Footprint, device_kind: str) -> int:
    """Return a model's weights and tables; a tied head in oneDNN's layout or in halves is a second token table."""
    on_cpu = model.tied_head_bytes - model.halved_bytes if device_kind == "cpu" else 0
    return model.weight_bytes + model.table_bytes + on_cpu


def _halved_bytes(architecture: Architecture) -> int:
    """Return what upper halves of a lean model's matrices save; see runtime/models/few_rows.py."""
    heads = architecture.head_dim * architecture.heads
    both = architecture.head_dim * 2 * architecture.kv_heads
    hidden, inner = architecture.hidden, architecture.intermediate
    matrices = [(heads + both, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)] * architecture.layers
    matrices += [] if architecture.is_tied else [(architecture.vocabulary, hidden)]
    halved = [rows * columns for rows, columns in matrices if rows * columns >= LEAST_HALVED and rows % 2 == 0]
    return (bytes_of("float32") - bytes_of("bfloat16")) * sum(halved)


def _mask_bytes(model: Footprint, device_kind: str) -> int:
    """Return the bytes of one mask entry: masks are made in float32 on the host and kept as the model takes them."""
    return model.number_bytes + (DRAWN if device_kind == "cpu" and model.number_bytes else 0)


def _inside(model: Footprint, rows: int, pairs: int) -> int:
    return rows * model.row_bytes + pairs * model.pair_bytes


def _drawing_bytes(model: Footprint, load: Load, device_kind: str, is_sampled: bool) -> int:
    """Return what drawing from the target's logits takes, themselves included.

    Noise is made once per place in the text and spread over the tokens that stand there.
    """
    logits = load.slots * load.verify_tokens * model.vocabulary
    if not is_sampled:
        is_copied = device_kind == "cpu" and model.number_bytes < DRAWN  # numpy knows no bfloat16
        return logits * (model.number_bytes + (DRAWN if is_copied else 0))
    made = load.slots * load.verify_depths * model.vocabulary
    return logits * (model.number_bytes + DRAWN) + max(NOISE * made, DRAWN * (made + 2 * logits))


def _scoring_bytes(model: Footprint, load: Load, is_sampled: bool) -> int:
    """Return what scoring a drafter's widest forward takes, its logits included."""
    copied = DRAWN if model.number_bytes < DRAWN else 0
    logits, scored = (load.slots * tokens * model.vocabulary for tokens in (load.layer_tokens, load.scored_tokens))
    if not load.is_ranked:
        return logits * (model.number_bytes + (DRAWN if is_sampled else copied) + DRAWN)
    chosen = scored * (model.number_bytes + copied)  # taken out of the logits, and in float32
    return logits * model.number_bytes + chosen + (max(NOISE * scored, 3 * DRAWN * scored) if is_sampled else 0)
