"""Our decoder reads GGUF files: the same weights, tokens and text as the model has in a folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from gguf.quants import quantize
from transformers import LlamaConfig, PreTrainedModel

from spectune import load
from spectune.errors import ModelError
from spectune.profiler.configuration import read_architecture
from spectune.profiler.gguf_file import read_gguf
from spectune.profiler.identity import identify
from spectune.runtime.engine.stop_tokens import end_tokens, own_ends
from spectune.runtime.models.gguf import write_gguf
from spectune.runtime.models.loading import (
    load_config,
    load_model,
    load_pretrained,
    load_tokenizer,
)
from spectune.runtime.models.vocabulary import require_one_vocabulary
from spectune.tuning.engines.models import identify_engine_model

from ...support.tiny_family import save_model
from ...support.tiny_gguf import write_tiny_gguf
from ...support.tiny_models import FAMILIES, random_model, tiny_llama, tiny_model

SIZE = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 256}
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {},
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True, **GEMMA},
    "gemma3": {"tie_word_embeddings": True, **GEMMA, "num_hidden_layers": 6, "layer_types": None},
}
SAID: dict[str, dict[str, Any]] = {
    "gemma2": {"attention.sliding_window": 6, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0},
    "gemma3": {"attention.sliding_window": 6, "rope.freq_base": 1000000.0},
}


def gguf_of(model: PreTrainedModel, folder: Path, family: str = "llama", **written: Any) -> Path:
    return write_tiny_gguf(model, folder / "tiny.gguf", family=family, **written)


def logits_of(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.arange(1, 25)[None]).logits.float()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Llama whose tokenizer has a chat template."""
    place = save_model(tmp_path_factory.mktemp("tiny"), layers=2, seed=3)
    tokenizer = load_tokenizer(str(place))
    tokenizer.chat_template = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return write_gguf(folder, folder.parent / "tiny.gguf", dtype="f32")


@pytest.mark.parametrize("family", CHANGES)
def test_a_model_out_of_a_gguf_file_says_what_it_said_before(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, **SIZE, **CHANGES[family])
    path = gguf_of(model, tmp_path, family, said=SAID.get(family, {}))
    read = load_pretrained(str(path), dtype="float32")
    assert type(read.config) is type(model.config)
    torch.testing.assert_close(logits_of(read), logits_of(model), rtol=1e-3, atol=1e-3)
    lean = load_model(str(path), dtype="float32")
    assert (lean.vocabulary, lean.longest_context) == (50, 64) and type(lean).__name__ == "LeanModel"


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_quantised_weights_become_bfloat16_whatever_a_model_runs_in(format: str, dtype: str, tmp_path: Path) -> None:
    model = tiny_llama(layers=1, seed=1, vocabulary=50)
    path = gguf_of(model, tmp_path, format=format)
    read = load_pretrained(str(path), dtype=dtype)
    stored = model.state_dict()["model.layers.0.mlp.up_proj.weight"].float().numpy()
    kind = GGMLQuantizationType[format]
    wanted = torch.from_numpy(dequantize(quantize(stored, kind), kind)).to(torch.bfloat16)
    found = read.state_dict()["model.layers.0.mlp.up_proj.weight"]
    assert found.dtype == getattr(torch, dtype) and torch.equal(found.to(torch.bfloat16), wanted)
    assert torch.equal(found.float(), wanted.float())
    assert read_gguf(path).reading == f"dequantised from {format} to bfloat16"


def test_weights_that_are_not_quantised_keep_what_they_are(tmp_path: Path) -> None:
    model = tiny_llama(layers=1, seed=1, vocabulary=50)
    path = gguf_of(model, tmp_path)
    read = load_pretrained(str(path), dtype="float32").state_dict()
    assert read_gguf(path).reading == ""
    for name, weight in model.state_dict().items():
        assert torch.equal(read[name], weight.float()), name


def test_the_text_is_the_folder_s(folder: Path, file: Path) -> None:
    settings: dict[str, Any] = {"plan": "none", "dtype": "float32", "device": "cpu"}
    found, wanted = (load(place, **settings).generate("def main(): return 1") for place in (file, folder))
    assert found.tokens == wanted.tokens and found.text == wanted.text


def test_the_tokenizer_and_its_chat_template_are_the_folder_s(folder: Path, file: Path) -> None:
    found, wanted = load_tokenizer(str(file)), load_tokenizer(str(folder))
    said = [{"role": "user", "content": "a man's 12 naïve  words"}]
    assert found.get_vocab() == wanted.get_vocab() and found.chat_template == wanted.chat_template
    assert found.apply_chat_template(said, tokenize=False) == wanted.apply_chat_template(said, tokenize=False)
    assert found(said[0]["content"])["input_ids"] == wanted(said[0]["content"])["input_ids"]
    assert end_tokens(file, found) == own_ends(wanted)
    require_one_vocabulary(str(file), str(folder))


