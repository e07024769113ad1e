"""Layers for multi-token prediction are named, wherever a model's files have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from spectune.profiler.mtp_layers import note_of_mtp

LAYERS = {"num_hidden_layers": 2}
OWN = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("said", "tensors", "told"),
    [
        ({"num_nextn_predict_layers": 1}, [OWN], "has an MTP layer"),
        ({"text_config": {**LAYERS, "mtp_num_hidden_layers": 2}}, [OWN], "has 2 MTP layers"),
        ({}, [OWN, "mtp.layers.0.mlp.weight"], "has an MTP layer"),
        ({}, [OWN, "model.layers.2.eh_proj.weight", "model.layers.3.eh_proj.weight"], "has 2 MTP layers"),
        ({"num_nextn_predict_layers": 0}, [OWN], ""),
        ({}, [OWN], ""),
    ],
)
def test_they_are_told_with_what_runs_them(said: dict[str, Any], tensors: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LAYERS, **said}))
    save_file({name: torch.zeros(1) for name in tensors}, tmp_path / "model.safetensors")
    note = note_of_mtp(tmp_path)
    assert told in note and ("spectune tune" in note) == bool(told)


def test_a_place_without_a_model_has_none(tmp_path: Path) -> None:
    assert note_of_mtp(tmp_path) == ""
