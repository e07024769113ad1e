"""Which model lies in a folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from spectune.errors import ModelError
from spectune.profiler.identity import identify, identify_config, weight_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of 2 x 3 + 4 parameters."""
    save_file({"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    return tmp_path


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_model_is_its_name_size_and_hashes(folder: Path) -> None:
    model = identify(folder, "toy")
    assert (model.name, model.parameters, model.location) == ("toy", 10, str(folder.resolve()))
    assert model.weights_hash == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert model.config_hash == hashlib.sha256(b"{}").hexdigest()


def test_a_model_without_a_name_is_called_after_its_folder(folder: Path) -> None:
    assert identify(folder).name == folder.name


def test_a_copy_elsewhere_is_the_same_model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy")
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert identify(copy).key == identify(folder).key


@pytest.mark.parametrize(
    ("file", "changed"),
    [("model.safetensors", "weights_hash"), ("config.json", "config_hash"), ("tokenizer.json", "tokenizer_hash")],
)
def test_one_flipped_bit_changes_the_hash_of_its_file_alone(folder: Path, file: str, changed: str) -> None:
    before = identify(folder)
    flip_last_bit(folder / file)
    after = identify(folder)
    differing = [
        name
        for name in ("weights_hash", "config_hash", "tokenizer_hash")
        if getattr(before, name) != getattr(after, name)
    ]
    assert differing == [changed]


def test_a_drafter_without_a_tokenizer_has_none(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert identify(folder).tokenizer_hash == ""


def test_shards_are_counted_together_and_strangers_left_out(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    save_file({"c": np.zeros(5, np.float32)}, folder / "model-2.safetensors")
    save_file({"d": np.zeros(100, np.float32)}, folder / "consolidated.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert identify(folder).parameters == 15


def test_a_single_file_counts_before_an_index_as_transformers_loads_it(folder: Path) -> None:
    alone = identify(folder)
    save_file({"a": np.ones((2, 3), np.float32)}, folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    assert identify(folder) == alone
    (folder / "model.safetensors").unlink()
    assert identify(folder).parameters == 6 and weight_files(folder) == [folder / "model-1.safetensors"]


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-9.safetensors"}}')
    with pytest.raises(ModelError, match=r"lacks model-9\.safetensors"):
        identify(folder)


def test_an_index_that_is_none_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelError, match="not an index"):
        identify(folder)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        identify(tmp_path / "none")


def test_a_folder_without_a_configuration_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        identify(folder)


def test_pickled_weights_are_refused_with_the_way_out(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*safe_serialization"):
        identify(folder)


def test_a_broken_weights_file_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match="not a safetensors file"):
        identify(folder)


def test_random_weights_are_named_by_their_configuration_alone(tmp_path: Path) -> None:
    config = tmp_path / "llama-8b" / "config.json"
    config.parent.mkdir()
    config.write_bytes(b"{}")
    model = identify_config(config, 8)
    assert (model.name, model.parameters) == ("llama-8b (random weights)", 8)
    assert model.weights_hash == hashlib.sha256(b"random:{}").hexdigest()
    assert model.config_hash == hashlib.sha256(b"{}").hexdigest()


def test_random_weights_are_never_taken_for_real_ones(folder: Path) -> None:
    assert identify_config(folder / "config.json", 10).key != identify(folder).key


def test_a_configuration_file_of_another_name_gives_its_own(tmp_path: Path) -> None:
    (tmp_path / "wide.json").write_text("{}")
    assert identify_config(tmp_path / "wide.json", 1).name == "wide (random weights)"


def test_a_missing_configuration_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"give the path of a config\.json"):
        identify_config(tmp_path / "config.json", 1)
