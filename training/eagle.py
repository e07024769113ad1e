"""EAGLE's heads as torch trains them: the module, the published losses, and what they read from a frozen target.

Column c of a head reads the token x[c] and the feature f[c - 1], and predicts x[c + 1]. Step 0 reads the target's own
features. Step i of the training-time test reads the output of step i - 1 at the column before. So its text is committed
up to column c - i, and drafted from there.

Source: Li et al. 2024, EAGLE, arXiv:2401.15077, Sec. 4.2; Li et al. 2025, EAGLE-3, arXiv:2503.01840, Sec. 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from ..errors import ModelError, TrainingError
from ..runtime.models.config_file import OWN
from ..runtime.models.eagle_shape import Form, HeadShape
from .cards import TrainedCard, save_weights
from .frozen import FrozenTarget
from .own_text import BLANK, Ids, Pieces, is_said, readable
from .run import Facts, Head, LearningRequest, OwnTextRequest, Run
from .states import States

NOISE = 0.2  # of features in training form "eagle": uniform, this times 512 / columns wide; as published
ARCHITECTURES = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}
NAMES = {"eagle": "EAGLE-1/2", "eagle3": "EAGLE-3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleRequest(LearningRequest):
    """The head to train, and its texts."""

    NEEDS: ClassVar = "a head needs text to learn from"

    form: Form = "eagle3"
    test_steps: int = 7  # of the training-time test of form "eagle3"
    draft_vocabulary: int = 0  # of form "eagle3"; 0: a quarter of the target's
    intermediate: int = 0  # width of the layer's MLP; 0: the target's
    reads: tuple[int, ...] = ()  # of form "eagle3": layers behind each state it reads; empty: as published

    def __post_init__(self) -> None:
        OwnTextRequest.__post_init__(self)
        if self.form == "eagle3" and not 1 <= self.test_steps < self.settings.sequence_tokens - 1:
            raise TrainingError(
                f"the training-time test takes 1 step up to 2 fewer than a piece has tokens, got {self.test_steps} of "
                f"{self.settings.sequence_tokens}; lower --test-steps or raise --piece"
            )
        if min(self.draft_vocabulary, self.intermediate) < 0:
            raise TrainingError(f"sizes must be at least 0, which is the default, got {self}")
        if self.reads and self.form == "eagle":
            raise TrainingError(
                f"form eagle reads the last hidden state, not {self.reads}; leave it open, or take eagle3"
            )

    @property
    def length(self) -> int:
        """As many tokens as the training-time test has steps."""
        return self.test_steps

    def head(self, run: Run) -> EagleTraining:
        """Return the head to train."""
        return EagleTraining(self, run)


class EagleTraining(Head):
    """A head in training. It learns from pieces of texts, and reads the target's states from a file."""

    NOUN: ClassVar = "head"

    def __init__(self, request: EagleRequest, run: Run) -> None:
        self._request, self._hash = request, run.target.weights_hash
        self._target = FrozenTarget(request.target, request.device)
        self.config, layers = head_config(self._target.model, request.intermediate), self._target.layers
        self.reads = HeadShape(form=request.form, config=self.config, reads=request.reads).reads_of(layers)
        vocabulary = int(self.config.vocab_size)
        if request.form == "eagle3" and not 0 < min(self.reads) <= max(self.reads) < layers:
            raise ModelError(
                f"of a target of {layers} layers a head reads states after 1 to {layers - 1} of them, not "
                f"{self.reads}; name others with --reads, or use form eagle"
            )
        wanted = request.draft_vocabulary or max(vocabulary // 4, 1)
        self.draft_ids = frequent_ids(run.texts, vocabulary, wanted).to(request.device)
        self._can_draft = torch.zeros(vocabulary, dtype=torch.bool, device=request.device)
        self._can_draft[self.draft_ids] = True
        self._pieces = Pieces(run.texts, run.asked.begins, request.settings.sequence_tokens)
        self.numbers = self._pieces.numbered
        self._states = States(
            self._target, self._pieces.ids(torch.arange(len(self._pieces.rows))).numpy()[:, :-1],
            tuple(dict.fromkeys((*self.reads, layers))), run.kept, run.progress,
            dtype=torch.bfloat16, likeliest=True,
        )  # fmt: skip
        self.network: HeadModule = self._new_head()

    def loss(self, picked: Tensor) -> Tensor:
        """Return the loss of the pieces of the first column."""
        numbers = picked[:, 0]
        ids = self._pieces.ids(numbers)
        states = self._states.read(numbers)[:, : ids.shape[1] - 1]
        likeliest = torch.from_numpy(self._states.likeliest[numbers.cpu().numpy(), : ids.shape[1] - 1])
        return self.loss_of(ids, states, likeliest.to(ids.device).long())

    def loss_of(self, batch: Tensor, states: Tensor, likeliest: Tensor) -> Tensor:
        """Return the loss of pieces (batch, columns + 1), over columns from the second on whose next token is text.

        `states` is (batch, columns, any): those that are read and, last, the last layer's, which that may be.
        `likeliest` is (batch, columns), the target's likeliest next tokens.
        """
        hidden, last = states[..., : len(self.reads) * self._target.hidden], states[..., -self._target.hidden :]
        counts = is_said(batch[:, 2:])
        embedded = self._target.embedded(readable(batch)[:, 1:-1])
        if self.network.form == "eagle3":
            counts &= self._can_draft[likeliest[:, 1:]]
            chances = self._target.said(last[:, 1:], self.draft_ids).float().softmax(-1)
            return training_time_loss(self.network, embedded, hidden[:, :-1], chances, counts, self._request.test_steps)
        spread = NOISE * 512 / embedded.shape[1]
        noise = (torch.rand(hidden[:, :-1].shape) - 0.5) * spread  # drawn on the host, whose generator is kept
        own = self.network(embedded, hidden[:, :-1] + noise.to(hidden), [])[counts]
        wanted = last[:, 1:][counts]
        return feature_loss(own, wanted, self._target.said(own), self._target.said(wanted))

    def save(self, folder: Path) -> None:
        """Write the head."""
        shape = HeadShape(form=self._request.form, config=self.config, reads=self.reads, target=self._hash)
        save_head(folder, self.network, shape, self.draft_ids)

    def card(self, facts: Facts) -> HeadCard:
        """Return the card."""
        is_form_3 = self._request.form == "eagle3"
        return HeadCard(
            **facts,
            form=self._request.form,
            reads=self.reads,
            draft_vocabulary=len(self.draft_ids) if is_form_3 else int(self.config.vocab_size),
            sequence_tokens=self._request.settings.sequence_tokens,
            test_steps=self._request.test_steps if is_form_3 else 1,
        )

    def _new_head(self) -> HeadModule:
        """Return a head with random weights; its language-model head begins as the target's own rows."""
        count = len(self.draft_ids)
        head = HeadModule(self._request.form, self.config, reads=len(self.reads), draft_vocabulary=count)
        if head.form == "eagle3":
            with torch.no_grad():
                head.lm_head.weight.copy_(self._target.model.get_output_embeddings().weight[self.draft_ids.cpu()])
        return head.to(self._request.device)


def head_config(target: PreTrainedModel, intermediate: int = 0) -> LlamaConfig:
    """Return the shape of a head's layer: that of the target's layers."""
    config = target.config
    heads = int(config.num_attention_heads)
    rope = getattr(config, "rope_parameters", None) or {}
    return LlamaConfig(
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        intermediate_size=intermediate or int(config.intermediate_size),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        max_position_embeddings=int(config.max_position_embeddings),
        rms_norm_eps=float(config.rms_norm_eps),
        rope_parameters={"rope_type": "default", "rope_theta": float(rope.get("rope_theta", 10000.0))},
        tie_word_embeddings=False,
    )


def frequent_ids(texts: Ids, vocabulary: int, count: int) -> Tensor:
    """Return (count,) ids of the most frequent tokens, ascending; of equally frequent ones the lower ids."""
    counts = np.bincount(texts[texts != BLANK], minlength=vocabulary)
    best = np.argsort(-counts, kind="stable")[: min(count, vocabulary)]
    return torch.from_numpy(np.sort(best))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCard(TrainedCard):
    """How a head was trained, and how good it is."""

    form: str
    draft_vocabulary: int
    sequence_tokens: int
    test_steps: int

    @property
    def page(self) -> str:
        """The card for people, in Markdown."""
        return f"""# A head of form {NAMES[self.form]} for `{self.target}`

Reads the target's hidden states after {", ".join(map(str, self.reads))} layers. {self.parameters:,} parameters of its
own, {self.draft_vocabulary:,} tokens it can draft. Target's weights: `{self.target_hash[:16]}`.

**Training.** {self.steps:,} steps of {self.batch} x {self.sequence_tokens} tokens, seed {self.seed}, on
{self.origin}.
Steps of the training-time test: {self.test_steps}. {self.course}

{self.table}"""


def save_head(folder: Path, head: HeadModule, shape: HeadShape, draft_ids: Tensor) -> None:
    """Write model.safetensors, bf16, and config.json; `draft_ids` are those of form "eagle3", increasing."""
    tensors = dict(head.state_dict())
    config = shape.config.to_dict() | {"architectures": [ARCHITECTURES[shape.form]]}
    if shape.form == "eagle3":
        ids = draft_ids.cpu()
        can_draft = torch.zeros(int(shape.config.vocab_size or 0), dtype=torch.bool)
        can_draft[ids] = True
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": can_draft}
        config["draft_vocab_size"] = len(ids)
    config[OWN] = {"reads": list(shape.reads), "target": shape.target}
    save_weights(folder, tensors, config)


KeyValues = list[tuple[Tensor, Tensor]]  # (batch, kv_heads, columns, size) of every step so far


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

    def forward(self, embedded: Tensor, features: Tensor, states: KeyValues) -> Tensor:
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

    def forward(self, hidden: Tensor, reading: Tensor, turns: tuple[Tensor, Tensor], states: KeyValues) -> Tensor:
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


def attended(query: Tensor, states: KeyValues) -> Tensor:
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
    nats = soft_cross_entropy(logits, target_logits.float().softmax(-1))
    return F.smooth_l1_loss(own.float(), features.float()) + 0.1 * nats.mean()


def soft_cross_entropy(logits: Tensor, chances: Tensor) -> Tensor:
    """Return -sum over tokens of p log q, (batch, columns) nats, for the target's chances p."""
    return -(chances * logits.float().log_softmax(-1)).sum(-1)


def training_time_loss(
    head: HeadModule,
    embedded: Tensor,  # (batch, columns, hidden), of the columns' tokens
    hidden: Tensor,  # (batch, columns, any), the target's hidden states of the columns before
    chances: Tensor,  # (batch, columns, draft vocabulary), the target's behind the columns
    counts: Tensor,  # (batch, columns), whether text goes on there and its likeliest token can be drafted
    steps: int,  # of the training-time test; 7 as published
) -> Tensor:
    """Return sum over steps of 0.8^i times the mean cross-entropy of the target's distribution over draft tokens.

    Columns below i do not count at step i.

    Source: arXiv:2503.01840, Sec. 3.1; the weights 0.8^i and the mask are those of the published training code.
    """
    features, states = head.features(hidden), KeyValues()
    losses = []
    for step in range(steps):
        own = head(embedded, features, states)
        nats = soft_cross_entropy(head.logits(own[:, step:]), chances[:, step:])
        mask = counts[:, step:]
        losses.append(0.8**step * (nats * mask).sum() / mask.sum().clamp(min=1))
        features = own.roll(1, 1)
    return torch.stack(losses).sum()


def _norm(config: LlamaConfig) -> nn.Module:
    norm: nn.Module = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
    return norm
