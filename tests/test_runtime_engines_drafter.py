"""What kind of drafter lies in a folder, told by the names of its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spectune.runtime.engines.drafter import drafter_form
from spectune.runtime.engines.setting import DrafterForm


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("fc.weight", "midlayer.self_attn.q_proj.weight"), "eagle3"),
        (("fc.weight", "layers.0.self_attn.q_proj.weight"), "eagle"),
        (("fc.weight", "another.weight"), "unknown"),
        (("model.layers.0.self_attn.q_proj.weight", "lm_head.weight"), "model"),
    ],
)
def test_tensors_tell_a_head_from_a_model(tmp_path: Path, names: tuple[str, ...], form: DrafterForm) -> None:
    save_file({name: torch.zeros(2) for name in names}, tmp_path / "model.safetensors")
    assert drafter_form(tmp_path, follows_text=True) == form


@pytest.mark.parametrize(("follows_text", "form"), [(True, "model"), (False, "unknown")])
def test_without_files_what_follows_the_text_is_a_model(tmp_path: Path, follows_text: bool, form: DrafterForm) -> None:
    assert drafter_form(tmp_path / "gone", follows_text) == form


def test_a_block_drafter_is_nothing_an_engine_loads(tmp_path: Path) -> None:
    save_file({"heads.weight": torch.zeros(2), "heads.bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert drafter_form(tmp_path, follows_text=False) == "unknown"
