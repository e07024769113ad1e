"""A DFlash drafter says what its authors' code says, however it is read; what is not computed is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from spectune.errors import ModelError
from spectune.profiler.identity import identify
from spectune.runtime.models.config_file import DFLASH_KEYS
from spectune.runtime.models.dflash import _DFlashLayers
from spectune.runtime.models.drafter import require_drafter_of
from spectune.runtime.models.drafter_shapes import block_shape, is_block
from spectune.runtime.models.eagle_shape import is_head
from spectune.runtime.models.formats import draft_role

from ...support.dflash_folders import DATA, DRAFTER, SAID, TEXT, dflash_drafter
from ...support.tiny_blocks import said_along


def changed(folder: Path, said: Mapping[str, Any], **nested: Any) -> Path:
    """Return a copy of the drafter's folder with other keys at the top of its config.json, or among its own."""
    shutil.copytree(DRAFTER, folder)
    written = json.loads((folder / "config.json").read_text())
    written[DFLASH_KEYS] |= nested
    (folder / "config.json").write_text(json.dumps(written | dict(said)))
    return folder


def said(folder: Path = DRAFTER) -> Tensor:
    """Return (tokens - 1, places, vocabulary) behind every token but the first."""
    return said_along(dflash_drafter(folder=folder), TEXT)[1:]


@pytest.mark.parametrize("pieces", [(12,), (1,) * 12, (5, 1, 6)])
def test_behind_every_token_it_says_what_the_reference_says(pieces: tuple[int, ...]) -> None:
    found = said_along(dflash_drafter(), TEXT, pieces)[1:]
    torch.testing.assert_close(found, SAID["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("key", ["rope_parameters", "target_layer_ids", "mask_token_id"])
def test_a_drafter_described_otherwise_says_otherwise(key: str, tmp_path: Path) -> None:
    """The control of the test before: places, layers and mask each matter."""
    top = {key: {"rope_theta": 1e4, "rope_type": "default"}} if key == "rope_parameters" else {}
    values: dict[str, Any] = {"target_layer_ids": [0, 3], "mask_token_id": 7}
    nested = {key: values[key]} if key in values else {}
    found = said(changed(tmp_path / "it", top, **nested))
    assert (found - SAID["logits"]).abs().amax(dim=(1, 2))[1:].min() > 1e-3


def test_a_block_that_sees_only_what_precedes_it_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the mask: a block is read both ways."""
    whole = _DFlashLayers._bias

    def causal(self: _DFlashLayers, columns: Tensor, seen: int, block: int) -> Tensor:
        bias, groups = whole(self, columns, seen, block), self.anatomy.heads // self.anatomy.kv_heads
        count = bias.shape[2] // groups
        later = torch.ones(count, count).triu(1).bool().repeat_interleave(groups, dim=0)
        bias[:, :, :, seen:].masked_fill_(later, -torch.inf)
        return bias

    monkeypatch.setattr(_DFlashLayers, "_bias", causal)
    assert (said() - SAID["logits"]).abs().max() > 1e-3


def test_later_text_changes_nothing_and_earlier_text_does() -> None:
    right, model = said(), dflash_drafter()
    torch.testing.assert_close(said_along(model, [*TEXT[:6], *[7] * 6])[1:6], right[:5], rtol=0, atol=1e-5)
    other = said_along(model, [TEXT[0], 8, *TEXT[2:]])[2:]
    assert (other - right[1:]).abs().amax(dim=(1, 2)).min() > 1e-4


def test_scale_and_cap_of_logits_are_applied(tmp_path: Path) -> None:
    found = said(changed(tmp_path / "it", {}, output_multiplier=0.5, final_logit_softcapping=2.0))
    torch.testing.assert_close(found, 2.0 * torch.tanh(SAID["logits"] * 0.5 / 2.0), rtol=0, atol=1e-4)


def test_the_folder_holds_a_block_drafter_and_no_head() -> None:
    shape = block_shape(DRAFTER)
    assert is_block(DRAFTER) and not is_head(DRAFTER) and draft_role(DRAFTER) == "block"
    assert (shape.kind, shape.depth, shape.reads) == ("dflash", 4, (2, 4))
    require_drafter_of(DRAFTER, identify(DATA / "target"))


def test_layers_that_are_not_named_are_spread_as_the_authors_do(tmp_path: Path) -> None:
    folder = changed(tmp_path / "it", {"num_target_layers": 36, "num_hidden_layers": 5}, target_layer_ids=None)
    assert block_shape(folder).reads == (2, 10, 18, 26, 34)


@pytest.mark.parametrize(
    ("top", "nested", "named"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"]}, {}, "layer_types"),
        ({"sliding_window": 64, "use_sliding_window": True, "layer_types": None}, {}, "sliding_window"),
        ({"is_causal": True}, {}, "is_causal: true"),
        ({"draft_vocab_size": 12}, {}, "draft_vocab_size: 12"),
        ({"target_hidden_size": 32}, {}, "target_hidden_size: 32"),
        ({"hidden_act": "gelu"}, {}, "hidden_act"),
        ({"mlp_bias": True}, {}, "mlp_bias: true"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, {}, "longrope"),
        ({}, {"fc_layernorm": True}, "dflash_config.fc_layernorm: true"),
        ({}, {"conv_kernel_size": 3}, "dflash_config.conv_kernel_size: 3"),
        ({}, {"selector_rank": 8}, "dflash_config.selector_rank: 8"),
        ({}, {"mask_token_id": None}, "mask_token_id: None"),
        ({}, {"target_layer_ids": "all"}, "target_layer_ids: all"),
        ({"block_size": 1}, {}, "block_size: 1"),
        ({"head_dim": None}, {}, "head_dim: None"),
        ({"num_key_value_heads": 3}, {}, "num_key_value_heads: 3"),
        ({"rms_norm_eps": "small"}, {}, "rms_norm_eps: small"),
        ({"num_target_layers": 6}, {}, "of 6 layers"),
        ({}, {"target_layer_ids": [1, 4]}, "after 2, 5 of 5 layers"),
        ({}, {"mask_token_id": 24}, "masks with the token 24"),
        ({"num_hidden_layers": 1}, {}, "holds the tensors layers.1"),
        ({"num_hidden_layers": 3}, {}, "lacks the tensors layers.2"),
        ({"attention_bias": True}, {}, "lacks the tensors layers.0.self_attn.k_proj.bias"),
        ({"architectures": ["DFlash2DraftModel"]}, {}, "in the format DFlash of another architecture"),
        ({"dflash_config": [1]}, {}, "dflash_config"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(
    top: Mapping[str, Any], nested: Mapping[str, Any], named: str, tmp_path: Path
) -> None:
    folder, target = changed(tmp_path / "it", top, **nested), identify(DATA / "target")
    with pytest.raises(ModelError) as refused:
        require_drafter_of(folder, target)
    assert named in str(refused.value)


def test_a_tensor_that_is_not_read_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path / "it", {})
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.zeros(24, 16)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"holds the tensor lm_head\.weight"):
        require_drafter_of(folder, identify(DATA / "target"))
