"""What llama.cpp is given is our model: the same weights, the same tokens, the same text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from spectune.engines.llama_cpp.build import missing
from spectune.engines.llama_cpp.gguf_shape import positions_of_gguf, shape_of_gguf
from spectune.engines.llama_cpp.model_format import as_gguf
from spectune.engines.measured import EngineLoad
from spectune.engines.running import run_engine
from spectune.engines.setting import EngineDrafter, Setting
from spectune.errors import ModelError
from spectune.runtime.models.gguf import GgufDtype, interleaved, write_gguf

from ...support.llama_program import convert_here, say_ascii
from ...support.tiny_family import save_model
from ...support.tiny_models import tiny_gpt2

gguf = pytest.importorskip("gguf")

PROMPTS = ((5, 17, 40), (99, 3, 8, 61, 20), (7,))
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return say_ascii(save_model(tmp_path_factory.mktemp("tiny"), layers=2, seed=3))


def written(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a GGUF file as float32 arrays in torch's order of axes."""
    tensors = gguf.GGUFReader(path).tensors
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(tuple(t.shape)[::-1]) for t in tensors}


def with_output(folder: Path, scale: float) -> Path:
    """Return the folder of a model that is to be tied, and stores an output of so many times its embedding."""
    saved = save_model(folder, layers=1, seed=3)
    stored = load_file(saved / "model.safetensors")
    stored["lm_head.weight"] = scale * stored["model.embed_tokens.weight"]
    save_file(stored, saved / "model.safetensors", {"format": "pt"})
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    return saved


def test_an_output_that_is_another_than_the_embedding_is_written_though_it_is_called_tied(tmp_path: Path) -> None:
    saved = with_output(tmp_path / "other", 2.0)
    tensors = written(write_gguf(saved, tmp_path / "other.gguf", dtype="f32"))
    own = AutoModelForCausalLM.from_pretrained(saved).lm_head.weight.detach().numpy()
    np.testing.assert_array_equal(tensors["output.weight"], own)
    np.testing.assert_array_equal(tensors["output.weight"], 2.0 * tensors["token_embd.weight"])


def test_an_output_that_equals_the_embedding_is_not_written_again(tmp_path: Path) -> None:
    made = write_gguf(with_output(tmp_path / "tied", 1.0), tmp_path / "tied.gguf", dtype="f32")
    assert "output.weight" not in written(made)


def test_weights_in_float8_are_not_converted(tmp_path: Path) -> None:
    saved = save_model(tmp_path / "small", layers=1, seed=3)
    stored = load_file(saved / "model.safetensors")
    place = "model.layers.0.mlp.up_proj.weight"
    save_file(stored | {place: stored[place].to(torch.float8_e4m3fn)}, saved / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"stores {place} as F8_E4M3"):
        write_gguf(saved, tmp_path / "small.gguf", dtype="f16")


