"""A head of EAGLE's forms as torch trains it, and the published losses.

Column c of a head reads the token x[c] and the feature f[c - 1], and predicts x[c + 1]. Step 0 reads the target's own
features. Step i of the training-time test reads the output of step i - 1 at the column before. So its text is committed
up to column c - i, and drafted from there.

Source: Li et al. 2024, EAGLE, arXiv:2401.15077, Sec. 4.2; Li et al. 2025, EAGLE-3, arXiv:2503.01840, Sec. 3.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from ..runtime.models.eagle_shape import Form

States = list[tuple[Tensor, Tensor]]  # keys and values (batch, kv_heads, columns, size) of every step so far


class HeadModule(nn.Module):
    """The trained part of a head; its parameters have the published names of tensors."""

    def __init__(self, form: Form, config: LlamaConfig, *, reads: int, draft_vocabulary: int) -> None:
        """Draw random weights; `reads` is the target's hidden states per feature, the vocabulary of form "eagle3"."""
        super().__init__()
        hidden = int(config.hidden_size)
        self.form = form
        self.rotary = LlamaRotaryEmbedding(config)
        if form == "eagle":
            self.fc = nn.Linear(2 * hidden, hidden)
            self.layers = nn.ModuleList([HeadLayer(config, inputs=hidden)])
            return
        self.fc = nn.Linear(reads * hidden, hidden, bias=False)
        self.midlayer = HeadLayer(config, inputs=2 * hidden)
        self.norm = _norm(config)
        self.lm_head = nn.Embedding(draft_vocabulary, hidden)  # so that it is trained as embeddings are, by AdamW

    @property
    def layer(self) -> HeadLayer:
        """The only layer."""
        found = self.layers[0] if self.form == "eagle" else self.midlayer
        assert isinstance(found, HeadLayer)
        return found

    def features(self, hidden: Tensor) -> Tensor:
        """Return (batch, columns, hidden): step 0's features from the target's hidden states (batch, columns, any)."""
        read: Tensor = hidden if self.form == "eagle" else self.fc(hidden)
        return read

    def forward(self, embedded: Tensor, features: Tensor, states: States) -> Tensor:
        """Return the next features (batch, columns, hidden), from tokens and the columns before; append states."""
        if self.form == "eagle":
            hidden = reading = self.fc(torch.cat((embedded, features), dim=-1))
        else:
            hidden = features
            layer = self.layer
            reading = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(features)), dim=-1)
        places = torch.arange(embedded.shape[1], device=embedded.device).unsqueeze(0)
        own: Tensor = self.layer(hidden, reading, self.rotary(embedded, places), states)
        return own

    def logits(self, own: Tensor) -> Tensor:
        """Return logits (..., draft vocabulary) of form "eagle3" behind own features."""
        return F.linear(self.norm(own), self.lm_head.weight)


class HeadLayer(nn.Module):
    """A Llama layer whose attention reads `inputs` numbers per token and sees earlier steps as a draft would."""

    def __init__(self, config: LlamaConfig, *, inputs: int) -> None:
        super().__init__()
        heads, kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads or 0)
        self.size = int(config.head_dim or 0)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(inputs, heads * self.size, bias=False),
                "k_proj": nn.Linear(inputs, kv_heads * self.size, bias=False),
                "v_proj": nn.Linear(inputs, kv_heads * self.size, bias=False),
                "o_proj": nn.Linear(heads * self.size, int(config.hidden_size), bias=False),
            }
        )
        wide, narrow = int(config.intermediate_size), int(config.hidden_size)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(narrow, wide, bias=False),
                "up_proj": nn.Linear(narrow, wide, bias=False),
                "down_proj": nn.Linear(wide, narrow, bias=False),
            }
        )
        self.post_attention_layernorm = _norm(config)
        is_joined = inputs > narrow  # it reads embedding and feature side by side, each normed
        self.input_layernorm = _norm(config) if is_joined else nn.Identity()
        self.hidden_norm = _norm(config) if is_joined else nn.Identity()

    def forward(self, hidden: Tensor, reading: Tensor, turns: tuple[Tensor, Tensor], states: States) -> Tensor:
        """Return (batch, columns, hidden), and append the step's keys and values to `states`."""
        q, k, v = (
            self.self_attn[f"{one}_proj"](reading).unflatten(-1, (-1, self.size)).transpose(1, 2) for one in "qkv"
        )
        q, k = apply_rotary_pos_emb(q, k, *turns)
        states.append((k, v))
        mixed = attended(q, states).transpose(1, 2).flatten(2)
        hidden = hidden + self.self_attn["o_proj"](mixed)
        x = self.post_attention_layernorm(hidden)
        down: Tensor = self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x))
        return hidden + down


