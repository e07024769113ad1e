"""Load a model folder or hub id as a `CausalModel` and its tokenizer; safetensors only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from ...errors import DeviceError, ModelError
from .forward import CausalModel
from .generic import GenericModel
from .lean import FAMILIES, LeanModel

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(location: str, *, dtype: str, device: str = "cpu") -> CausalModel:
    """Return the model in the fastest form known for its family.

    Args:
        location: a folder, or the id of a model that is in the local hub cache or can be fetched.
        dtype: one of `DTYPES`.
        device: a torch device.

    Raises:
        ModelError: no such model, not safetensors, not a causal language model, or an unknown dtype.
    """
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    model = load_pretrained(location, dtype=dtype, device=device)
    if model.config.model_type in FAMILIES and not _uses_a_window(model):
        return LeanModel(model)
    if _uses_a_window(model):
        raise ModelError(
            f"{location} attends through a sliding window, which tree verification does not support yet; "
            "use a model with full attention"
        )
    return GenericModel(model)


def load_pretrained(location: str, *, dtype: str, device: str = "cpu") -> PreTrainedModel:
    """Return the transformers model itself, in evaluation mode."""
    disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(  # Any: a pair, which its types do not tell
            location, dtype=DTYPES[dtype], use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load a causal language model from {location}: {_first_line(error)}") from error
    model, found = loaded
    if found["missing_keys"]:
        missing = ", ".join(sorted(found["missing_keys"])[:3])
        raise ModelError(f"{location} lacks weights ({missing}, ...); finish the download or save the model again")
    try:
        moved: PreTrainedModel = model.eval().to(device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise DeviceError(
            f"cannot move {location} to {device}: {_first_line(error)}; "
            "choose another --device, or install torch for it"
        ) from error
    return moved


def load_tokenizer(location: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer that lies with a model.

    Raises:
        ModelError: there is none.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"no tokenizer at {location}: {_first_line(error)}") from error
    return tokenizer


def require_one_vocabulary(target: str, drafter: str) -> None:
    """Raise ModelError unless a drafter counts tokens as its target does.

    Vocabulary sizes are read from the configurations; where both models carry a tokenizer, their
    token-to-id maps must be equal too.
    """
    sizes = [_vocabulary_size(location) for location in (target, drafter)]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"{drafter} has a vocabulary of {sizes[1]} tokens and the target {target} of {sizes[0]}; "
            "a drafter must share its target's tokenizer"
        )
    if not Path(drafter, "tokenizer.json").exists() and Path(drafter).is_dir():
        return
    if load_tokenizer(target).get_vocab() != load_tokenizer(drafter).get_vocab():
        raise ModelError(
            f"the tokenizers of {drafter} and of the target {target} number their tokens differently; "
            "a drafter must share its target's tokenizer"
        )


def _vocabulary_size(location: str) -> int:
    try:
        return int(AutoConfig.from_pretrained(location, trust_remote_code=False).get_text_config().vocab_size)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"no model configuration at {location}: {_first_line(error)}") from error


def _uses_a_window(model: PreTrainedModel) -> bool:
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or []
    windowed = any(kind != "full_attention" for kind in kinds)
    return windowed or (not kinds and bool(getattr(config, "sliding_window", None)))


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
