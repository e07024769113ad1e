"""Random heads behind tiny targets, and what such a head says by its published formulas: no cache, none of our code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from spectune.runtime.models.config_file import OWN
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import Form, HeadShape
from spectune.runtime.models.lean import LeanModel
from spectune.training.cards import save_weights

Weights = dict[str, Tensor]
DRAFTED = 16  # tokens of a reduced vocabulary
INNER = 48  # gates of a head's MLP
READS = {"eagle": (3,), "eagle3": (1, 2, 3)}


def head_weights(
    form: Form,
    target: LlamaForCausalLM,
    *,
    seed: int = 0,
    reduced: bool = True,
    inner: int = INNER,
    drafted: int = DRAFTED,
) -> Weights:
    """Return random tensors of a head, float64, by their published names.

    Args:
        form: of the head.
        target: that it stands behind.
        seed: of the numbers.
        reduced: whether it can draft but some tokens.
        inner: gates of its MLP.
        drafted: tokens of a reduced vocabulary.
    """
    c, noise = target.config, torch.Generator().manual_seed(seed)
    d, heads, kv, size = c.hidden_size, c.num_attention_heads, c.num_key_value_heads or 0, int(c.head_dim or 0)

    def drawn(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=noise, dtype=torch.float64)

    wide = d if form == "eagle" else 2 * d
    layer = "layers.0." if form == "eagle" else "midlayer."
    found = {
        f"{layer}self_attn.q_proj.weight": drawn(heads * size, wide),
        f"{layer}self_attn.k_proj.weight": drawn(kv * size, wide),
        f"{layer}self_attn.v_proj.weight": drawn(kv * size, wide),
        f"{layer}self_attn.o_proj.weight": drawn(d, heads * size),
        f"{layer}mlp.gate_proj.weight": drawn(inner, d),
        f"{layer}mlp.up_proj.weight": drawn(inner, d),
        f"{layer}mlp.down_proj.weight": drawn(d, inner),
        f"{layer}post_attention_layernorm.weight": 1 + drawn(d),
        "fc.weight": drawn(d, 2 * d if form == "eagle" else 3 * d),
    }
    if form == "eagle":
        return found | {"fc.bias": drawn(d)}
    count = drafted if reduced else c.vocab_size
    ids = torch.randperm(c.vocab_size, generator=noise)[:count].sort().values
    found |= {f"midlayer.{name}.weight": 1 + drawn(d) for name in ("input_layernorm", "hidden_norm")}
    found |= {"norm.weight": 1 + drawn(d), "lm_head.weight": drawn(count, d), "d2t": ids - torch.arange(count)}
    return found


def save_head(folder: Path, form: Form, target: LlamaForCausalLM, reads: Sequence[int]) -> Path:
    """Write a random head into a folder, as it is published, and return it."""
    config = layer_config(target).to_dict() | {OWN: {"reads": list(reads), "target": ""}}
    folder.mkdir()
    save_weights(folder, head_weights(form, target), config)
    return folder


def tiny_head(
    form: Form, target: LlamaForCausalLM, weights: Weights, reads: tuple[int, ...] | None = None
) -> EagleHead:
    """Return the head over the lean form of its target; it reads what three layers leave where nothing else is said."""
    shape = HeadShape(form=form, config=layer_config(target), reads=reads or READS[form])
    return EagleHead(weights, shape, LeanModel(target))


def layer_config(target: LlamaForCausalLM, inner: int = INNER) -> LlamaConfig:
    """Return the shape of the head's one layer."""
    changes = {"num_hidden_layers": 1, "intermediate_size": inner}
    return LlamaConfig(**{**target.config.to_dict(), **changes})


def exact_logits(
    form: Form, target: LlamaForCausalLM, w: Weights, text: Sequence[int], drafted: Sequence[int]
) -> Tensor:
    """Return (vocabulary,): what the head says behind a committed text and a path of drafted tokens.

    The newest token of the text has no feature of the target's yet; -inf stands for tokens it cannot draft.
    """
    with torch.no_grad():
        known = features(form, target, w, text)
        rows: list[Tensor] = []  # the layer's input of every token but the first
        own = None
        tokens = [*text, *drafted]
        for place in range(1, len(tokens)):
            before = known[place - 1] if place < len(text) else own
            assert before is not None
            rows.append(torch.stack((target.model.embed_tokens.weight[tokens[place]], before)))
            if place >= len(text) - 1:
                own = layer(form, target, w, torch.stack(rows))[-1]
        assert own is not None
        if form == "eagle":
            return F.linear(own, target.lm_head.weight)
        logits = torch.full((target.config.vocab_size,), -torch.inf, dtype=torch.float64)
        ids = w["d2t"] + torch.arange(len(w["d2t"]))
        logits[ids] = F.linear(normed(own, w["norm.weight"], target), w["lm_head.weight"])
        return logits


def features(form: Form, target: LlamaForCausalLM, w: Weights, text: Sequence[int]) -> Tensor:
    """Return (n, hidden): the target's features as the head takes them."""
    found = target(torch.tensor([list(text)]), output_hidden_states=True).hidden_states
    if form == "eagle":
        last: Tensor = found[-1][0]  # transformers' last one went through the final norm
        return last
    before: list[Tensor] = []
    hook = target.model.norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    target(torch.tensor([list(text)]))
    hook.remove()
    states = [*found[:-1], before[0]]
    return F.linear(torch.cat([states[count][0] for count in READS[form]], dim=-1), w["fc.weight"])


def layer(form: Form, target: LlamaForCausalLM, w: Weights, rows: Tensor) -> Tensor:
    """Return (n, hidden) for inputs (n, 2, hidden) of tokens at places 1 to n."""
    name = "layers.0." if form == "eagle" else "midlayer."
    token, feature = rows.unbind(1)
    if form == "eagle":
        hidden = reading = F.linear(torch.cat((token, feature), -1), w["fc.weight"], w["fc.bias"])
    else:
        hidden = feature
        norms = [w[f"midlayer.{one}.weight"] for one in ("input_layernorm", "hidden_norm")]
        reading = torch.cat((normed(token, norms[0], target), normed(feature, norms[1], target)), -1)
    c, count = target.config, len(rows)
    size, groups = int(c.head_dim or 0), c.num_attention_heads // int(c.num_key_value_heads or 1)
    q, k, v = (
        F.linear(reading, w[f"{name}self_attn.{one}_proj.weight"]).view(count, -1, size).transpose(0, 1)
        for one in "qkv"
    )
    cosine, sine = LlamaRotaryEmbedding(c)(q, torch.arange(1, count + 1)[None])
    q, k = (part[0] for part in apply_rotary_pos_emb(q[None], k[None], cosine, sine))
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    scores = q @ k.transpose(1, 2) / size**0.5 + torch.full((count, count), -torch.inf).triu(1)
    mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
    hidden = hidden + F.linear(mixed, w[f"{name}self_attn.o_proj.weight"])
    x = normed(hidden, w[f"{name}post_attention_layernorm.weight"], target)
    gated = F.silu(F.linear(x, w[f"{name}mlp.gate_proj.weight"])) * F.linear(x, w[f"{name}mlp.up_proj.weight"])
    return hidden + F.linear(gated, w[f"{name}mlp.down_proj.weight"])


def normed(x: Tensor, weight: Tensor, target: LlamaForCausalLM) -> Tensor:
    """Return x / rms(x) * weight."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + target.config.rms_norm_eps) * weight
