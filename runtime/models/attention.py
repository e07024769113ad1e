"""Attention of a lean forward, by torch's kernels or by ours."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .anatomy import Anatomy, LayerWeights
from .bits import bits, is_kernels
from .forward import TreeMask
from .kernels.bfloat16_attention import attend as attend_halves
from .kernels.bfloat16_dots import has_dots
from .kernels.emitted import LANES
from .kernels.host_rows import AttentionInput, attend_rows, shared_attend_rows
from .kernels.tree_attention import attend_tree
from .places import Place, View

MOST_COMPILED = 2**20  # products of queries and keys: beyond, torch's attention is faster than kernels of float32


def turned(anatomy: Anatomy, layer: LayerWeights, qkv: Tensor, view: View) -> tuple[Tensor, Tensor]:
    """Return queries (batch, n, heads, size), and keys and values (batch * n, width) as the cache holds them."""
    heads, kv_heads, size = anatomy.heads, anatomy.kv_heads, anatomy.size
    lanes = norm_heads(layer, qkv).view(*view.turns.shape[:2], -1, size)[:, :, : heads + kv_heads]
    rolled = lanes.roll(size // 2, dims=-1)
    lanes.mul_(view.cosine).addcmul_(rolled, view.sine)
    return lanes[:, :, :heads], qkv[:, heads * size :]


def norm_heads(layer: LayerWeights, qkv: Tensor) -> Tensor:
    """Norm queries and keys (rows, any) in place, head by head, in the families that do; return all of it."""
    if layer.head_norm is not None:
        layer.head_norm.norm_front(qkv)
    return qkv


def attend_by_tree(
    anatomy: Anatomy, layer: LayerWeights, qkv: Tensor, states: Tensor, place: Place, view: View, tree: TreeMask
) -> Tensor:
    """Do `turned`, a write and `attend` by kernels that read the tree: few launches, and no mask."""
    norm = layer.head_norm
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    return attend_tree(
        qkv, states[place.slots], tree.starts, tree.bits, place.columns, view.positions, view.table, weight,
        heads=anatomy.heads, kv_heads=anatomy.kv_heads, scale=layer.scale, eps=eps, window=view.window,
        hides_first=anatomy.hides_first,
    )  # fmt: skip


def is_compiled_attention(anatomy: Anatomy, x: Tensor, place: Place, view: View) -> bool:
    """Return whether `attend_compiled` is the faster attention for new tokens x (rows, any)."""
    if not is_kernels(x) or anatomy.attention_cap is not None:
        return False
    products = len(x) * anatomy.heads * anatomy.size * (place.seen - view.start)
    uses_threads = place.is_shared or torch.get_num_threads() == 1
    return products <= MOST_COMPILED or (uses_threads and is_by_dots(anatomy, x))


def is_by_dots(anatomy: Anatomy, x: Tensor) -> bool:
    """Return whether our bfloat16 products do the attention of new tokens (rows, any) on a CPU."""
    return x.dtype == torch.bfloat16 and anatomy.size % LANES == 0 and has_dots()


def attend_compiled(
    anatomy: Anatomy, layer: LayerWeights, qkv: Tensor, states: Tensor, place: Place, view: View
) -> Tensor:
    """Do `turned`, a write and `attend` by one compiled call on a CPU, where `is_compiled_attention`."""
    qkv, out = norm_heads(layer, qkv), qkv.new_empty((len(qkv), anatomy.heads * anatomy.size))
    given = attention_input(anatomy, layer, bits(states)[place.slots], place, view)
    if is_by_dots(anatomy, qkv):
        attend_halves(bits(qkv), given, bits(out), place.is_shared)
    elif place.is_shared:
        shared_attend_rows(bits(qkv), given, bits(out))
    else:
        attend_rows(bits(qkv), given, bits(out))
    return out


def attention_input(
    anatomy: Anatomy, layer: LayerWeights, states: NDArray[Any], place: Place, view: View
) -> AttentionInput:
    """Return what kernels read beside queries, keys and values; `states` are those of the tokens' slots."""
    return AttentionInput(
        view.turn_bits, states, view.bias_bits, place.column_numbers, view.start, place.seen, anatomy.heads, layer.scale
    )


def attend(anatomy: Anatomy, query: Tensor, states: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Mix values for (batch, n, heads, size) queries; rows of one key-value head lie together."""
    batch, count = query.shape[:2]
    kv_heads, size = anatomy.kv_heads, anatomy.size
    groups = anatomy.heads // kv_heads
    folded = query.reshape(batch, count, kv_heads, groups, size).transpose(1, 2)
    folded = folded.reshape(batch, kv_heads, count * groups, size)
    key, value = (part.transpose(1, 2) for part in states.view(*states.shape[:2], 2, kv_heads, size).unbind(2))
    if anatomy.attention_cap is None:
        mixed = F.scaled_dot_product_attention(folded, key, value, attn_mask=bias, scale=scale)
    else:
        mixed = _capped_attention(folded, key, value, bias, scale, anatomy.attention_cap)
    mixed = mixed.view(batch, kv_heads, count, groups, size).transpose(1, 2)  # a GPU's kernel may leave gaps in it
    return mixed.reshape(batch * count, groups * kv_heads * size)


def capped(x: Tensor, cap: float) -> Tensor:
    """Squash x into (-cap, cap) in place.

    Source: Gemma Team 2024, arXiv:2408.00118, Sec. 2, "logit soft-capping".
    """
    return x.div_(cap).tanh_().mul_(cap)


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, cap: float
) -> Tensor:
    """Do what scaled_dot_product_attention does, with scores squashed into (-cap, cap) before the mask."""
    scores = capped(torch.matmul(query, key.transpose(2, 3)).mul_(scale), cap)
    if bias is not None:
        scores += bias
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return torch.matmul(weights.to(value.dtype), value)
