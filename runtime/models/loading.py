"""Load a model folder, hub id or GGUF file as a `CausalModel` and its tokenizer; of folders safetensors only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlavaForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity, set_verbosity_error

from ...errors import DeviceError, ModelError
from ...profiler.gguf_file import is_gguf, read_gguf
from ...profiler.identity import require_no_adapter
from ...profiler.records.architecture import QUANTISED
from ..batch.faults import is_out_of_memory
from .anatomy import FAMILIES, anatomy_of
from .checkpoint import require_computable, require_loaded
from .configuration import FULL, SLIDING, declared, longest_context_of
from .formats import require_no_drafter
from .forward import CausalModel
from .generic import GenericModel
from .gguf_weights import gguf_config, gguf_tokenizer, gguf_weights, packed_weights
from .image_cache import IMAGES
from .kernels.packed_dots import can_pack
from .lean import LeanModel
from .packed import has_packed_products
from .vision import sees

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    **dict.fromkeys(QUANTISED, torch.bfloat16),
}


def load_model(location: str, *, dtype: str, device: str = "cpu", images: int = IMAGES) -> CausalModel:
    """Return the model in the fastest form known for its family, from a folder, a GGUF file, or a hub id.

    ModelError: no safetensors of a causal language model, an unknown dtype, or not exactly verifiable; DeviceError
    where the device cannot be used, or is too small.
    """
    _require_cpu(dtype, device)
    model = load_pretrained(location, dtype=dtype, device=device)
    try:
        return causal_model(model, location, images)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceError(
            f"{device} has no room for {location} in {dtype}: {first_line(error)}; choose another --device or --dtype, "
            "or a smaller model"
        ) from error


def causal_model(model: PreTrainedModel, location: str, images: int = IMAGES) -> CausalModel:
    """Return a transformers model in the fastest form known; it may be used up. Quantised layers stay as they are.

    ModelError where it cannot verify drafts exactly, see `require_supported`, or has vision and is quantised.
    """
    require_supported(model, location)
    is_seeing, is_quantised = sees(model.config), getattr(model, "is_quantized", False)
    if is_seeing and is_quantised:
        raise ModelError(f"{location} sees images and its weights are quantised; use one whose weights are not")
    if is_quantised or not (is_seeing or model.config.model_type in FAMILIES):
        return GenericModel(model)
    anatomy = anatomy_of(model, Path(location), images, uses_up=True)
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # a capture could not have what the allocator keeps of the original
    return LeanModel(anatomy)


def load_pretrained(location: str, *, dtype: str, device: str = "cpu") -> PreTrainedModel:
    """Return the transformers model itself, in evaluation mode."""
    model: Any = read_weights(location, dtype)  # Any: its `to` is typed for the model class itself
    try:
        moved: PreTrainedModel = model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise DeviceError(
            f"cannot move {location} to {device}: {first_line(error)}; choose another --device, or install torch for it"
        ) from error
    return moved


def read_weights(location: str, dtype: str, **options: Any) -> PreTrainedModel:  # Any: transformers' own options
    """Return the transformers model on the device of its weights, in evaluation mode, with no weight made up."""
    options |= {"dtype": dtype_of(dtype), "output_loading_info": True, "ignore_mismatched_sizes": True}
    require_stored(location, dtype)
    try:
        with quietly():
            loaded = _of_gguf(location, dtype, options) if is_gguf(location) else _of_folder(location, options)
    except (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        ImportError,  # a package that reads quantised weights is not installed
        SafetensorError,
        StrictDataclassError,
    ) as error:
        raise ModelError(
            f"cannot load a causal language model from {location}: {first_line(error)}; give a folder that "
            "save_pretrained has written, with its config.json and safetensors"
        ) from error
    model, found = loaded
    require_loaded(location, found)
    evaluated: PreTrainedModel = model.eval()
    return evaluated


@contextmanager
def quietly() -> Iterator[None]:
    """Let transformers show neither bars nor reports meanwhile: what it finds wrong is refused by name."""
    before = get_verbosity()
    disable_progress_bar()
    set_verbosity_error()
    try:
        yield
    finally:
        set_verbosity(before)


def _of_folder(location: str, options: dict[str, Any]) -> Any:  # Any: a pair, which transformers' types do not tell
    if Path(location).is_dir():
        require_no_adapter(Path(location))
        require_no_drafter(Path(location))
    config = AutoConfig.from_pretrained(location, trust_remote_code=False)
    if Path(location).is_dir():
        require_computable(Path(location), config)
    kind: Any = LlavaForConditionalGeneration if sees(config) else AutoModelForCausalLM
    return kind.from_pretrained(location, use_safetensors=True, trust_remote_code=False, **options)


def _of_gguf(location: str, dtype: str, options: dict[str, Any]) -> Any:  # Any: likewise
    """Return the model of a GGUF file, which holds the tensors read and no copy of them."""
    path = Path(location)
    config = gguf_config(path)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    packed = linears_of(config) if dtype in QUANTISED else []
    weights = gguf_weights(path, config, options["dtype"], packed)
    model, found = kind.from_pretrained(None, config=config, state_dict=weights, **options)
    for name, weight in packed_weights(path, config, packed):
        linear = model.get_submodule(name.removesuffix(".weight"))
        del linear.weight
        linear.weight = weight  # what anatomies read; the model itself cannot forward
    return model, found


def linears_of(config: PreTrainedConfig) -> list[str]:
    """Return the names of a model's weights that may be packed: of linear layers, its head among them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return [f"{name}.weight" for name, linear in linears.items() if can_pack(linear.out_features, linear.in_features)]


