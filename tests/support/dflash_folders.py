"""A tiny DFlash drafter beside its target, both written by PyPI's `dflash`; see `tests/data/dflash/write.py`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from spectune.runtime.models.dflash import DFlash
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.lean import LeanModel

DATA = Path(__file__).parents[1] / "data" / "dflash"
DRAFTER = DATA / "drafter"
SAID = load_file(DATA / "said.safetensors")
TEXT: list[int] = SAID["text"].tolist()


@cache
def dflash_target(dtype: torch.dtype = torch.float32) -> LeanModel:
    """Return the target."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(DATA / "target", dtype=dtype).eval()
    return LeanModel(model)


@cache
def dflash_drafter(dtype: torch.dtype = torch.float32, folder: Path = DRAFTER) -> DFlash:
    """Return the drafter beside that target, read from its folder."""
    found = load_drafter(str(folder), dflash_target(dtype), dtype=str(dtype).removeprefix("torch."))
    assert isinstance(found, DFlash)
    return found
