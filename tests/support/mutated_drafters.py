"""The demo's drafters with one thing wrong each, and heads that are exact along a few texts by least squares."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import spectune
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.doctor.own_text import OwnText
from spectune.tuning.doctor.tried_head import TextStates

DEMO = Path(spectune.__file__).parent / "demo" / "models"
LAYER = "midlayer."
WEIGHTS, CONFIG = "model.safetensors", "config.json"
Tensors = dict[str, Tensor]


def mutated(
    folder: Path,
    source: str = "eagle3",
    *,
    said: Mapping[str, Any] | None = None,
    change: Callable[[Tensors], object] | None = None,
) -> Path:
    """Copy one of the demo's drafters with other keys in its config.json, or other tensors; return the copy."""
    shutil.copytree(DEMO / source, folder)
    if said:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**config, **said}))
    if change is not None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    return folder


def reading(folder: Path, *reads: int) -> Path:
    """Copy the demo's EAGLE-3 head with other layers in its config.json."""
    return mutated(folder, said={"spectune": {"reads": list(reads), "target": ""}})


def fitted_head(
    folder: Path,
    target: LeanModel,
    texts: Sequence[OwnText],
    *,
    lag: int = 0,
    is_normed: bool = True,
    layer: int | None = None,
) -> Path:
    """Write a head of form EAGLE-1 that says the texts exactly: its layer adds nothing, its `fc` interpolates.

    `lag`, `is_normed` and `layer` (None: the last) say with which states it was fitted, as `TriedHead.fed` feeds them;
    its config.json says nothing of them.
    """
    states, last = TextStates(target), len(target.anatomy.layers)
    inputs, wanted = [], []
    for text in texts:
        tokens, first = text.read, len(text.request.prompt)
        along = states.along(tokens)
        rows = torch.arange(first, len(tokens))
        fed = along[(rows - lag).clamp(min=0), last if layer is None else layer]
        embedded = target.embed(torch.tensor([tokens]))[rows]
        inputs.append(torch.cat((embedded, target.final_norm(fed) if is_normed else fed), dim=-1))
        wanted.append(target.final_norm(along[rows + 1, last]))
    left, right = torch.cat(inputs).double(), torch.cat(wanted).double()
    fc = (torch.linalg.pinv(left) @ right).T.float()
    config = json.loads((DEMO / "eagle3" / CONFIG).read_text())
    config |= {"architectures": ["LlamaForCausalLMEagle"], "intermediate_size": 16, "spectune": {"target": ""}}
    del config["draft_vocab_size"]
    d, pairs = fc.shape[0], 128
    shapes = {
        "self_attn.q_proj": (d, d),
        "self_attn.k_proj": (pairs, d),
        "self_attn.v_proj": (pairs, d),
        "self_attn.o_proj": (d, d),
        "mlp.gate_proj": (16, d),
        "mlp.up_proj": (16, d),
        "mlp.down_proj": (d, 16),
    }
    tensors = {f"layers.0.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    tensors |= {"layers.0.post_attention_layernorm.weight": torch.ones(d), "fc.weight": fc.contiguous()}
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(config))
    return folder
