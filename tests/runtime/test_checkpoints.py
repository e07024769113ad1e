"""Checkpoints that would be read as other numbers than they stand for are refused, by the names of their tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from spectune.errors import ModelError
from spectune.profiler.identity import identify
from spectune.runtime.models.loading import load_model
from spectune.runtime.models.rehearsal import require_loadable

from ..support.tiny_models import tiny_gpt2, tiny_model, tiny_neox

Tensors = dict[str, Tensor]
MAKERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: tiny_model("llama").float(),
    "gemma3": lambda: tiny_model("gemma3").float(),
    "neox": lambda: tiny_neox(layers=2, seed=0).float(),
}
FP8 = torch.float8_e4m3fn


@pytest.fixture(params=MAKERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the folder of a saved model: of our own decoder, or of transformers' forward."""
    MAKERS[request.param]().save_pretrained(tmp_path)
    return tmp_path


def rewritten(folder: Path, change: Callable[[Tensors], Tensors], **said: Any) -> Path:
    """Return the folder with other tensors, and more said in its config.json."""
    file, config = folder / "model.safetensors", folder / "config.json"
    save_file(change(load_file(file)), file, {"format": "pt"})
    config.write_text(json.dumps({**json.loads(config.read_text()), **said}))
    return folder


def added(**tensors: Tensor) -> Callable[[Tensors], Tensors]:
    """Return a change that adds tensors, their names written with __ for a point."""
    return lambda stored: stored | {name.replace("__", "."): tensor for name, tensor in tensors.items()}


def as_format(dtype: torch.dtype, part: str, scale: str = "") -> Callable[[Tensors], Tensors]:
    """Return a change that stores some matrices in another format, with a scale beside each where it has a name."""

    def change(stored: Tensors) -> Tensors:
        names = [name for name in stored if part in name and stored[name].dim() == 2]
        assert names
        scales = {f"{name}{scale}": torch.ones(1) for name in names} if scale else {}
        return stored | {name: stored[name].to(dtype) for name in names} | scales

    return change


def refusals(folder: Path) -> tuple[str, str]:
    """Return how a model is refused before it is loaded, and how when it is."""
    with pytest.raises(ModelError) as before:
        require_loadable(str(folder))
    with pytest.raises(ModelError) as loading:
        load_model(str(folder), dtype="float32")
    return str(before.value), str(loading.value)


MATRICES = "0.mlp"  # of every family
BY_NAME = pytest.mark.parametrize("method", ["modelopt", "FP8", "my-own"])


@BY_NAME
def test_an_unknown_method_of_quantisation_is_refused_by_name(folder: Path, method: str) -> None:
    said = {"quant_method": method, "quant_algo": "FP8"}
    changed = rewritten(folder, as_format(FP8, MATRICES, "_scale"), quantization_config=said)
    for words in refusals(changed):
        assert f"quantised by {method!r}" in words and "give the model in bfloat16" in words


