"""What a lean forward needs of a Hugging Face model: fused weights, and how its family differs from Llama."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

from ...errors import ModelError
from .bits import bits
from .configuration import declared, longest_context_of, windows_of
from .image_cache import IMAGES, ImageCache
from .kernel_parts import KernelParts, kernel_parts
from .norm import Norm
from .packed import PackedProduct, PackedWeight
from .projection import Projection
from .vision import VisionEncoder, lens_of, sees

NORMS = ("input_layernorm", "post_attention_layernorm")  # of a published layer, in front of attention and MLP
DRAFT_DEPTH = 64  # positions beyond the longest context that draft nodes may reach


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaVariant:
    """How a family differs from Llama beyond what its configuration and its modules show."""

    norm_offset: float = 0.0  # added to the weights of all norms, which are then applied in float32 at least
    has_result_norms: bool = False  # attention and MLP are normed before they are added to the stream
    caps_attention: bool = False  # attention scores are squashed by tanh


FAMILIES: Mapping[str, LlamaVariant] = {
    "llama": LlamaVariant(),
    "mistral": LlamaVariant(),
    "qwen2": LlamaVariant(),
    "qwen3": LlamaVariant(),
    "gemma": LlamaVariant(norm_offset=1.0),
    "gemma2": LlamaVariant(norm_offset=1.0, has_result_norms=True, caps_attention=True),
    "gemma3_text": LlamaVariant(norm_offset=1.0, has_result_norms=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer; None for a norm its family does not have."""

    sight: int  # index into `Anatomy.sights`
    input_norm: Norm
    qkv: Projection
    head_norm: Norm | None  # over queries, then keys, head by head
    scale: float  # of the attention scores
    output: Projection
    output_norm: Norm | None
    mlp_norm: Norm
    gate_up: Projection
    activation: Callable[[Tensor], Tensor]
    down: Projection
    down_norm: Norm | None
    is_silu: bool = False  # whether that is the activation
    by_kernels: KernelParts | None = field(init=False, repr=False, compare=False)  # as a compiled call takes it

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_kernels", kernel_parts(self))


def named_layer(
    tensors: Mapping[str, Tensor], begins: str, norms: tuple[str, str], eps: float, size: int
) -> LayerWeights:
    """Return a Llama layer of tensors whose published names begin so; norms are those before attention and MLP."""

    def fused(block: str, names: str) -> Projection:
        parts = [f"{begins}{block}.{name}_proj" for name in names.split()]
        biases = [tensors[f"{part}.bias"] for part in parts if f"{part}.bias" in tensors]
        weight = torch.cat([tensors[f"{part}.weight"] for part in parts])
        return Projection(weight, torch.cat(biases) if len(biases) == len(parts) else None)

    input_norm, mlp_norm = (Norm(weight=tensors[f"{begins}{name}.weight"], eps=eps) for name in norms)
    return LayerWeights(
        sight=0,
        input_norm=input_norm,
        qkv=fused("self_attn", "q k v"),
        head_norm=None,
        scale=size**-0.5,
        output=fused("self_attn", "o"),
        output_norm=None,
        mlp_norm=mlp_norm,
        gate_up=fused("mlp", "gate up"),
        activation=F.silu,
        is_silu=True,
        down=fused("mlp", "down"),
        down_norm=None,
    )


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What layers share that see the text alike."""

    window: int | None  # tokens a token sees, itself included; None: all
    turns: Tensor  # (positions, 2 * size): cosines, then signed sines; x * cosine + roll(x, size / 2) * sine turns x

    @cached_property
    def turn_bits(self) -> NDArray[Any]:
        """The turns as kernels on a CPU read them."""
        return bits(self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A model taken apart."""

    heads: int
    kv_heads: int
    size: int  # of a head
    vocabulary: int
    longest_context: int
    embedding: Tensor  # (vocabulary, hidden); of a model that sees, its gallery's rows lie behind
    embedding_scale: Tensor | None
    sights: tuple[Sight, ...]
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    head: Projection
    attention_cap: float | None  # scores are squashed into (-cap, cap)
    logit_cap: float | None
    gallery: ImageCache | None = None  # images shown to it; None of a model that sees none
    hides_first: bool = False  # whether a text's first token is seen by itself alone, where trees tell what is seen


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """What reads and writes text in a Hugging Face model: all of it, or a part of a model with vision."""

    config: PreTrainedConfig
    base: Any  # Any: transformers types no family's base
    head: Any


def text_part(model: PreTrainedModel) -> TextPart:
    """Return the language model of a model."""
    base = model.model.language_model if sees(model.config) else model.model
    return TextPart(config=model.config.get_text_config(), base=base, head=model.get_output_embeddings())


def anatomy_of(
    model: PreTrainedModel, folder: Path | None = None, images: int = IMAGES, *, uses_up: bool = False
) -> Anatomy:
    """Copy the weights of a model of `FAMILIES` into fused form; the original may be dropped."""
    text = text_part(model)
    config, base, family = text.config, text.base, FAMILIES[text.config.model_type]
    embedding, gallery = _seen(model, base.embed_tokens.weight.detach(), folder, images)
    reader = _LayerReader(family, float(config.rms_norm_eps), uses_up)
    sights, places = _sights(text, embedding)
    heads = int(config.num_attention_heads)
    scale = getattr(base.embed_tokens, "embed_scale", None)
    return Anatomy(
        heads=heads,
        kv_heads=int(config.num_key_value_heads),
        size=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocabulary=int(config.vocab_size),
        longest_context=longest_context_of(config),
        embedding=embedding,
        embedding_scale=None if scale is None else scale.detach().to(model.dtype),
        sights=sights,
        layers=tuple(reader.layer(layer, place) for layer, place in zip(base.layers, places, strict=True)),
        final_norm=reader.norm(base.norm),
        head=reader.fused(text.head),
        attention_cap=config.attn_logit_softcapping if family.caps_attention else None,
        logit_cap=declared(config, "final_logit_softcapping"),
        gallery=gallery,
    )


