"""Attention of a lean forward: queries and keys are turned, values mixed, by torch's kernels or by ours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .anatomy import Anatomy, LayerWeights
from .forward import TreeMask
from .kernels.fused_rows import turn_and_store
from .kernels.tree_attention import attend_tree
from .places import Place, View


def turned(anatomy: Anatomy, layer: LayerWeights, qkv: Tensor, view: View) -> tuple[Tensor, Tensor]:
    """Return queries (batch, n, heads, size), and keys and values (batch * n, width) as the cache holds them.

    Queries and keys are turned where the projection wrote them, so that keys and values lie together already.
    """
    heads, kv_heads, size = anatomy.heads, anatomy.kv_heads, anatomy.size
    lanes = qkv.view(*view.cosine.shape[:2], -1, size)[:, :, : heads + kv_heads]
    if layer.head_norm is not None:
        lanes.copy_(layer.head_norm(lanes))
    rolled = lanes.roll(size // 2, dims=-1)
    lanes.mul_(view.cosine).addcmul_(rolled, view.sine)
    return lanes[:, :, :heads], qkv[:, heads * size :]


def attend_by_tree(
    anatomy: Anatomy, layer: LayerWeights, qkv: Tensor, states: Tensor, place: Place, view: View, tree: TreeMask
) -> Tensor:
    """Do what `turned`, a write and `attend` do, by kernels that read the tree: few launches, and no mask."""
    heads, kv_heads, size = anatomy.heads, anatomy.kv_heads, anatomy.size
    lanes = qkv.view(*view.cosine.shape[:2], -1, size)
    if layer.head_norm is not None:
        normed = lanes[:, :, : heads + kv_heads]
        normed.copy_(layer.head_norm(normed))
    turn_and_store(qkv, view.cosine, view.sine, states, place.rows, heads=heads, kv_heads=kv_heads)
    query, own = lanes[:, :, :heads], states[place.slots]
    return attend_tree(query, own, tree.starts, tree.bits, scale=layer.scale, kv_heads=kv_heads)


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
    """Squash x into (-cap, cap) where it lies.

    Source: Gemma Team 2024, arXiv:2408.00118, Sec. 2, "logit soft-capping".
    """
    return x.div_(cap).tanh_().mul_(cap)


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, cap: float
) -> Tensor:
    """Return what scaled_dot_product_attention does, with scores squashed into (-cap, cap) before the mask."""
    scores = capped(torch.matmul(query, key.transpose(2, 3)).mul_(scale), cap)
    if bias is not None:
        scores += bias
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return torch.matmul(weights.to(value.dtype), value)
