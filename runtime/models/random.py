"""A model of a given architecture with random weights: as fast as the real one, without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ...errors import DeviceError, ModelError
from .forward import CausalModel
from .loading import causal_model, dtype_of, first_line, load_config, quietly, require_stored


def load_random(config: Path, *, dtype: str, device: str = "cpu", seed: int = 0) -> CausalModel:
    """Return a randomly initialised model of a config.json or a folder with one, for measuring latency only.

    The weights are drawn on the device in the dtype, with no copy on the host. ModelError: no such configuration, not a
    causal language model, or an unknown dtype; DeviceError where the device cannot be used, or is too small.
    """
    require_stored(str(config), dtype)
    number_format, settings = dtype_of(dtype), load_config(str(config))
    try:
        place = torch.device(device)
        with quietly(), torch.random.fork_rng([place] if place.type == "cuda" else []), place:
            torch.manual_seed(seed)
            model = _built(settings, config, number_format)
            return causal_model(model.eval(), str(config))
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise DeviceError(
            f"cannot build {config} on {device}: {first_line(error)}; choose another --device or a smaller model"
        ) from error


def count_parameters(config: Path) -> int:
    """Return a configuration's number of parameters, tied ones once, without allocating any.

    ModelError: no such configuration, or not a causal language model.
    """
    with torch.device("meta"):
        model = _built(load_config(str(config)), config, torch.float32)
    return sum(parameter.numel() for parameter in model.parameters())


def _built(settings: Any, config: Path, dtype: torch.dtype) -> PreTrainedModel:  # Any: a configuration of any family
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(settings, dtype=dtype, trust_remote_code=False)
    except (ValueError, KeyError) as error:
        raise ModelError(f"{config} describes no causal language model: {first_line(error)}") from error
    return model
