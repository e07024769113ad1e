"""Loading: the right form for every family, and one clear line where it cannot be done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from spectune.errors import DeviceError, ModelError
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import (
    causal_model,
    load_model,
    load_pretrained,
    load_tokenizer,
)
from spectune.runtime.models.vocabulary import require_one_vocabulary

from ...support.tiny_models import plain_logits, tiny_llama, tiny_model, tiny_neox
from .test_models import in_pieces


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a saved Llama."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_llama(layers=1, seed=0).save_pretrained(folder)
    return folder


def refusal(location: Path, dtype: str = "float32") -> str:
    """Return the message with which loading is refused; it must be one line."""
    with pytest.raises(ModelError) as caught:
        load_model(str(location), dtype=dtype)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_llama_loads_lean_in_the_dtype_asked_for(llama: Path, dtype: str) -> None:
    model = load_model(str(llama), dtype=dtype)
    assert isinstance(model, LeanModel) and str(model.dtype) == f"torch.{dtype}"


def test_an_unknown_family_loads_generic(tmp_path: Path) -> None:
    tiny_neox(layers=1, seed=0).save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path), dtype="float32"), GenericModel)


@pytest.fixture
def quantised(llama: Path, tmp_path: Path) -> Path:
    """Return the folder of a Llama whose layers round their weights, and what they read, to few numbers."""
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    said = json.loads((llama / "config.json").read_text())
    rounding = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    (tmp_path / "config.json").write_text(json.dumps({**said, "quantization_config": rounding}))
    return tmp_path


def test_a_quantised_llama_keeps_its_own_layers() -> None:
    model = tiny_llama(layers=1, seed=0)
    vars(model)["is_quantized"] = True  # as every quantiser of transformers does
    assert isinstance(causal_model(model, "folder"), GenericModel)


@pytest.mark.slow  # imports torch's compiler
def test_a_quantised_llama_computes_what_its_own_layers_do(quantised: Path) -> None:
    model = load_model(str(quantised), dtype="float32")
    text = list(range(1, 9))
    with torch.compiler.set_stance("force_eager"):  # which its layers would compile
        expected = plain_logits(load_pretrained(str(quantised), dtype="float32"), text)
        (found,) = in_pieces(model, [text], (3,))
    torch.testing.assert_close(found, expected)


def test_quantised_weights_that_nothing_here_reads_are_refused(
    quantised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.quantizers.quantizer_bitnet.is_accelerate_available", lambda: False)
    assert "requires accelerate" in refusal(quantised)


def test_an_unknown_dtype_is_refused_with_the_choice(llama: Path) -> None:
    assert refusal(llama, "int3").startswith("unknown dtype 'int3'; choose one of float32,")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere")


def test_pickled_weights_are_not_loaded(llama: Path, tmp_path: Path) -> None:
    shutil.copy(llama / "config.json", tmp_path)
    torch.save(tiny_llama(layers=1, seed=0).state_dict(), tmp_path / "pytorch_model.bin")
    assert "holds only pickles (pytorch_model.bin)" in refusal(tmp_path)


def test_a_damaged_weight_file_is_refused(llama: Path, tmp_path: Path) -> None:
    shutil.copy(llama / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    assert str(tmp_path) in refusal(tmp_path)


def test_missing_weights_are_refused_not_made_up(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "q_proj" not in k}, tmp_path / "model.safetensors", {"format": "pt"})
    assert "lacks weights (model.layers.0.self_attn.q_proj.weight" in refusal(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this torch can use a GPU")
def test_a_device_torch_cannot_use_is_named(llama: Path) -> None:
    with pytest.raises(DeviceError, match="to cuda:0"):
        load_model(str(llama), dtype="float32", device="cuda:0")


def test_a_model_with_a_sliding_window_loads_lean(tmp_path: Path) -> None:
    tiny_model("mistral, windowed").save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path), dtype="float32"), LeanModel)


def test_a_missing_tokenizer_is_one_line(llama: Path) -> None:
    with pytest.raises(ModelError, match=r"^no tokenizer at [^\n]*$"):
        load_tokenizer(str(llama))


def test_a_reason_that_ends_in_a_colon_is_told_to_its_end_with_what_to_do(llama: Path) -> None:
    with pytest.raises(ModelError, match=r"backend tokenizer from one of: .*\w.*; save the target's there"):
        load_tokenizer(str(llama))


def test_a_broken_configuration_is_told_with_what_to_do(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"not a valid JSON file; give a folder that save_pretrained has written"):
        load_model(str(tmp_path), dtype="float32")


def with_tokenizer(folder: Path, words: str, vocabulary: int = 24) -> Path:
    """Return a folder with a model and a tokenizer that numbers the letters in this order."""
    tiny_llama(layers=1, seed=0, vocabulary=vocabulary).save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token=words[0]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def test_a_drafter_with_another_vocabulary_size_is_refused(llama: Path, tmp_path: Path) -> None:
    other = with_tokenizer(tmp_path, "abc", vocabulary=30)
    with pytest.raises(ModelError, match=r"vocabulary of 30 tokens and the target .* of 24"):
        require_one_vocabulary(str(llama), str(other))


def test_a_drafter_that_numbers_its_tokens_otherwise_is_refused(tmp_path: Path) -> None:
    target, drafter = with_tokenizer(tmp_path / "t", "abcd"), with_tokenizer(tmp_path / "d", "abdc")
    told = (
        r"differently: 2 tokens differ of 4 and 4 \('c' is 2 in the target and 3 in the drafter, 'd' is 3 in .* and 2"
    )
    with pytest.raises(ModelError, match=told):
        require_one_vocabulary(str(target), str(drafter))


@pytest.mark.parametrize(
    ("target", "drafter", "told"),
    [
        ("abcd", "abc", r"1 token differs of 4 and 3 \('d' is 3 in the target and missing in the drafter\)"),
        ("abcd", "abcde", r"1 token differs of 4 and 5 \('e' is missing in the target and 4 in the drafter\)"),
        ("abcd", "abce", r"2 tokens differ of 4 and 4 \('d' is 3 in .* missing in the drafter, 'e' is missing in"),
        ("abcdef", "fabcde", r"6 tokens differ of 6 and 6 \('a' is 0 in the target and 1 in the drafter, .*, 3 more\)"),
    ],
)
def test_tokens_that_two_vocabularies_number_differently_are_named_and_counted(
    tmp_path: Path, target: str, drafter: str, told: str
) -> None:
    first, second = with_tokenizer(tmp_path / "t", target), with_tokenizer(tmp_path / "d", drafter)
    with pytest.raises(ModelError, match=told):
        require_one_vocabulary(str(first), str(second))


def test_a_drafter_with_the_targets_tokenizer_is_accepted(tmp_path: Path) -> None:
    target, drafter = with_tokenizer(tmp_path / "t", "abcd"), with_tokenizer(tmp_path / "d", "abcd")
    require_one_vocabulary(str(target), str(drafter))


def test_a_drafter_without_a_tokenizer_is_compared_by_size(llama: Path, tmp_path: Path) -> None:
    require_one_vocabulary(str(with_tokenizer(tmp_path, "abcd")), str(llama))


def test_a_configuration_by_itself_is_compared_by_size(llama: Path, tmp_path: Path) -> None:
    target, larger = with_tokenizer(tmp_path / "t", "abcd"), with_tokenizer(tmp_path / "d", "abcd", vocabulary=30)
    require_one_vocabulary(str(target), str(llama / "config.json"))
    with pytest.raises(ModelError, match="vocabulary of 30 tokens"):
        require_one_vocabulary(str(llama / "config.json"), str(larger / "config.json"))