def _seen(
    model: PreTrainedModel, embedding: Tensor, folder: Path | None, images: int
) -> tuple[Tensor, ImageCache | None]:
    """Return the embeddings, with rows for images after them if the model has vision, and the gallery of these rows."""
    if not sees(model.config):
        return embedding, None
    eyes = VisionEncoder(model.model, lens_of(model.config, folder))
    table = torch.cat((embedding, embedding.new_zeros(images * eyes.tokens.size, embedding.shape[1])))
    return table, ImageCache(table[len(embedding) :], eyes)


@dataclass(frozen=True, slots=True)
class _LayerReader:
    family: LlamaVariant
    eps: float
    uses_up: bool  # what it reads

    def layer(self, layer: Any, sight: int) -> LayerWeights:  # Any: transformers types no family's layer
        attention, mlp = layer.self_attn, layer.mlp
        has_result_norms = self.family.has_result_norms
        return LayerWeights(
            sight=sight,
            input_norm=self.norm(layer.input_layernorm),
            qkv=self.fused(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norm=self._head_norm(attention),
            scale=float(attention.scaling),
            output=self.fused(attention.o_proj),
            output_norm=self.norm(layer.post_attention_layernorm) if has_result_norms else None,
            mlp_norm=self.norm(layer.pre_feedforward_layernorm if has_result_norms else layer.post_attention_layernorm),
            gate_up=self.fused(mlp.gate_proj, mlp.up_proj),
            activation=mlp.act_fn.forward,
            down=self.fused(mlp.down_proj),
            down_norm=self.norm(layer.post_feedforward_layernorm) if has_result_norms else None,
            is_silu=isinstance(mlp.act_fn, type(ACT2FN["silu"])),
        )

    def fused(self, *linears: Any) -> Projection:
        """Return linear layers of one input as one."""
        first = linears[0]
        if any(isinstance(one.weight, PackedWeight) for one in linears):
            return self._packed(linears)
        weight = torch.cat([one.weight.detach() for one in linears]) if len(linears) > 1 else first.weight.detach()
        bias = None if first.bias is None else torch.cat([one.bias.detach() for one in linears])
        if self.uses_up:
            for one in linears:
                one.weight = None
        return Projection(weight, bias)

    def _packed(self, linears: Sequence[Any]) -> Projection:
        """Do what `fused` does for weights in few bits."""
        if not all(isinstance(one.weight, PackedWeight) for one in linears):
            raise ModelError("some weights of a layer cannot be packed for their shape; run it with --dtype bfloat16")
        bias = None if linears[0].bias is None else torch.cat([one.bias.detach() for one in linears])
        product = PackedProduct([one.weight for one in linears], bias)
        if self.uses_up:
            for one in linears:
                one.weight = None
        return Projection(product, bias)

    def norm(self, module: Any) -> Norm:
        return Norm(weight=self._weight(module), eps=self.eps)

    def _head_norm(self, attention: Any) -> Norm | None:
        if not hasattr(attention, "q_norm"):
            return None
        config, norms = attention.config, (attention.q_norm, attention.k_norm)
        heads = (config.num_attention_heads, config.num_key_value_heads)
        lines = [self._weight(norm).expand(count, -1) for norm, count in zip(norms, heads, strict=True)]
        return Norm(weight=torch.cat(lines), eps=self.eps)

    def _weight(self, module: Any) -> Tensor:
        weight: Tensor = module.weight.detach()
        if not self.family.norm_offset:
            return weight
        return weight.to(torch.promote_types(weight.dtype, torch.float32)) + self.family.norm_offset


def _sights(text: TextPart, like: Tensor) -> tuple[tuple[Sight, ...], list[int]]:
    """Return the distinct sights of all layers, and the index of each layer's."""
    config, rotary = text.config, text.base.rotary_emb
    windows = windows_of(config)
    turned_by_kind = hasattr(rotary, "layer_types")  # Gemma 3 turns its kinds of layers by different angles
    kinds = config.layer_types if turned_by_kind else [None] * len(windows)
    ways = list(zip(windows, kinds, strict=True))
    distinct = list(dict.fromkeys(ways))
    turns = {kind: turns_of(rotary, longest_context_of(config), like[0, :1], kind) for kind in dict.fromkeys(kinds)}
    sights = tuple(Sight(window=window, turns=turns[kind]) for window, kind in distinct)
    return sights, [distinct.index(way) for way in ways]


def turns_of(rotary: Any, longest: int, like: Tensor, kind: str | None = None) -> Tensor:  # Any: of any family
    """Return the table of `Sight.turns`, with the dtype and device of `like`, for one `kind` of layers."""
    places = torch.arange(longest + DRAFT_DEPTH, device=like.device).clamp(max=longest - 1).unsqueeze(0)
    cosine, sine = rotary(like, places, *([] if kind is None else [kind]))
    sign = torch.ones_like(sine[0, 0])
    sign[: len(sign) // 2] = -1
    return torch.cat((cosine[0], sine[0] * sign), dim=-1)
