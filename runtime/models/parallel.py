"""A target spread over several devices by transformers' tensor parallelism, one process per device."""

from __future__ import annotations

import os

import torch.distributed
from transformers import PreTrainedConfig
from transformers.distributed.configuration_utils import DistributedConfig

from ...errors import DeviceError, ModelError
from .forward import CausalModel
from .generic import GenericModel
from .loading import load_config, read_weights, require_supported


def load_parallel(location: str, *, dtype: str, ranks: int) -> CausalModel:
    """Return this process's share of a model; its forwards must run in all `ranks` processes of torchrun at once.

    Each has 1 / ranks of every layer's heads and MLP, on its local rank's GPU, or a CPU. Needs the package
    `accelerate`. DeviceError where another number of processes runs; ModelError where the model cannot be read or
    split, or cannot verify drafts exactly.
    """
    require_processes(ranks)
    require_divisible(load_config(location).get_text_config(), location, ranks)
    model = read_weights(location, dtype, distributed_config=DistributedConfig(tp_plan="auto", tp_size=ranks))
    require_supported(model, location)
    return GenericModel(model, ranks=ranks)


def rank() -> int:
    """Return this process's rank; 0 measures, and is the only one without torchrun."""
    return int(os.environ.get("RANK", "0"))


def leave() -> None:
    """Leave the process group; every process calls it once, at its end."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def require_processes(ranks: int) -> None:
    """Raise DeviceError unless torchrun started that many processes."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks < 2 or started != ranks:
        raise DeviceError(
            f"--tensor-parallel {ranks} runs in {ranks} processes, at least 2, and {started} runs; "
            f"start it with: torchrun --nproc-per-node {max(ranks, 2)} -m spectune ..."
        )


def require_divisible(config: PreTrainedConfig, location: str, ranks: int) -> None:
    """Raise ModelError unless transformers can split this model's layers evenly."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if not getattr(config, "base_model_tp_plan", None):
        raise ModelError(
            f"transformers has no tensor-parallel plan for {config.model_type} ({location}); use one device"
        )
    if heads % ranks or kv_heads % ranks:
        raise ModelError(
            f"{location} has {heads} query and {kv_heads} key-value heads, which {ranks} devices cannot share evenly; "
            "use a number that divides both"
        )