def attended(query: Tensor, states: States) -> Tensor:
    """Return the newest step's attention, (batch, heads, columns, size).

    Step i at column c sees step 0 up to column c - i, step j at column c - i + j, and itself. Columns below i are no
    drafts, and their values mean nothing.
    """
    groups = query.shape[1] // states[0][0].shape[1]
    keys, values = ([pair[one].repeat_interleave(groups, dim=1) for pair in states] for one in (0, 1))
    step, count = len(states) - 1, query.shape[2]
    if step == 0:
        return F.scaled_dot_product_attention(query, keys[0], values[0], is_causal=True)
    scale = query.shape[-1] ** -0.5
    is_seen = torch.ones(count, count, dtype=torch.bool, device=query.device).tril(-step)
    far = (query @ keys[0].transpose(2, 3) * scale).masked_fill(~is_seen, -torch.inf)
    shifts = [step - one for one in range(1, step + 1)]
    moved = [key.roll(shift, 2) for key, shift in zip(keys[1:], shifts, strict=True)]
    near = [(query * key).sum(-1, keepdim=True) * scale for key in moved]
    weights = torch.cat([far, *near], dim=-1).float().softmax(-1).to(query.dtype)
    mixed = weights[..., :count] @ values[0]
    for place, (value, shift) in enumerate(zip(values[1:], shifts, strict=True)):
        mixed = mixed + weights[..., count + place, None] * value.roll(shift, 2)
    return mixed


def feature_loss(own: Tensor, features: Tensor, logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return smooth L1 between features plus 0.1 times the cross-entropy of the target's distribution, in nats.

    Source: arXiv:2401.15077, Sec. 4.2, w_cls = 0.1.
    """
    return F.smooth_l1_loss(own.float(), features.float()) + 0.1 * soft_cross_entropy(logits, target_logits).mean()


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return -sum over tokens of p log q, (batch, columns) nats."""
    wanted = target_logits.float().softmax(-1)
    return -(wanted * logits.float().log_softmax(-1)).sum(-1)


def training_time_loss(
    head: HeadModule,
    embedded: Tensor,  # (batch, columns, hidden), of the columns' tokens
    hidden: Tensor,  # (batch, columns, any), the target's hidden states of the columns before
    target_logits: Tensor,  # (batch, columns, vocabulary), behind the columns
    is_text: Tensor,
    draft_ids: Tensor,  # (draft vocabulary,) ids that can be drafted
    steps: int,  # of the training-time test; 7 as published
) -> Tensor:
    """Return sum over steps of 0.8^i times the mean cross-entropy of the target's distribution over draft tokens.

    Columns count if their most likely token can be drafted, they are not below i, and their text goes on (`is_text`).

    Source: arXiv:2503.01840, Sec. 3.1; the weights 0.8^i and the mask are those of the published training code.
    """
    can_draft = torch.zeros(target_logits.shape[-1], dtype=torch.bool, device=embedded.device)
    can_draft[draft_ids] = True
    counts = can_draft[target_logits.argmax(-1)] & is_text
    wanted = target_logits[..., draft_ids]
    features, states = head.features(hidden), list[tuple[Tensor, Tensor]]()
    losses = []
    for step in range(steps):
        own = head(embedded, features, states)
        nats = soft_cross_entropy(head.logits(own[:, step:]), wanted[:, step:])
        mask = counts[:, step:]
        losses.append(0.8**step * (nats * mask).sum() / mask.sum().clamp(min=1))
        features = own.roll(1, 1)
    return torch.stack(losses).sum()


def _norm(config: LlamaConfig) -> nn.Module:
    norm: nn.Module = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
    return norm
