"""A small trained Llama inside a much larger shape: it costs what a large model costs and says what the small one says.

Every number that the small model computes is in the large one, among numbers that cannot reach it. So greedy texts and
acceptance stay those of the small models, while weights, caches and products have the large sizes. H and H' are the
sizes of a hidden state before and after; what is new:

hidden      nothing writes to the new numbers of a hidden state, so they are 0, and what reads them is random. Its mean
            square is H / H' of what it was, which norms of weight * sqrt(H / H') and an eps * H / H' undo.
middle      new rows of gate and up are random, the columns of `down` that read them 0.
heads       old ones keep a key-value head they all read; the columns of the output that read new heads are 0.
head size   turned by the same angles: for one base, pair i of a head of size s turns as pair f i of one of size f s.
            Queries grow by sqrt(f), as scores are divided by the root of the size.
layers      new ones follow the old: random, but what they add is 0. Hidden states after a layer keep its number.
vocabulary  new ids are never drawn: one new number of a hidden state is a constant c from the embedding on, with c^2
            taken out of the norms' eps, so that it comes out of the last norm positive, and the head, untied now, turns
            it into a logit of about -10^10 for them.

All this is exact but for rounding. In bf16 scaled weights are rounded again, unless sqrt(H / H') and sqrt(f) are powers
of two: H' of 4 H or 16 H, heads of their old size or 4 times that ("-even" shapes for the demo's models). Most of a
hidden state is 0, so a device may draw less power than on a trained model.

Source: growth that keeps the function is from Chen et al. 2015, arXiv:1511.05641; layers that add nothing at first, and
the norm's weight, from Gesmundo, Maile 2023, arXiv:2308.06103.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from grown_shape import GrownShape, grown_shape
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from spectune.errors import DeviceError, ModelError
from spectune.runtime.models.loading import dtype_of, first_line

__all__ = ["GrownShape", "grown", "grown_shape"]

SPREAD = 0.02  # standard deviation of random weights
LOUD = 2.0**20  # what the last norm and the head each multiply the constant by
TURNED_BY_PAIR = ("default", "linear", "llama3")  # rotary kinds whose angles depend on i / size alone


def grown(
    model: LlamaForCausalLM,
    shape: GrownShape,
    *,
    dtype: str | None = None,
    device: str | None = None,
    seed: int = 0,
) -> LlamaForCausalLM:
    """Return a model of a larger shape that computes what `model`, left as it is, does.

    The model is a Llama without biases; no size may shrink, and a larger vocabulary needs a larger hidden size. Weights
    are drawn on the device in the wanted dtype (None: the model's): the host holds no copy, and the device no second.

    Raises:
        ModelError: the model does not fit into the shape, cannot be grown, or an unknown dtype.
        DeviceError: the device cannot be used, or is too small.
    """
    number_format = model.dtype if dtype is None else dtype_of(dtype)
    growth = _growth(model, shape, number_format)
    try:
        place = model.device if device is None else torch.device(device)
        with torch.random.fork_rng([place] if place.type == "cuda" else []), place:
            torch.manual_seed(seed)
            larger: LlamaForCausalLM = AutoModelForCausalLM.from_config(
                growth.config(model), dtype=number_format
            ).eval()
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise DeviceError(
            f"cannot build {shape} on {device or model.device}: {first_line(error)}; "
            "choose another device or a smaller shape"
        ) from error
    with torch.no_grad():
        growth.fill(larger, model)
    return larger


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    old: GrownShape
    new: GrownShape
    eps: float  # of the larger model's norms
    constant: float | None  # number `old.hidden_size` of every hidden state; None: the vocabulary does not grow

    @property
    def norm_scale(self) -> float:
        return math.sqrt(self.old.hidden_size / self.new.hidden_size)

    @property
    def copies(self) -> int:
        """Key-value heads that an old one becomes: one, unless a new one has too few query heads for its readers."""
        return math.ceil(self.old.group / self.new.group)

    def config(self, model: LlamaForCausalLM) -> LlamaConfig:
        config = deepcopy(model.config)
        for field in fields(self.new):
            setattr(config, field.name, getattr(self.new, field.name))
        config.rms_norm_eps, config.initializer_range = self.eps, SPREAD
        config.tie_word_embeddings = config.tie_word_embeddings and self.constant is None
        return config

    def fill(self, larger: LlamaForCausalLM, model: LlamaForCausalLM) -> None:
        hidden, words = self.old.hidden_size, self.old.vocab_size
        base: Any = larger.model  # Any: transformers types its modules as Tensor | Module
        small: Any = model.model
        _only(base.embed_tokens, slice(words), slice(hidden), small.embed_tokens.weight)
        if not larger.config.tie_word_embeddings:
            _put(larger.lm_head.weight, (slice(words), slice(hidden)), model.lm_head.weight)
        self._fill_norm(base.norm, small.norm)
        if self.constant is not None:
            base.embed_tokens.weight[:, hidden] = self.constant
            base.norm.weight[hidden] = LOUD
            larger.lm_head.weight[:words, hidden] = 0.0
            larger.lm_head.weight[words:, hidden] = -LOUD
        for place, layer in enumerate(base.layers):
            if place < len(small.layers):
                self._fill_layer(layer, small.layers[place])
            else:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()

    def _fill_norm(self, norm: Any, small: Any) -> None:
        norm.weight.zero_()
        _put(norm.weight, slice(self.old.hidden_size), small.weight.double() * self.norm_scale)

    def _fill_layer(self, layer: Any, small: Any) -> None:
        hidden, middle = slice(self.old.hidden_size), slice(self.old.intermediate_size)
        self._fill_norm(layer.input_layernorm, small.input_layernorm)
        self._fill_norm(layer.post_attention_layernorm, small.post_attention_layernorm)
        self._fill_attention(layer.self_attn, small.self_attn, hidden)
        for name in ("gate_proj", "up_proj"):
            _put(getattr(layer.mlp, name).weight, (middle, hidden), getattr(small.mlp, name).weight)
        _only(layer.mlp.down_proj, hidden, middle, small.mlp.down_proj.weight)

    def _fill_attention(self, attention: Any, small: Any, hidden: slice) -> None:
        old, new, place = self.old, self.new, attention.q_proj.weight.device
        first = torch.arange(old.num_key_value_heads, device=place) * self.copies  # new key-value head of every old one
        reader = torch.arange(old.group, device=place)
        queries = self._rows((first.unsqueeze(1) * new.group + reader).view(-1))
        pairs = self._rows(torch.arange(old.num_key_value_heads * self.copies, device=place))
        scale = math.sqrt(new.head_dim / old.head_dim)
        _put(attention.q_proj.weight, (queries, hidden), small.q_proj.weight.double() * scale)
        attention.k_proj.weight[: len(pairs) // old.head_dim * new.head_dim].zero_()  # new queries' numbers meet 0
        for name in ("k_proj", "v_proj"):
            heads = getattr(small, name).weight.view(old.num_key_value_heads, old.head_dim, -1)
            _put(
                getattr(attention, name).weight, (pairs, hidden), heads.repeat_interleave(self.copies, 0).flatten(0, 1)
            )
        _only(attention.o_proj, hidden, queries, small.o_proj.weight)

    def _rows(self, heads: Tensor) -> Tensor:
        """Return (len(heads) * old size,): where in a larger projection the numbers of old heads come out."""
        size, factor = self.new.head_dim, self.new.head_dim // self.old.head_dim
        half = torch.arange(self.old.head_dim // 2, device=heads.device) * factor
        return (heads.unsqueeze(1) * size + torch.cat((half, half + size // 2))).view(-1)


def _put(weight: Tensor, place: Any, values: Tensor) -> None:  # Any: what a tensor is indexed by
    weight[place] = values.to(weight)


def _only(linear: nn.Module, rows: slice, columns: Any, values: Tensor) -> None:  # Any: a slice, or a tensor of columns
    weight: Any = linear.weight
    weight.zero_()
    _put(weight, (rows, columns), values)


def _growth(model: LlamaForCausalLM, shape: GrownShape, dtype: torch.dtype) -> _Growth:
    if not isinstance(model, LlamaForCausalLM):
        raise ModelError(f"a {type(model).__name__} cannot be grown; give a LlamaForCausalLM")
    config: Any = model.config  # Any: transformers types most of its fields as optional
    if config.attention_bias or config.mlp_bias:
        raise ModelError("a model with biases cannot be grown; give one whose projections have none")
    old = GrownShape(**{field.name: getattr(config, field.name) for field in fields(GrownShape)})
    new = shape if shape.vocab_size is not None else replace(shape, vocab_size=old.vocab_size)
    _require_room(old, new, str(config.rope_parameters["rope_type"]))
    eps = float(config.rms_norm_eps)
    if new.vocab_size == old.vocab_size:
        return _Growth(old=old, new=new, eps=eps * old.hidden_size / new.hidden_size, constant=None)
    _require_quiet(old, new, eps, dtype)
    constant = float(
        torch.tensor(math.sqrt(old.hidden_size * eps / 2), dtype=dtype, device="cpu")
    )  # takes half of eps' sum
    left = (old.hidden_size * eps - constant**2) / new.hidden_size
    return _Growth(old=old, new=new, eps=left, constant=constant)


def _require_room(old: GrownShape, new: GrownShape, turning: str) -> None:
    for field in fields(GrownShape):
        has, gets = getattr(old, field.name), getattr(new, field.name)
        if gets < has:
            raise ModelError(f"{field.name} cannot shrink from {has} to {gets}; give at least {has}")
    if new.head_dim % old.head_dim:
        raise ModelError(
            f"heads of size {old.head_dim} cannot be turned as ones of size {new.head_dim}; give a multiple"
        )
    if new.head_dim > old.head_dim and turning not in TURNED_BY_PAIR:
        raise ModelError(
            f"heads turned by {turning} angles cannot grow; keep head_dim at {old.head_dim}, or grow a model turned by "
            f"one of {', '.join(TURNED_BY_PAIR)}"
        )
    needed = old.num_key_value_heads * math.ceil(old.group / new.group)
    if new.num_key_value_heads < needed:
        raise ModelError(
            f"{new.group} heads to a key-value head, where the model has {old.group}, need {needed} key-value heads "
            f"and not {new.num_key_value_heads}; give more of one or the other"
        )


def _require_quiet(old: GrownShape, new: GrownShape, eps: float, dtype: torch.dtype) -> None:
    if new.hidden_size == old.hidden_size:
        raise ModelError(
            f"a larger vocabulary needs a hidden_size above {old.hidden_size}, to keep new ids from being drawn; "
            "give more, or leave vocab_size out"
        )
    if eps <= 0.0:
        raise ModelError("a larger vocabulary needs norms with an eps, and rms_norm_eps is 0; leave vocab_size out")
    if torch.finfo(dtype).max < LOUD:
        raise ModelError(f"a larger vocabulary needs wider numbers than {dtype}; use bfloat16, or leave vocab_size out")
