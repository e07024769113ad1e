"""A SpecFormer as torch trains it, and its loss; see `block`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from ..runtime.models.drafter_shapes import BlockShape
from .frozen import FrozenTarget

STACKED = ("norms", "places")  # modules whose tensors the runtime reads as one


class SpecFormerModule(nn.Module):
    """Attention to the text, a matrix per place, attention between places; see `runtime.models.specformer`."""

    def __init__(self, target: PreTrainedModel, shape: BlockShape) -> None:
        super().__init__()
        config = target.config
        hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
        pairs = int(getattr(config, "num_key_value_heads", None) or heads)
        self.size = int(getattr(config, "head_dim", None) or hidden // heads)
        self.joins_newest = 0 not in shape.reads
        inputs, eps = len(shape.reads) + self.joins_newest, float(config.rms_norm_eps)
        queries = (heads * self.size, pairs * self.size)
        self.norms = nn.ModuleList([LlamaRMSNorm(hidden, eps=eps) for _ in range(inputs)])
        self.join = nn.Linear(inputs * hidden, shape.width, bias=False)
        self.context = nn.ModuleDict(_attention(shape.width, *queries, eps=eps))
        self.place_norm = LlamaRMSNorm(shape.width, eps=eps)
        self.places = nn.ModuleList([nn.Linear(shape.width, hidden) for _ in range(shape.depth)])
        mlp = {one: nn.Linear(hidden, shape.intermediate, bias=False) for one in ("gate_proj", "up_proj")}
        mlp["down_proj"] = nn.Linear(shape.intermediate, hidden, bias=False)
        behind = {"mlp": nn.ModuleDict(mlp), "post_attention_layernorm": LlamaRMSNorm(hidden, eps=eps)}
        self.draft = nn.ModuleDict(_attention(hidden, *queries, eps=eps) | behind)

    def forward(self, embedded: Tensor, states: Tensor, anchors: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return (batch, anchors, places, hidden), before the target's final norm.

        Args:
            embedded: (batch, tokens, hidden), of a text's tokens from its second on.
            states: (batch, tokens, states read * hidden), of the token before each.
            anchors: (batch, anchors), indices of these tokens.
            turns: of places 1 .. tokens of a text, from transformers' rotary embedding.
        """
        parts = [*states.chunk(len(self.norms) - self.joins_newest, dim=2), *([embedded] if self.joins_newest else [])]
        normed = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        seen = self._through_text(self.join(torch.cat(normed, dim=-1)), anchors, turns)
        reading = self.place_norm(seen)
        return self._through_places(torch.stack([place(reading) for place in self.places], dim=2))

    def said(self, target: FrozenTarget, ids: Tensor, states: Tensor, anchors: Tensor) -> Tensor:
        """Return logits (batch * anchors, places, vocabulary) at anchors (batch, anchors) of texts and their states."""
        embedded = target.embedded(ids[:, 1:])
        places = torch.arange(1, ids.shape[1], device=ids.device).unsqueeze(0)
        left = self(embedded, states[:, :-1], anchors, target.turns(embedded, places))
        return target.said(target.final_norm(left.flatten(0, 1)))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for the runtime: all norms, and all places, concatenated."""
        kept = {name: weight for name, weight in self.state_dict().items() if name.split(".")[0] not in STACKED}
        weights, biases = ([getattr(place, name) for place in self.places] for name in ("weight", "bias"))
        norms = torch.stack([next(norm.parameters()) for norm in self.norms])
        return kept | {"norms.weight": norms, "places.weight": torch.cat(weights), "places.bias": torch.cat(biases)}

    def _through_text(self, joined: Tensor, anchors: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return (batch, anchors, width) for tokens (batch, tokens, width)."""
        query, key, value = self._heads(self.context, joined)
        query, key = apply_rotary_pos_emb(query, key, *(part[:, : joined.shape[1]] for part in turns))
        wanted = anchors[:, None, :, None].expand(-1, query.shape[1], -1, self.size)
        is_open = torch.arange(joined.shape[1], device=anchors.device) <= anchors.unsqueeze(2)
        mixed = _mixed(query.gather(2, wanted), key, value, is_open.unsqueeze(1))
        own = joined.gather(1, anchors.unsqueeze(2).expand(-1, -1, joined.shape[2]))
        left: Tensor = own + self.context["self_attn"]["o_proj"](mixed)  # type: ignore[index]
        return left

    def _through_places(self, places: Tensor) -> Tensor:
        flat, draft = places.flatten(0, 1), self.draft
        mixed = _mixed(*self._heads(draft, flat), None)
        hidden = flat + draft["self_attn"]["o_proj"](mixed)  # type: ignore[index]
        x, mlp = draft["post_attention_layernorm"](hidden), draft["mlp"]
        assert isinstance(mlp, nn.ModuleDict), "as it was made"
        left: Tensor = hidden + mlp["down_proj"](F.silu(mlp["gate_proj"](x)) * mlp["up_proj"](x))
        return left.view_as(places)

    def _heads(self, block: nn.ModuleDict, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (batch, heads, n, size) of (batch, n, any)."""
        attention, reading = block["self_attn"], block["input_layernorm"](hidden)
        assert isinstance(attention, nn.ModuleDict), "as it was made"
        query, key, value = (
            attention[f"{one}_proj"](reading).unflatten(-1, (-1, self.size)).transpose(1, 2) for one in "qkv"
        )
        return query, key, value


def specformer_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean of the places' cross-entropies.

    `logits` is (anchors, places, vocabulary); `wanted` (anchors, places), tokens from two places behind each anchor.

    Source: Shi et al. 2026, arXiv:2511.20340.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


def _attention(hidden: int, queries: int, pairs: int, *, eps: float) -> dict[str, nn.Module]:
    widths = {"q": queries, "k": pairs, "v": pairs}
    projections = {f"{one}_proj": nn.Linear(hidden, width, bias=False) for one, width in widths.items()}
    projections["o_proj"] = nn.Linear(queries, hidden, bias=False)
    return {"self_attn": nn.ModuleDict(projections), "input_layernorm": LlamaRMSNorm(hidden, eps=eps)}


def _mixed(query: Tensor, key: Tensor, value: Tensor, is_open: Tensor | None) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=is_open)
    return mixed.transpose(1, 2).flatten(2)