def require_format(location: str, dtype: str, device: str) -> None:
    """Raise ModelError where `load_model` would refuse a number format; no weight is read."""
    _require_cpu(dtype, device)
    require_stored(location, dtype)


def _require_cpu(dtype: str, device: str) -> None:
    if dtype in QUANTISED and device != "cpu":
        raise ModelError(f"--dtype {dtype} runs on a CPU, not on {device}; choose --device cpu or another --dtype")


def require_stored(location: str, dtype: str) -> None:
    """Raise ModelError where a quantised format is wanted that is not the file's, or cannot be multiplied."""
    if dtype not in QUANTISED:
        return
    stored = read_gguf(Path(location)).format.lower() if is_gguf(location) else "no GGUF file"
    if stored != dtype:
        raise ModelError(f"{location} is {stored}, not {dtype}; give a GGUF file in that format, or another --dtype")
    if not has_packed_products():
        raise ModelError(
            f"--dtype {dtype} needs a CPU with AVX-512 VNNI and BF16, which this one lacks; choose --dtype bfloat16, "
            "which reads the same file"
        )


def dtype_of(name: str) -> torch.dtype:
    """Return torch's number format of a name; ModelError where it is not one of `DTYPES`."""
    if name not in DTYPES:
        raise ModelError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def load_config(location: str) -> PreTrainedConfig:
    """Return the configuration of a folder, a hub id, a GGUF file, or a config.json; ModelError without a valid one."""
    try:
        if is_gguf(location):
            return gguf_config(Path(location))
        config: PreTrainedConfig = AutoConfig.from_pretrained(location, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ZeroDivisionError, StrictDataclassError) as error:
        raise ModelError(f"no model configuration at {location}: {first_line(error)}") from error
    return config


def positions_of_folder(folder: Path) -> int | None:
    """Return the longest text in tokens by a folder's config.json; None where it does not say."""
    try:
        config = load_config(str(folder)).get_text_config()
    except ModelError:
        return None
    return longest_context_of(config) if hasattr(config, "max_position_embeddings") else None


def load_tokenizer(location: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer that lies with a model; ModelError where there is none."""
    if is_gguf(location):
        return gguf_tokenizer(Path(location))
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"no tokenizer at {location}: {first_line(error)}; save the target's there with tokenizer.save_pretrained"
        ) from error
    return tokenizer


def first_line(error: BaseException) -> str:
    """Return an error's first line; all lines where it ends in a colon, its class where it is empty."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(" ".join(lines).split()) if lines[0].rstrip().endswith(":") else lines[0]
    return said.rstrip(".")


SEEING = ("llama", "mistral", "qwen2", "qwen3")  # kinds of language models that images may be shown to
ATTENTIONS = ("eager", "sdpa")  # those of transformers that obey a mask of any form


def require_supported(model: PreTrainedModel, location: str) -> None:
    """Raise ModelError unless every layer attends to cached tokens by mask and position alone."""
    obstacle = next(_obstacles(model), None)
    if obstacle is not None:
        raise ModelError(
            f"{location} is of type {model.config.model_type}, which {obstacle}: drafts could not be verified exactly; "
            "use a model whose layers attend to all cached tokens, or to a window of the last ones, or let a server "
            "run this one: spectune tune -- COMMAND"
        )


def _obstacles(model: PreTrainedModel) -> Iterator[str]:
    """Yield the obstacles, each as the end of a sentence."""
    config = model.config.get_text_config()
    if sees(model.config) and config.model_type not in SEEING:
        yield f"shows images to a language model of kind {config.model_type}, which is not one of {', '.join(SEEING)}"
    others = sorted(set(declared(config, "layer_types") or ()) - {FULL, SLIDING})
    if others:
        yield f"has layers of kind {', '.join(others)}"
    if model._is_stateful:
        yield "keeps a recurrent state, which cannot be taken back when a draft is rejected"
    if "local" in (getattr(config, "attention_layers", None) or ()):
        yield "has local attention that counts cache columns, not places in the text"
    if declared(config, "use_bidirectional_attention") in (True, "all"):
        yield "lets tokens see what follows them"
    if declared(config, "kv_lora_rank"):
        yield "caches compressed keys and values"
    if declared(config, "num_kv_shared_layers"):
        yield "shares keys and values among layers"
    if declared(config, "alibi") or not _takes_positions(model):
        yield "cannot be told the places of its tokens"
    if config._attn_implementation not in ATTENTIONS:
        yield f"runs attention {config._attn_implementation}, which obeys no mask of a tree"


def _takes_positions(model: PreTrainedModel) -> bool:
    return any("position_ids" in signature(part.forward).parameters for part in (model, model.base_model))