def test_a_file_is_who_its_bytes_say_here_and_in_llama_cpp(file: Path, folder: Path, tmp_path: Path) -> None:
    found = identify(file)
    assert found == identify_engine_model(file) and found.name == "tiny"
    assert found.parameters == identify(folder).parameters
    other = tmp_path / "tiny.gguf"
    other.write_bytes(file.read_bytes()[:-1] + b"\x01")
    assert identify(other).key != found.key
    assert read_architecture(file).layers == 2


def test_texts_end_where_a_turn_does_too(tmp_path: Path) -> None:
    path = gguf_of(tiny_llama(layers=1, seed=1, vocabulary=50), tmp_path, ends={"eos": 7, "eot": 9, "eom": 7})
    assert load_config(str(path)).eos_token_id == [7, 9]


def test_angles_of_llama_3_are_divided_as_the_file_says(tmp_path: Path) -> None:
    rope: dict[str, Any] = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        **SIZE,
    }
    model: Any = random_model(LlamaConfig(**sizes, initializer_range=0.3, rope_parameters=rope))
    unscaled = 10000.0 ** -(torch.arange(0, 16, 2) / 16)
    factors = (unscaled / model.model.rotary_emb.inv_freq).float().numpy()
    assert factors.max() > 1
    path = gguf_of(model, tmp_path, said={"rope.freq_base": 10000.0}, more={"rope_freqs.weight": factors})
    read = load_pretrained(str(path), dtype="float32")
    torch.testing.assert_close(logits_of(read), logits_of(model), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("said", "words"), [({"rope.scaling.type": "yarn"}, "scales its positions by 'yarn'")])
def test_positions_that_are_scaled_otherwise_are_refused(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        load_config(str(gguf_of(tiny_llama(layers=1, seed=1), tmp_path, said=said)))


def test_a_file_cut_off_anywhere_is_refused(file: Path, tmp_path: Path) -> None:
    whole, cut = file.read_bytes(), tmp_path / "cut.gguf"
    for size in sorted({0, 3, 4, 23, *(len(whole) * share // 40 for share in range(40)), len(whole) - 40}):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"no GGUF file that can be read|finish the download"):
            identify(cut)


def test_a_damaged_head_is_refused_and_never_a_traceback(file: Path, tmp_path: Path) -> None:
    whole, damaged = file.read_bytes(), tmp_path / "damaged.gguf"
    for place in range(0, 400, 7):
        damaged.write_bytes(whole[:place] + b"\xff" * 4 + whole[place + 4 :])
        with suppress(ModelError):
            load_pretrained(str(damaged), dtype="float32")


def test_a_family_that_is_not_known_is_named(tmp_path: Path) -> None:
    path = gguf_of(tiny_llama(layers=1, seed=1), tmp_path)
    path.write_bytes(path.read_bytes().replace(b"llama", b"lamma"))
    with pytest.raises(ModelError, match="is a lamma; of GGUF files our decoder reads llama, qwen2"):
        load_model(str(path), dtype="float32")


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    path = gguf_of(tiny_llama(layers=1, seed=1), tmp_path, more={"blk.0.odd.weight": np.ones(4, dtype=np.float32)})
    with pytest.raises(ModelError, match=r"holds blk\.0\.odd\.weight, for which a llama has no place"):
        load_model(str(path), dtype="float32")


def test_a_format_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = gguf_of(tiny_llama(layers=1, seed=1, vocabulary=50), tmp_path, format="Q8_0")
    start = b"up.weight\x02\0\0\0"
    path.write_bytes(path.read_bytes().replace(start + size_of(32, 64), start + size_of(32, 64, kind=9)))
    with pytest.raises(ModelError, match=r"stores blk\.0\.ffn_up\.weight as Q8_1, which the package gguf does not"):
        load_model(str(path), dtype="float32")


def size_of(columns: int, rows: int, kind: int = 8) -> bytes:
    """Return how a table of tensors tells a size and a format."""
    return columns.to_bytes(8, "little") + rows.to_bytes(8, "little") + kind.to_bytes(4, "little")


def test_a_file_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no tokenizer; convert the model again"):
        load_tokenizer(str(gguf_of(tiny_llama(layers=1, seed=1), tmp_path)))


def test_a_split_of_texts_that_is_not_known_is_refused(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(file.read_bytes().replace(b"gpt-2", b"gpt-x"))
    with pytest.raises(ModelError, match="splits texts as gpt-x; of GGUF files"):
        load_tokenizer(str(other))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for ask in (identify, lambda path: load_model(str(path), dtype="float32"), lambda path: load_tokenizer(str(path))):
        with pytest.raises(ModelError, match="no GGUF file at"):
            ask(tmp_path / "none.gguf")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(ModelError, match="no GGUF file at"):
        identify(tmp_path / "folder.gguf")


def test_every_family_that_has_a_lean_form_is_read() -> None:
    mistral = {name for name in FAMILIES if "windowed" in name} | {"mistral"}  # "llama" to llama.cpp, without windows
    assert CHANGES.keys() == FAMILIES.keys() - mistral
