"""What a head's folder says about it: its form, its shape, whose it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import LlamaConfig

from ...errors import ModelError
from .config_file import OWN, published_reads

Form = Literal["eagle", "eagle3"]
JOINS = "fc.weight"  # a tensor that heads have and language models do not
LAYER: Mapping[Form, str] = {"eagle": "layers.0.", "eagle3": "midlayer."}  # how its layer's tensors begin


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """A feature-level head as its files describe it.

    Source: tensor names as SafeAILab's EAGLE writes them; Li et al. 2025, arXiv:2503.01840, Sec. 3.1.
    """

    form: Form
    config: LlamaConfig  # of its one layer
    reads: tuple[int, ...] = ()  # how many of the target's layers each hidden state has passed; empty: as published
    target: str = ""  # ModelIdentity.weights_hash of its target; "" where nobody wrote it down

    def reads_of(self, layers: int) -> tuple[int, ...]:
        """Return which hidden states it reads of a target with so many layers."""
        if self.reads:
            return self.reads
        return (layers,) if self.form == "eagle" else published_reads(layers)


def is_head(folder: Path) -> bool:
    """Whether a folder holds a head and no language model; reads names of tensors only."""
    return folder.is_dir() and any(JOINS in tensors for tensors in _names(folder))


def head_shape(folder: Path) -> HeadShape:
    """Return what a head's folder says.

    Raises:
        ModelError: it is no head that can be loaded, or says so little that its hidden states would be guessed.
    """
    names = {name for some in _names(folder) for name in some}
    form = next((form for form, layer in LAYER.items() if layer + "self_attn.q_proj.weight" in names), None)
    if JOINS not in names or form is None:
        raise ModelError(f"{folder} holds no head of EAGLE's forms; give a folder with fc.weight and one layer")
    if any(name.startswith("layers.1.") for name in names):
        raise ModelError(f"the head {folder} has several layers; only heads of one layer are known")
    try:
        written: dict[str, Any] = json.loads((folder / "config.json").read_text())
        config = LlamaConfig(**{key: value for key, value in written.items() if key != OWN})
        said = written.get(OWN, {})
        reads = tuple(int(count) for count in said.get("reads", ()))
        shape = HeadShape(form=form, config=config, reads=reads, target=str(said.get("target", "")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder}/config.json does not describe a head: {error}; copy or train it again") from error
    if not reads:
        _require_published_hooks(folder, written.get("eagle_config"))
    return shape


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder by name.

    Raises:
        ModelError: a file cannot be read.
    """
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names: Sequence[str] = file.keys()
                found |= {name: file.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise ModelError(f"{path} is not a safetensors file ({error}); copy or save it again") from error
    return found


def require_head_of(folder: Path, target: str, weights_hash: str) -> None:
    """Raise ModelError where a head was trained for other weights than a target's.

    Args:
        folder: of the head.
        target: what the target is called.
        weights_hash: ModelIdentity.weights_hash of the target.
    """
    own = head_shape(folder).target
    if own and own != weights_hash:
        raise ModelError(
            f"the head {folder} was trained for a target with the weights {own[:12]}, and {target} has "
            f"{weights_hash[:12]}; give the head of this target, or train one: spectune train eagle --target {target}"
        )


def as_numbers(weight: Tensor, like: Tensor) -> Tensor:
    """Return a copy of a weight in the number format and on the device of another tensor.

    It is a copy also where nothing changes: a norm of a few bytes would keep its whole file mapped.
    """
    return weight.to(device=like.device, dtype=like.dtype if weight.is_floating_point() else torch.int64, copy=True)


def _names(folder: Path) -> Iterator[Sequence[str]]:
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                names: Sequence[str] = file.keys()
                yield names
        except SafetensorError:
            continue  # whoever loads it will say so


def _require_published_hooks(folder: Path, said: Any) -> None:  # Any: whatever a file holds
    """Raise ModelError where a public head names layers of its own: engines count them differently."""
    layers = said.get("eagle_aux_hidden_state_layer_ids") if isinstance(said, dict) else None
    if layers:
        raise ModelError(
            f"the head {folder} names the layers {layers} it reads, which engines count in different ways; say in its "
            f'config.json how many layers each hidden state has passed: "{OWN}": {{"reads": [2, 16, 29]}}'
        )
