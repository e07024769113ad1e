"""Write a Hugging Face model folder as OpenVINO's intermediate representation; needs the OpenVINO wheels.

The model's own code is traced. Keys and values become states, gathered by `beam_idx` and extended by concatenation
before a scaled dot product: the form that OpenVINO's continuous batching turns into paged attention. Attention is
causal over the whole text, so models with sliding windows are refused.
"""

from __future__ import annotations

import importlib
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from ...errors import ModelError
from ...runtime.models.generic import cache_keyword
from ...runtime.models.loading import first_line, load_config, load_tokenizer
from ...runtime.models.rehearsal import require_loadable
from .model_format import OPENVINO_FILE

COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")
ELSEWHERE = "optimum-cli export openvino of optimum-intel; give the folder that it writes"
Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values, (batch, heads, tokens, width)


def write_openvino(folder: Path, out: Path, *, is_half: bool) -> Path:
    """Write a Llama, Mistral, Qwen2 or Qwen3 folder and its tokenizer for OpenVINO GenAI; return the new folder.

    It is complete or absent. `is_half` stores weights in float16, else in float32.

    Raises:
        ModelError: another kind of model, one with sliding windows, or it cannot be loaded or traced.
    """
    openvino = importlib.import_module("openvino")
    config = supported(folder)
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    openvino.save_model(_stateful(folder, config), part / OPENVINO_FILE, compress_to_fp16=is_half)
    convert = importlib.import_module("openvino_tokenizers").convert_tokenizer
    tokenizer, detokenizer = convert(load_tokenizer(str(folder)), with_detokenizer=True)
    openvino.save_model(tokenizer, part / "openvino_tokenizer.xml")
    openvino.save_model(detokenizer, part / "openvino_detokenizer.xml")
    for name in COPIED:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, part / name)
    return part.rename(out)


class _GrowingCache:
    """Keys and values of all layers, with the methods that a model's attention calls."""

    is_compileable = False

    def __init__(self, layers: list[Pair]) -> None:
        self.layers = layers

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.layers[layer_idx][0].shape[2]

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Pair:
        before = self.layers[layer_idx]
        self.layers[layer_idx] = torch.cat((before[0], keys), dim=2), torch.cat((before[1], values), dim=2)
        return self.layers[layer_idx]


class _Stateless(torch.nn.Module):
    """A model with keys and values as inputs and outputs."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self._cache = cache_keyword(model)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        beam_idx: torch.Tensor,
        *past: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Return logits, then keys and values of every layer.

        `beam_idx` (batch,) is the sequence that each one continues; `past` alternates keys and values.
        """
        held = [one.index_select(0, beam_idx) for one in past]
        cache = _GrowingCache(list(zip(held[::2], held[1::2], strict=True)))
        rows = torch.arange(input_ids.shape[1]) + held[0].shape[2]
        is_before = torch.arange(attention_mask.shape[1])[None, :] <= rows[:, None]
        told = self.model(
            input_ids=input_ids,
            attention_mask=is_before[None, None] & attention_mask[:, None, None, :].bool(),
            position_ids=position_ids,
            use_cache=True,
            **{self._cache: cache},
        )
        return (told.logits, *(one for pair in cache.layers for one in pair))


def supported(folder: Path) -> PreTrainedConfig:
    """Return the configuration of a model that can be converted here; ModelError for others."""
    config = load_config(str(folder))
    if config.model_type not in FAMILIES:
        raise ModelError(
            f"{folder} is a {config.model_type}; {', '.join(FAMILIES)} can be converted here, others by {ELSEWHERE}"
        )
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if slides:
        raise ModelError(
            f"{folder} attends to {config.sliding_window} tokens; "
            f"only whole texts can be converted here: use {ELSEWHERE}"
        )
    require_loadable(str(folder))
    return config


def _stateful(folder: Path, config: PreTrainedConfig) -> Any:  # Any: an openvino.Model, whose wheel may be absent
    openvino = importlib.import_module("openvino")
    heads = int(config.num_key_value_heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    kinds = [f"{layer}.{kind}" for layer in range(config.num_hidden_layers) for kind in ("key", "value")]
    try:
        model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="sdpa")
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # tracing warns of every comparison of a shape
            found = openvino.convert_model(_Stateless(model.eval()), example_input=_example(heads, width, len(kinds)))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{folder} cannot be converted: {first_line(error)}") from error
    into, out = [f"past_key_values.{kind}" for kind in kinds], [f"present.{kind}" for kind in kinds]
    _name(found, (*INPUTS, *into), ("logits", *out))
    for held in found.inputs[len(INPUTS) :]:
        held.get_node().set_partial_shape(openvino.PartialShape([-1, heads, -1, width]))
    found.validate_nodes_and_infer_types()
    passes = importlib.import_module("openvino._offline_transformations")
    passes.apply_make_stateful_transformation(found, dict(zip(into, out, strict=True)))
    _start_empty(found, heads, width)
    return found


def _example(heads: int, width: int, states: int) -> tuple[torch.Tensor, ...]:
    before, new = 4, 3
    past = [torch.zeros(2, heads, before, width) for _ in range(states)]
    ids, mask = torch.zeros(2, new, dtype=torch.long), torch.ones(2, before + new, dtype=torch.long)
    positions = torch.arange(before, before + new)[None].repeat(2, 1)
    return (ids, mask, positions, torch.arange(2), *past)


def _name(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:  # Any: an openvino.Model
    for port, name in zip((*model.inputs, *model.outputs), (*inputs, *outputs), strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(model.inputs, inputs, strict=True):
        port.get_node().set_friendly_name(name)


def _start_empty(model: Any, heads: int, width: int) -> None:  # Any: an openvino.Model
    """Let every state begin without tokens, for any number of sequences."""
    ops = importlib.import_module("openvino.opset13")
    shape = ops.shape_of(model.input(INPUTS[0]), output_type="i64")
    batch = ops.gather(shape, ops.constant([0]), ops.constant(0))
    whole = ops.concat([batch, *(ops.constant([size]) for size in (heads, 0, width))], 0)
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([ops.broadcast(ops.constant(0.0, dtype=np.float32), whole)])
    model.validate_nodes_and_infer_types()
