"""Random block drafters behind tiny targets, and what they say by their published formulas: no cache, no own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from spectune.runtime.models.block import BlockHead
from spectune.runtime.models.ctc import tensor_shapes
from spectune.runtime.models.drafter import BLOCKS
from spectune.runtime.models.drafter_shapes import BlockShape, Kind
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.specformer import tensor_shapes as specformer_shapes
from spectune.runtime.models.target_sizes import sizes_of

Weights = dict[str, Tensor]
DEPTH, FRAMES, INNER, WIDTH = 4, 5, 24, 20
KINDS: tuple[Kind, ...] = ("medusa", "ctc", "specformer")


def block_shape_of(kind: Kind, target: LlamaForCausalLM, *, published: bool = False) -> BlockShape:
    """Return a block drafter's shape; a SpecFormer reads the newest token's embedding, or as published."""
    layers = int(target.config.num_hidden_layers)
    inside = (0, 1, layers) if published else (1, layers)
    return BlockShape(
        kind=kind, depth=DEPTH, reads=inside if kind == "specformer" else (layers,), target="",
        frames=FRAMES if kind == "ctc" else 0, intermediate=0 if kind == "medusa" else INNER,
        width=WIDTH if kind == "specformer" else 0,
    )  # fmt: skip


def block_weights(kind: Kind, target: LlamaForCausalLM, *, seed: int = 0, published: bool = False) -> Weights:
    """Return random tensors of a block drafter, float64."""
    noise, d = torch.Generator().manual_seed(seed), target.config.hidden_size
    if kind == "medusa":
        sizes: Mapping[str, tuple[int, ...]] = {
            "heads.weight": (DEPTH * d, d), "heads.bias": (DEPTH * d,), "outs.weight": (DEPTH, d, d),
        }  # fmt: skip
    else:
        shapes = tensor_shapes if kind == "ctc" else specformer_shapes
        sizes = shapes(sizes_of(LeanModel(target).anatomy), block_shape_of(kind, target, published=published))
    return {name: 0.3 * torch.randn(*size, generator=noise, dtype=torch.float64) for name, size in sizes.items()}


def tiny_block(kind: Kind, target: LlamaForCausalLM, weights: Weights, *, published: bool = False) -> BlockHead:
    """Return the drafter beside the lean form of its target."""
    return BLOCKS[kind](weights, block_shape_of(kind, target, published=published), LeanModel(target))


def said_along(model: BlockHead, text: Sequence[int], pieces: Sequence[int] | None = None) -> Tensor:
    """Return (tokens, places, scores): what is said behind every token of a text, read in pieces or at once."""
    kept, start = model.new_cache(1, len(text)), 0
    features, said = model.along(text)[None], []
    for count in pieces or (len(text),):
        sees = np.tri(count, dtype=np.bool_)[None]
        piece = np.array([text[start : start + count]])
        step = lay_out(piece, np.arange(count), [start], sees, dtype=model.dtype, device=model.device)
        model.keep(features[:, start : start + count], step, kept)
        said.append(model.say(features[:, start : start + count], step, kept))
        start += count
    return torch.cat(said)


def exact_said(
    kind: Kind, target: LlamaForCausalLM, w: Weights, text: Sequence[int], *, published: bool = False
) -> Tensor:
    """Return (places, scores): what is said behind a committed text, whose newest token the target has not read."""
    with torch.no_grad():
        hidden = target(torch.tensor([list(text[:-1])]), output_hidden_states=True).hidden_states
        states = hidden[-1][0]
        if kind == "medusa":
            x, d = states[-1], states.shape[1]
            heads = zip(w["heads.weight"].split(d), w["heads.bias"].split(d), w["outs.weight"], strict=True)
            return torch.stack([target.lm_head(x + out @ F.silu(weight @ x + bias)) for weight, bias, out in heads])
        if kind == "specformer":
            newest = target.model.embed_tokens(torch.tensor(text[1:]))
            inputs = (hidden[0][0], hidden[1][0], states) if published else (hidden[1][0], states, newest)
            logits: Tensor = target.lm_head(target.model.norm(places_of(target.config, w, inputs)))
            return logits
        left = target.model.norm(frames_of(target, w, text, states))
        return torch.cat((target.lm_head(left), left @ w["blank.weight"].T), dim=-1).log_softmax(-1)


def places_of(c: LlamaConfig, w: Weights, inputs: Sequence[Tensor]) -> Tensor:
    """Return (places, hidden) of a SpecFormer behind a text: every score of both attentions is worked out by itself.

    Args:
        c: of the target.
        w: the drafter's tensors.
        inputs: (tokens, hidden) each, what is joined at the text's tokens from the second on.
    """
    size, heads, last = int(c.head_dim or 0), c.num_attention_heads, len(inputs[0]) - 1
    groups = heads // int(c.num_key_value_heads or 1)

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean() + c.rms_norm_eps) * weight

    def attended(rows: Sequence[Tensor], name: str, asker: int, places: Sequence[int] | None) -> Tensor:
        """Return what one row gets from all rows; places turn them."""
        reading = [normed(row, w[f"{name}.input_layernorm.weight"]) for row in rows]
        found = []
        for head in range(heads):
            of = {
                one: slice(size * at, size * (at + 1))
                for one, at in zip("qkv", (head, *[head // groups] * 2), strict=True)
            }
            parts = {one: [w[f"{name}.self_attn.{one}_proj.weight"][of[one]] @ row for row in reading] for one in of}
            if places is not None:
                parts["q"], parts["k"] = (
                    [turned(x, at) for x, at in zip(parts[one], places, strict=True)] for one in "qk"
                )
            scores = torch.stack([parts["q"][asker] @ key / size**0.5 for key in parts["k"]])
            found.append(sum(share * value for share, value in zip(scores.softmax(0), parts["v"], strict=True)))
        return w[f"{name}.self_attn.o_proj.weight"] @ torch.cat(found)

    def turned(x: Tensor, place: int) -> Tensor:
        cosine, sine = LlamaRotaryEmbedding(c)(x[None, None], torch.tensor([[place]]))
        both: tuple[Tensor, Tensor] = apply_rotary_pos_emb(x[None, None, None], x[None, None, None], cosine, sine)
        return both[0][0, 0, 0]

    joined = [
        w["join.weight"] @ torch.cat([normed(x, weight) for x, weight in zip(parts, w["norms.weight"], strict=True)])
        for parts in zip(*inputs, strict=True)
    ]
    seen = joined[last] + attended(joined, "context", last, range(1, last + 2))
    each = w["places.weight"] @ normed(seen, w["place_norm.weight"]) + w["places.bias"]
    rows = each.view(DEPTH, -1)
    left = []
    for place, row in enumerate(rows):
        row = row + attended(list(rows), "draft", place, None)
        x = normed(row, w["draft.post_attention_layernorm.weight"])
        gated = F.silu(w["draft.mlp.gate_proj.weight"] @ x) * (w["draft.mlp.up_proj.weight"] @ x)
        left.append(row + w["draft.mlp.down_proj.weight"] @ gated)
    return torch.stack(left)


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
