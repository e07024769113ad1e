"""A folder's config.json as it is written: read without torch, of any kind of folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"  # whose states an EAGLE-3 head reads, at the top or in eagle_config
LLAVA = "llava"  # model_type of the kind that sees and is known
DFLASH = "DFlashDraftModel"  # the architecture of a DFlash drafter, as its authors write it
DFLASH_KEYS = "dflash_config"  # the dictionary of its own keys
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")  # how places are turned
OWN = "spectune"  # the key under which drafters trained here say more than public ones do


def written_config(folder: Path) -> dict[str, Any]:
    """Return what a folder's config.json holds; empty where it is missing or cannot be read."""
    return written_in(folder / "config.json")


def written_in(config: Path) -> dict[str, Any]:
    """Return what a configuration file holds; empty where it is missing or cannot be read."""
    try:
        written = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def own_config(folder: Path) -> dict[str, Any]:
    """Return what a drafter trained here adds to the public keys; empty for any other folder."""
    said = written_config(folder).get(OWN)
    return said if isinstance(said, dict) else {}


def own_kind(folder: Path) -> str | None:
    """Return the kind of our drafters that a folder's config.json names; None where it names none."""
    kind = own_config(folder).get("kind")
    return kind if isinstance(kind, str) else None


def is_dflash(written: Mapping[str, Any]) -> bool:
    """Return whether a configuration describes a DFlash drafter in its authors' format."""
    return written.get("architectures") == [DFLASH] and not any(key.startswith("speculators") for key in written)


def named_layers(written: dict[str, Any]) -> tuple[Any, bool]:
    """Return the layers that a public EAGLE-3 head names (None: none), and whether at the top level."""
    nested = written.get("eagle_config")
    for part, is_top in ((written, True), (nested, False)):
        if isinstance(part, dict) and part.get(LAYER_IDS):
            return part[LAYER_IDS], is_top
    return None, False


def published_reads(layers: int) -> tuple[int, int, int]:
    """Return how many of a target's layers have been passed by each state that an EAGLE-3 head reads.

    Source: Li et al. 2025, arXiv:2503.01840; vLLM's and SGLang's models take these three, too.
    """
    return 2, layers // 2, layers - 3
