"""A model's layers for multi-token prediction (MTP), known by its files: nothing here runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .gguf_file import is_gguf, read_gguf
from .identity import weight_files
from .safetensors_file import read_header

KEYS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "mtp_num_layers")
GGUF_KEY = "nextn_predict_layers"
TENSOR = re.compile(r"(^|\.)mtp(_block|s)?\.")
LAYER = re.compile(r"^(?:model\.)?(?:language_model\.)?layers\.(\d+)\.")  # DeepSeek's lie behind the last layer


def note_of_mtp(place: Path) -> str:
    """Return that a model's MTP layers are not used, "" where a folder or GGUF file has none or cannot be read."""
    try:
        count = _in_gguf(place) if is_gguf(place) else _in_folder(place)
    except (ModelError, OSError, ValueError):
        return ""  # whoever loads it will say what is wrong
    if not count:
        return ""
    many = "an MTP layer" if count == 1 else f"{count} MTP layers"
    return (
        f"{place.name} has {many}, which spectune does not use: drafts come from --drafter, or from a server that runs "
        "them: spectune tune -- COMMAND"
    )


def _in_gguf(place: Path) -> int:
    file = read_gguf(place)
    return _count(file.said.get(f"{file.family}.{GGUF_KEY}"))


def _in_folder(folder: Path) -> int:
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = written.get("text_config") or written
    named = max((_count(part.get(key)) for part in (written, text) for key in KEYS), default=0)
    names = {name for file in weight_files(folder) for name in read_header(file)}
    last = _count(text.get("num_hidden_layers"))
    behind = {int(found[1]) for name in names if (found := LAYER.match(name)) and last and int(found[1]) >= last}
    is_there = any(TENSOR.search(name) for name in names)
    return max(named, len(behind), int(is_there))


def _count(value: Any) -> int:  # Any: whatever a file holds
    return value if isinstance(value, int) else 0
