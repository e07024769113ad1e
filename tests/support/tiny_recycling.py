"""Token Recycling behind tiny targets, and its rows as a dictionary that is filled by hand, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import LlamaForCausalLM

from spectune.profiler.identity import identify
from spectune.runtime.models.drafter_shapes import RecyclingShape, recycling_config, recycling_tensors
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.recycling import RecyclingHead
from spectune.training.cards import save_weights

from .tiny_models import tiny_llama

SUCCESSORS = 3
Row = list[tuple[int, float]]  # successors, likeliest first, and their log-probabilities
Floats = NDArray[np.float64]


def tiny_recycling(target: LlamaForCausalLM, successors: int = SUCCESSORS) -> RecyclingHead:
    """Return the drafter beside the lean form of its target."""
    return RecyclingHead(LeanModel(target), successors)


def laws_of(target: LlamaForCausalLM, text: Sequence[int]) -> Floats:
    """Return (tokens, vocabulary): log-probabilities of what follows every token of a text, by transformers."""
    with torch.no_grad():
        logits: Floats = target(torch.tensor([list(text)])).logits[0].double().numpy()
    top = logits.max(axis=1, keepdims=True)
    laws: Floats = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return laws


def rows_behind(text: Sequence[int], laws: Floats, successors: int = SUCCESSORS) -> dict[int, Row]:
    """Return the row of every token that is known behind a committed text, whose newest token nobody has read."""
    table: dict[int, Row] = {}
    for token, law in zip(text[:-1], laws, strict=False):
        best = sorted(range(len(law)), key=lambda one: (-law[one], one))[:successors]
        table[token] = [(one, float(law[one])) for one in best]
    return table


def counting(vocabulary: int) -> LlamaForCausalLM:
    """Return a target that counts on from any token, round and round: its layers add nothing."""
    model = tiny_llama(layers=1, seed=0, vocabulary=vocabulary)
    with torch.no_grad():
        for layer in model.model.layers:
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                nn.init.zeros_(part.weight)
        embedded = torch.eye(vocabulary, model.config.hidden_size, dtype=torch.float64)
        model.model.embed_tokens.weight.copy_(embedded)
        model.lm_head.weight.copy_(9.0 * embedded.roll(1, dims=0))
    return model


def save_recycling(folder: Path, target: Path, successors: int = 4) -> Path:
    """Write the folder of what recycles a target's tokens, and return it."""
    shape = RecyclingShape(successors=successors, target=identify(target).weights_hash)
    folder.mkdir()
    save_weights(folder, recycling_tensors(shape), recycling_config(shape))
    return folder