@pytest.mark.parametrize(
    ("dtype", "told"), [(FP8, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2"), (torch.int8, "I8"), (torch.uint8, "U8")]
)
@pytest.mark.parametrize("scale", ["", "_scale", "_scale_inv"])
def test_weights_in_few_bits_that_no_configuration_tells_of_are_refused_by_name(
    folder: Path, dtype: torch.dtype, told: str, scale: str
) -> None:
    for words in refusals(rewritten(folder, as_format(dtype, MATRICES, scale))):
        assert f"as {told}," in words and "0.mlp." in words and "quantization_config" in words


@pytest.mark.parametrize("name", ["input_scale", "weight_scale", "k_scale", "qzeros"])
def test_a_scale_beside_plain_weights_is_refused_by_name(folder: Path, name: str) -> None:
    changed = rewritten(folder, added(**{f"model__layers__0__self_attn__{name}": torch.ones(1)}))
    for words in refusals(changed):
        assert f"model.layers.0.self_attn.{name}, which its model does not read" in words


@pytest.mark.parametrize("name", ["model.layers.7.mlp.up_proj.weight", "extra.weight", "lm_head.bias"])
def test_a_tensor_without_a_place_is_refused_by_name(folder: Path, name: str) -> None:
    changed = rewritten(folder, lambda stored: stored | {name: torch.zeros(4)})
    with pytest.raises(ModelError, match=f"stores {name}, which its model does not read"):
        load_model(str(changed), dtype="float32")


def test_a_bias_that_the_configuration_leaves_out_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    MAKERS["llama"]().save_pretrained(tmp_path)
    changed = rewritten(tmp_path, added(model__layers__0__self_attn__q_proj__bias=torch.ones(32)))
    for words in refusals(changed):
        assert "q_proj.bias, which its model does not read" in words


def test_a_tensor_of_another_shape_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    MAKERS["llama"]().save_pretrained(tmp_path)
    place = "model.layers.0.mlp.down_proj.weight"
    rows = load_file(tmp_path / "model.safetensors")[place].shape[0]
    for words in refusals(rewritten(tmp_path, lambda stored: stored | {place: stored[place][:, :40].contiguous()})):
        assert f"{tmp_path} stores {place} as {rows} x 40 where {rows} x " in words


def test_a_model_that_is_refused_is_told_of_in_our_words_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    MAKERS["llama"]().save_pretrained(tmp_path)
    assert "model.extra.weight" in refusals(rewritten(tmp_path, added(model__extra__weight=torch.ones(4))))[0]
    MAKERS["llama"]().save_pretrained(tmp_path)
    require_loadable(str(tmp_path))
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.inv_freq",
        "model.layers.1.self_attn.rotary_emb.cos_cached",
        "mtp.layers.0.mlp.weight",
    ],
)
def test_tensors_that_a_model_computes_itself_or_does_not_need_are_passed_over(folder: Path, name: str) -> None:
    plain = load_model(str(folder), dtype="float32")
    changed = rewritten(folder, lambda stored: stored | {name: torch.ones(4)})
    require_loadable(str(changed))
    assert load_model(str(changed), dtype="float32").vocabulary == plain.vocabulary


def test_an_old_gpt2_with_its_masks_loads(tmp_path: Path) -> None:
    tiny_gpt2(seed=0, positions=32).float().save_pretrained(tmp_path)
    masks = {
        "transformer__h__0__attn__bias": torch.ones(1, 1, 32, 32),
        "transformer__h__0__attn__masked_bias": torch.ones(()),
    }
    changed = rewritten(tmp_path, added(**masks))
    require_loadable(str(changed))
    load_model(str(changed), dtype="float32")


def test_a_tied_head_that_is_stored_again_loads(tmp_path: Path) -> None:
    tiny_model("llama", tie_word_embeddings=True).float().save_pretrained(tmp_path)
    changed = rewritten(
        tmp_path, lambda stored: stored | {"lm_head.weight": stored["model.embed_tokens.weight"].clone()}
    )
    require_loadable(str(changed))
    load_model(str(changed), dtype="float32")


@pytest.mark.parametrize(
    ("said", "kind"), [({"peft_type": "LORA"}, "LoRA"), ({}, "LoRA"), ({"peft_type": "IA3"}, "IA3")]
)
@pytest.mark.parametrize("has_weights", [True, False])
def test_an_adapter_is_refused_with_what_to_do(
    tmp_path: Path, said: dict[str, str], kind: str, has_weights: bool
) -> None:
    if has_weights:
        MAKERS["llama"]().save_pretrained(tmp_path)
    save_file({"base_model.model.lora_A.weight": torch.ones(2, 2)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match=rf"holds a {kind} adapter \(adapter_config.json\); merge it first"):
        identify(tmp_path)
    assert all(f"holds a {kind} adapter" in words for words in refusals(tmp_path))
