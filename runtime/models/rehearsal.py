"""Refuse a model that could not be loaded, by its configuration and tensor names, before any read or measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ...errors import ModelError
from ...profiler.gguf_file import is_gguf
from ...profiler.identity import require_no_adapter, weight_files
from .anatomy import FAMILIES
from .checkpoint import require_all_read, require_computable, require_loaded, strange_scales
from .formats import require_no_drafter
from .gguf_weights import require_places
from .loading import first_line, load_config, quietly, require_supported
from .stored_tensors import TensorHeader, stored_tensors
from .vision import sees


def require_loadable(location: str) -> None:
    """Raise ModelError where `load_model` would refuse a language model for what its files say; reads no weights.

    Of models with vision only the configuration is checked, of quantised ones no name of a tensor; a location without
    files here passes.
    """
    if is_gguf(location):
        require_places(Path(location))
        return
    folder = Path(location)
    if not folder.is_dir():
        return
    require_no_adapter(folder)
    require_no_drafter(folder)
    config = load_config(location)
    tensors = stored_tensors(folder, weight_files(folder))
    require_computable(folder, config)
    if sees(config):
        return
    model = _without_weights(config, location)
    require_supported(model, location)
    if getattr(config, "quantization_config", None) is not None:
        return
    if config.model_type in FAMILIES:
        _require_names(location, model, tensors)
    elif scales := strange_scales(tensors):
        require_all_read(location, scales)


def _without_weights(config: PreTrainedConfig, location: str) -> PreTrainedModel:
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        raise ModelError(f"cannot load a causal language model from {location}: {first_line(error)}") from error
    return model


def _require_names(location: str, model: PreTrainedModel, tensors: dict[str, TensorHeader]) -> None:
    """Raise ModelError where transformers misses tensors of a model, or has no place for some; takes no memory."""
    kind: Any = type(model)  # Any: transformers' options
    nothing = torch.zeros((), dtype=torch.bfloat16)
    weights = {name: nothing.expand(tensor.shape) for name, tensor in tensors.items()}
    options: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        with quietly():
            _, found = kind.from_pretrained(
                None, config=model.config, state_dict=weights, dtype=torch.bfloat16, **options
            )
    except (ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"cannot load a causal language model from {location}: {first_line(error)}") from error
    require_loaded(location, found)
