"""Block drafters as torch trains them, and their published losses.

An anchor is a place t of a text whose newest token is x[t + 1]: a drafter reads the target's state behind x[t], and
drafts x[t + 2], x[t + 3], ...
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from ..runtime.models.drafter_shapes import BlockShape

DISCOUNT = 0.8  # of Medusa's losses, per head
FIRST = 0.1  # weight of the first frame's own cross-entropy beside CTC's loss


class MedusaModule(nn.Module):
    """One residual block per head, initially the target's own head. See `runtime.models.medusa`.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, Sec. 2.1.1.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(heads)])
        outs = [nn.Linear(hidden, hidden, bias=False) for _ in range(heads)]
        for out in outs:
            nn.init.zeros_(out.weight)
        self.outs = nn.ModuleList(outs)

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., heads, hidden) for final-normed states (..., hidden)."""
        pairs = zip(self.heads, self.outs, strict=True)
        return torch.stack([states + out(F.silu(head(states))) for head, out in pairs], dim=-2)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for the runtime, all heads concatenated."""
        weights, biases = ([getattr(head, name) for head in self.heads] for name in ("weight", "bias"))
        outs = torch.stack([next(out.parameters()) for out in self.outs])
        return {"heads.weight": torch.cat(weights), "heads.bias": torch.cat(biases), "outs.weight": outs}


def medusa_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean of the heads' cross-entropies, head k weighing 0.8^k.

    `logits` is (anchors, heads, vocabulary); `wanted` (anchors, heads), the tokens from two places behind each anchor.

    Source: Cai et al. 2024, arXiv:2401.10774, Eq. 1.
    """
    weights = DISCOUNT ** torch.arange(wanted.shape[1], device=wanted.device)
    nats = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none").view(wanted.shape)
    return (nats.mean(dim=0) * weights).sum() / weights.sum()


class CtcModule(nn.Module):
    """The layer of a CTC drafter, with the target's heads and rotary turns; see `runtime.models.ctc`."""

    def __init__(self, target: PreTrainedModel, shape: BlockShape) -> None:
        super().__init__()
        config = target.config
        hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
        pairs = int(getattr(config, "num_key_value_heads", None) or heads)
        self.size = int(getattr(config, "head_dim", None) or hidden // heads)
        eps = float(config.rms_norm_eps)
        self.join = nn.Linear(2 * hidden, hidden, bias=False)
        self.queries = nn.Embedding(shape.frames, hidden)  # so that it is trained as embeddings are, by AdamW
        self.blank = nn.Embedding(1, hidden)
        widths = {"q": heads * self.size, "k": pairs * self.size, "v": pairs * self.size}
        attention = {f"{one}_proj": nn.Linear(hidden, width, bias=False) for one, width in widths.items()}
        attention["o_proj"] = nn.Linear(heads * self.size, hidden, bias=False)
        inner = shape.intermediate
        mlp = {one: nn.Linear(hidden, inner, bias=False) for one in ("gate_proj", "up_proj")}
        mlp["down_proj"] = nn.Linear(inner, hidden, bias=False)
        self.layer = nn.ModuleDict(
            {
                "self_attn": nn.ModuleDict(attention),
                "mlp": nn.ModuleDict(mlp),
                "input_layernorm": LlamaRMSNorm(hidden, eps=eps),
                "post_attention_layernorm": LlamaRMSNorm(hidden, eps=eps),
            }
        )
        nn.init.normal_(self.queries.weight, std=0.5)
        nn.init.zeros_(self.blank.weight)

    def forward(self, embedded: Tensor, states: Tensor, anchors: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return (batch, anchors, frames, hidden), before the target's final norm.

        Args:
            embedded: (batch, tokens, hidden), of a text's tokens from its second on.
            states: (batch, tokens, hidden), final-normed, of the token before each.
            anchors: (batch, anchors), indices of these tokens.
            turns: of places 1 .. tokens + frames of a text, from transformers' rotary embedding.
        """
        joined = self.join(torch.cat((embedded, states), dim=-1))
        frames, count = self.queries.num_embeddings, joined.shape[1]
        picked = joined.gather(1, anchors.unsqueeze(2).expand(-1, -1, joined.shape[2]))
        entered = (picked.unsqueeze(2) + self.queries.weight).flatten(1, 2)
        own = torch.arange(frames, device=anchors.device)
        places = torch.cat(
            (
                torch.arange(count, device=anchors.device).expand(len(joined), -1),
                (anchors.unsqueeze(2) + 1 + own).flatten(1),
            ),
            dim=1,
        )
        turned = tuple(part[0][places] for part in turns)
        attention, mlp = self.layer["self_attn"], self.layer["mlp"]
        assert isinstance(attention, nn.ModuleDict) and isinstance(mlp, nn.ModuleDict), "as they were made"
        reading = self.layer["input_layernorm"](torch.cat((joined, entered), dim=1))
        query, key, value = (
            attention[f"{one}_proj"](reading[:, count if one == "q" else 0 :])
            .unflatten(-1, (-1, self.size))
            .transpose(1, 2)
            for one in "qkv"
        )
        query, _ = apply_rotary_pos_emb(query, query, *(part[:, count:] for part in turned))
        key, _ = apply_rotary_pos_emb(key, key, *turned)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=_sees(anchors, count, frames))
        hidden = entered + attention["o_proj"](mixed.transpose(1, 2).flatten(2))
        x = self.layer["post_attention_layernorm"](hidden)
        left: Tensor = hidden + mlp["down_proj"](F.silu(mlp["gate_proj"](x)) * mlp["up_proj"](x))
        return left.view(len(left), -1, frames, left.shape[2])

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for the runtime."""
        return dict(self.state_dict())


def ctc_loss(log_probs: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean nats per token of CTC, plus `FIRST` times the first frame's own cross-entropy.

    `log_probs` is (anchors, frames, vocabulary + 1), the blank's last; `wanted` (anchors, labels). An anchor with too
    few frames for its labels does not count.

    Source: Graves et al. 2006, Connectionist Temporal Classification, Eq. 12; Wen et al. 2024, arXiv:2412.00061.
    """
    anchors, frames, scores = log_probs.shape
    lengths = torch.full((anchors,), frames), torch.full((anchors,), wanted.shape[1])
    nats = F.ctc_loss(
        log_probs.transpose(0, 1), wanted, *lengths, blank=scores - 1, reduction="none", zero_infinity=True
    )
    first = F.nll_loss(log_probs[:, 0], wanted[:, 0])
    return nats.mean() / wanted.shape[1] + FIRST * first


def _sees(anchors: Tensor, count: int, frames: int) -> Tensor:
    """Return (batch, 1, anchors * frames, count + anchors * frames): what each frame sees."""
    number = anchors.shape[1]
    is_text = torch.arange(count, device=anchors.device) <= anchors.unsqueeze(2)
    is_fellow = torch.eye(number, dtype=torch.bool, device=anchors.device).repeat_interleave(frames, dim=1)
    is_open = torch.cat((is_text, is_fellow.expand(len(anchors), -1, -1)), dim=2)
    return is_open.repeat_interleave(frames, dim=1).unsqueeze(1)


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
