"""How many tokens of a prompt are read: as many as were requested, within positions and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from ..profiler.configuration import read_architecture
from ..profiler.cpu import available_bytes
from ..profiler.device import detect
from ..profiler.gguf_file import is_gguf
from ..profiler.records.architecture import QUANTISED, Architecture
from ..profiler.records.device import Device
from ..runtime.models.configuration import longest_context_of, why_shorter
from ..runtime.models.formats import packed_bytes
from ..runtime.models.loading import load_config
from .positions import UNLIMITED
from .request import ProfileRequest

CACHES = 0.5  # share of the memory beside the weights that keys and values of texts may take


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRoom:
    """The most tokens that are read of a prompt, and what sets that number."""

    tokens: int
    limit: str  # in words


def prompt_room(request: ProfileRequest) -> PromptRoom:
    """Return how many tokens of a prompt are read for a profile."""
    known = [(UNLIMITED, "nothing known")]
    if request.max_prompt_tokens is not None:
        known.append((request.max_prompt_tokens, "--max-prompt-tokens"))
    if positions := _positions(request.models.target):
        words = f"the model's {positions:,} positions{why_shorter_at(request.models.target)}"
        known.append((positions - request.max_new_tokens, words))
    if (room := _room_in_memory(request)) is not None:
        known.append((room - request.max_new_tokens, f"the memory for {max(request.batches)} texts at once"))
    tokens, limit = min(known)
    return PromptRoom(tokens=max(tokens, 1), limit=limit)


def positions_of(target: Path) -> int:
    """Return how many positions a model has, 0 where its configuration does not tell."""
    config = load_config(str(target)).get_text_config()
    return longest_context_of(config) if hasattr(config, "max_position_embeddings") else 0


def why_shorter_at(target: Path) -> str:
    """Return why texts may not grow to all positions that a model's files name, in brackets; "" where they may."""
    return why_shorter(load_config(str(target)).get_text_config())


def _positions(target: Path) -> int:
    try:
        return positions_of(target)
    except ModelError:  # whoever loads the model says what is wrong with it
        return 0


def _room_in_memory(request: ProfileRequest) -> int | None:
    """Return the tokens of a text that memory holds in the largest batch; None where that is not known.

    A power of two: the free memory of the moment seldom changes it, and a resumed profile must read the same prompts.
    """
    if request.device == "all":
        return None
    device = detect(request.device)
    free, weights, per_token = _free_bytes(device), 0, 0
    dtype = device.dtype_for(request.dtype)
    try:
        for path in (request.models.target, *request.models.drafters.values()):
            architecture = read_architecture(path)
            weights += _weight_bytes(path, architecture, dtype)
            per_token += architecture.kv_bytes_per_token(dtype)
    except ModelError:  # a head, or a form that is not known
        if not per_token:
            return None
    if free is None or not per_token:
        return None
    tokens = int(CACHES * max(free - weights, 0) / (max(request.batches) * per_token))
    return 1 << max(tokens.bit_length() - 1, 0)


def _weight_bytes(path: Path, architecture: Architecture, dtype: str) -> int:
    if dtype in QUANTISED and is_gguf(path):
        packed = packed_bytes(path)
        return packed.weights + packed.tied_head
    return architecture.weight_bytes(dtype)


def _free_bytes(device: Device) -> int | None:
    return available_bytes() if device.kind == "cpu" else device.memory_bytes
