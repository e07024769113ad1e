"""Random block drafters behind tiny targets, and what they say by their published formulas: no cache, no own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from spectune.runtime.models.block import BlockHead
from spectune.runtime.models.block_shape import BlockShape, Kind
from spectune.runtime.models.ctc import CtcHead, tensor_shapes
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.medusa import MedusaHeads

Weights = dict[str, Tensor]
DEPTH, FRAMES, INNER = 4, 5, 24
KINDS: tuple[Kind, ...] = ("medusa", "ctc")


def block_shape_of(kind: Kind, target: LlamaForCausalLM, weights_hash: str = "") -> BlockShape:
    is_ctc = kind == "ctc"
    return BlockShape(
        kind=kind, depth=DEPTH, reads=(target.config.num_hidden_layers,), target=weights_hash,
        frames=FRAMES if is_ctc else 0, intermediate=INNER if is_ctc else 0,
    )  # fmt: skip


def block_weights(kind: Kind, target: LlamaForCausalLM, *, seed: int = 0) -> Weights:
    """Return random tensors of a block drafter, float64."""
    noise, d = torch.Generator().manual_seed(seed), target.config.hidden_size
    if kind == "medusa":
        sizes: Mapping[str, tuple[int, ...]] = {
            "heads.weight": (DEPTH * d, d), "heads.bias": (DEPTH * d,), "outs.weight": (DEPTH, d, d),
        }  # fmt: skip
    else:
        sizes = tensor_shapes(LeanModel(target).anatomy, block_shape_of(kind, target))
    return {name: 0.3 * torch.randn(*size, generator=noise, dtype=torch.float64) for name, size in sizes.items()}


def tiny_block(kind: Kind, target: LlamaForCausalLM, weights: Weights) -> BlockHead:
    """Return the drafter beside the lean form of its target."""
    made = MedusaHeads if kind == "medusa" else CtcHead
    return made(weights, block_shape_of(kind, target), LeanModel(target))


def exact_said(kind: Kind, target: LlamaForCausalLM, w: Weights, text: Sequence[int]) -> Tensor:
    """Return (places, scores): what is said behind a committed text, whose newest token the target has not read."""
    with torch.no_grad():
        states = target(torch.tensor([list(text[:-1])]), output_hidden_states=True).hidden_states[-1][0]
        if kind == "medusa":
            x, d = states[-1], states.shape[1]
            heads = zip(w["heads.weight"].split(d), w["heads.bias"].split(d), w["outs.weight"], strict=True)
            return torch.stack([target.lm_head(x + out @ F.silu(weight @ x + bias)) for weight, bias, out in heads])
        left = target.model.norm(frames_of(target, w, text, states))
        return torch.cat((target.lm_head(left), left @ w["blank.weight"].T), dim=-1).log_softmax(-1)


def frames_of(target: LlamaForCausalLM, w: Weights, text: Sequence[int], states: Tensor) -> Tensor:
    """Return (frames, hidden) behind a text, the layer written out."""
    c, last = target.config, len(text) - 1
    tokens = target.model.embed_tokens(torch.tensor(text[1:]))
    joined = F.linear(torch.cat((tokens, states), -1), w["join.weight"])
    rows = torch.cat((joined, joined[-1] + w["queries.weight"]))
    places = torch.cat((torch.arange(1, last + 1), last + 1 + torch.arange(FRAMES)))

    def normed(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c.rms_norm_eps) * w[f"layer.{name}.weight"]

    size, groups = int(c.head_dim or 0), c.num_attention_heads // int(c.num_key_value_heads or 1)
    reading = normed(rows, "input_layernorm")
    q, k, v = (
        F.linear(reading, w[f"layer.self_attn.{one}_proj.weight"]).view(len(rows), -1, size).transpose(0, 1)
        for one in "qkv"
    )
    cosine, sine = LlamaRotaryEmbedding(c)(q, places[None])
    q, k = (part[0] for part in apply_rotary_pos_emb(q[None], k[None], cosine, sine))
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    mixed = ((q[:, last:] @ k.transpose(1, 2)) / size**0.5).softmax(-1) @ v  # a frame sees the text and all frames
    hidden = rows[last:] + F.linear(mixed.transpose(0, 1).flatten(1), w["layer.self_attn.o_proj.weight"])
    x = normed(hidden, "post_attention_layernorm")
    gated = F.silu(F.linear(x, w["layer.mlp.gate_proj.weight"])) * F.linear(x, w["layer.mlp.up_proj.weight"])
    return hidden + F.linear(gated, w["layer.mlp.down_proj.weight"])


def collapsed(path: Sequence[int], blank: int) -> tuple[int, ...]:
    """Return what a path of frames says: neighbours that are alike merged, then blanks left out."""
    merged = [token for place, token in enumerate(path) if place == 0 or path[place - 1] != token]
    return tuple(token for token in merged if token != blank)


def chances_of_prefixes(said: Tensor) -> dict[tuple[int, ...], float]:
    """Return the chance that what frames say begins with each prefix, by trying every path of them.

    Args:
        said: (frames, vocabulary + 1) log-probabilities, the blank's last.
    """
    blank = said.shape[1] - 1
    found: dict[tuple[int, ...], float] = {}
    for path in product(range(blank + 1), repeat=len(said)):
        chance = float(said[range(len(said)), list(path)].sum().exp())
        text = collapsed(path, blank)
        for length in range(len(text) + 1):
            found[text[:length]] = found.get(text[:length], 0.0) + chance
    return found
