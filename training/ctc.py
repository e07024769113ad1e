"""A CTC drafter as torch trains it, and its published loss; see `block`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from ..runtime.models.drafter_shapes import BlockShape
from .frozen import FrozenTarget

FIRST = 0.1  # weight of the first frame's own cross-entropy beside CTC's loss


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

    def said(self, target: FrozenTarget, ids: Tensor, states: Tensor, anchors: Tensor) -> Tensor:
        """Return log-chances (batch * anchors, frames, vocabulary + 1), blank last, at anchors (batch, anchors)."""
        embedded = target.embedded(ids[:, 1:])
        places = torch.arange(1, ids.shape[1] + self.queries.num_embeddings, device=ids.device).unsqueeze(0)
        left = self(embedded, states[:, :-1], anchors, target.turns(embedded, places))
        normed = target.final_norm(left.flatten(0, 1))
        logits = torch.cat((target.said(normed), F.linear(normed, self.blank.weight)), dim=-1)
        return torch.log_softmax(logits.float(), dim=-1)

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