def test_a_folder_whose_weights_are_not_those_of_its_configuration_is_not_converted(tmp_path: Path) -> None:
    saved = save_model(tmp_path / "small", layers=1, seed=3)
    stored, place = load_file(saved / "model.safetensors"), "model.layers.0.mlp.up_proj.weight"
    changes = {
        "lacks weights": {name: one for name, one in stored.items() if name != place},
        f"stores {place} as": stored | {place: stored[place][:8].contiguous()},
        "does not read": stored | {"model.layers.0.self_attn.q_proj.bias": stored["model.norm.weight"].clone()},
    }
    for told, changed in changes.items():
        save_file(changed, saved / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=told):
            write_gguf(saved, tmp_path / "small.gguf", dtype="f32")
    (saved / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds a LoRA adapter"):
        write_gguf(saved, tmp_path / "small.gguf", dtype="f32")
    assert not list(tmp_path.glob("small.gguf*"))


def test_checkpoints_of_one_name_and_of_one_path_over_time_are_converted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_here(monkeypatch)
    final = [tmp_path / whose / "final" for whose in ("target", "small")]
    for seed, place in enumerate(final):
        place.mkdir(parents=True)
        save_model(place, layers=1, seed=seed)
    first, second = (as_gguf(place, tmp_path, "float32") for place in final)
    assert first != second and first.name.startswith("final.")
    assert not np.array_equal(written(first)["token_embd.weight"], written(second)["token_embd.weight"])
    before = first.stat().st_mtime_ns
    assert as_gguf(final[0], tmp_path, "float32") == first and first.stat().st_mtime_ns == before
    save_model(final[0], layers=1, seed=7)
    assert as_gguf(final[0], tmp_path, "float32") not in (first, second)
    assert not [*tmp_path.glob("*.part")]


def test_neighbouring_rows_of_a_head_are_the_ones_hugging_face_rotates_together() -> None:
    heads, width = 2, 6
    rows = torch.arange(heads * width).float()[:, None].expand(-1, 3)
    ordered = interleaved(rows, heads)[:, 0].tolist()
    assert ordered == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_every_weight_is_written_once_and_a_tied_output_not_at_all(folder: Path, tmp_path: Path) -> None:
    tensors = written(write_gguf(folder, tmp_path / "tiny.gguf", dtype="f32"))
    ours = load_file(folder / "model.safetensors")
    assert len(tensors) == len(ours)
    assert sum(t.size for t in tensors.values()) == sum(w.numel() for w in ours.values())
    assert np.array_equal(tensors["token_embd.weight"], ours["model.embed_tokens.weight"].numpy())
    assert np.array_equal(tensors["blk.1.ffn_down.weight"], ours["model.layers.1.mlp.down_proj.weight"].numpy())


def test_files_that_are_not_the_model_s_are_not_converted(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    save_file({"adapter.weight": torch.zeros(2)}, copy / "adapter.safetensors")
    assert len(written(write_gguf(copy, tmp_path / "copy.gguf", dtype="f32"))) == len(
        load_file(folder / "model.safetensors")
    )


@pytest.mark.parametrize(("dtype", "error"), [("f16", 2**-11), ("bf16", 2**-8)])
def test_a_shorter_format_rounds_matrices_and_leaves_norms(
    folder: Path, tmp_path: Path, dtype: GgufDtype, error: float
) -> None:
    tensors = written(write_gguf(folder, tmp_path / "tiny.gguf", dtype=dtype))
    ours = load_file(folder / "model.safetensors")
    matrix, norm = ours["model.layers.0.mlp.up_proj.weight"].numpy(), ours["model.norm.weight"].numpy()
    assert np.allclose(tensors["blk.0.ffn_up.weight"], matrix, rtol=error, atol=1e-7)
    assert np.array_equal(tensors["output_norm.weight"], norm)


def test_the_vocabulary_is_the_tokenizer_s(folder: Path, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write_gguf(folder, tmp_path / "tiny.gguf", dtype="f32"))
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    assert {text: place for place, text in enumerate(tokens)} == described["model"]["vocab"]
    assert len(reader.get_field("tokenizer.ggml.merges").contents()) == len(described["model"]["merges"])


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("length", [0, 4])
def test_llama_cpp_continues_as_transformers_does(folder: Path, tmp_path: Path, length: int) -> None:
    file = write_gguf(folder, tmp_path / "tiny.gguf", dtype="f32")
    itself = EngineDrafter(name="small", path=str(file), form="model")
    setting = Setting(method="draft-simple", drafter=itself, knobs=(("p_min", 0.0),), length=length) if length else None
    engine = run_engine("llama.cpp", file, {}, dtype="float32", threads=1, folder=tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with engine.started(setting, EngineLoad(concurrency=1, capacity=64)) as running:
        answers = [running.decode([prompt], NEW_TOKENS)[0] for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        fed = torch.tensor([prompt])
        whole = model.generate(fed, attention_mask=torch.ones_like(fed), max_new_tokens=NEW_TOKENS, do_sample=False)
        assert answer.tokens == tuple(whole[0, len(prompt) :].tolist())


@pytest.mark.parametrize(
    ("place", "name", "value"), [("pre_tokenizer", "add_prefix_space", True), ("", "normalizer", {"type": "NFC"})]
)
def test_a_tokenizer_that_changes_texts_before_it_splits_them_is_refused(
    folder: Path, tmp_path: Path, place: str, name: str, value: object
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    described = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    (described[place] if place else described)[name] = value
    (copy / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(ModelError, match=r"with the normalizer .*convert_hf_to_gguf\.py"):
        write_gguf(copy, tmp_path / "copy.gguf", dtype="f32")


def test_what_is_no_llama_is_named(tmp_path: Path) -> None:
    tiny_gpt2(seed=0, positions=64).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ModelError, match="only a Llama can be written here"):
        as_gguf(tmp_path / "gpt2", tmp_path, "float32")


def test_a_file_s_sizes_follow_from_its_header(folder: Path, tmp_path: Path) -> None:
    file = write_gguf(folder, tmp_path / "tiny.gguf", dtype="f32")
    config = json.loads((folder / "config.json").read_text())
    found = shape_of_gguf(file)
    assert found.vocabulary == config["vocab_size"]
    assert positions_of_gguf(file) == config["max_position_embeddings"]
    assert found.cached == 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]


@pytest.mark.parametrize(("start", "said"), [(0, "starts with b'NOPE'"), (4, "version 1"), (None, "no GGUF file")])
def test_what_is_no_gguf_file_is_refused(folder: Path, tmp_path: Path, start: int | None, said: str) -> None:
    whole = write_gguf(folder, tmp_path / "tiny.gguf", dtype="f32").read_bytes()
    other = {0: b"NOPE" + whole[4:], 4: whole[:4] + b"\x01" + whole[5:], None: whole[:200]}[start]
    (tmp_path / "other.gguf").write_bytes(other)
    with pytest.raises(ModelError, match=said):
        shape_of_gguf(tmp_path / "other.gguf")
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match=r"empty\.gguf is no GGUF file"):
        shape_of_gguf(tmp_path / "empty.gguf")
