"""Models named by ids, fetched from a hub on this machine."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
from huggingface_hub import constants, file_download
from safetensors.numpy import save_file

from spectune.errors import ModelError
from spectune.profiler.hub import cached_model, hub_id, resolve_model
from spectune.profiler.identity import identify
from spectune.profiler.snapshot import name_of, place_or_id, snapshot_at

from ..support.fake_hub import FakeHub, commit_of, point_at, served_hub

WHOLE = {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "merges.txt"}
NEVER = ("modeling_tiny.py", "pytorch_model.bin", "optimizer.pt", "onnx/model.safetensors", "README.md")


class FullDisk:
    """A file on a disk that has room for small files only."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.tell = file.tell

    def write(self, chunk: bytes) -> int:
        if len(chunk) > 256:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(chunk)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with served_hub() as hub:
        point_at(monkeypatch, hub.url, tmp_path / "cache")
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)  # before it tries again
        yield hub


def written(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"file": name}))  # equal files would be fetched once
    return folder


def save_whole(folder: Path, value: float = 1.0) -> Path:
    written(folder, *WHOLE, *NEVER)
    save_file({"weight": np.full((4096,), value, np.float32)}, folder / "model.safetensors")
    return folder


def save_sharded(folder: Path, shards: int = 3) -> Path:
    written(folder, *WHOLE)
    names = {f"weight{i}": f"model-{i}-of-{shards}.safetensors" for i in range(shards)}
    for i, (tensor, name) in enumerate(names.items()):
        save_file({tensor: np.full((64,), float(i), np.float32)}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


def refused(text: str) -> str:
    with pytest.raises(ModelError) as raised:
        resolve_model(text)
    return str(raised.value)


def test_a_model_comes_with_its_tokenizer_and_without_pickles_or_code(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "tiny")}
    found = resolve_model("org/tiny")
    assert {path.name for path in found.iterdir()} == {*WHOLE, "model.safetensors"}
    assert not set(hub.fetched) & {name.rpartition("/")[2] for name in NEVER if name.count("/") == 0}
    assert hub.fetched.count("model.safetensors") == 1
    assert (found / "model.safetensors").read_bytes() == (tmp_path / "tiny" / "model.safetensors").read_bytes()


def test_a_model_of_several_files_comes_whole(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"main": save_sharded(tmp_path / "tiny")}
    local, found = identify(tmp_path / "tiny"), identify(resolve_model("org/tiny"))
    assert (found.key, found.parameters) == (local.key, local.parameters)


def test_a_model_is_called_by_its_id_and_not_by_its_commit(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "tiny")}
    found = resolve_model("org/tiny")
    assert identify(found).name == name_of(found) == "tiny"
    assert place_or_id(identify(found).location) == "org/tiny"


@pytest.mark.parametrize("has_model", [True, False])
def test_an_adapter_is_refused_as_one(hub: FakeHub, tmp_path: Path, has_model: bool) -> None:
    folder = save_whole(tmp_path / "tuned") if has_model else written(tmp_path / "tuned", "tokenizer.json")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_file({"lora_A": np.ones((4,), np.float32)}, folder / "adapter_model.safetensors")
    hub.repos["org/tuned"] = {"main": folder}
    assert "holds a LoRA adapter (adapter_config.json); merge it first" in refused("org/tuned")


def test_a_revision_is_fetched_and_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "new"), "v1": save_whole(tmp_path / "old", 2.0)}
    main, old = resolve_model("org/tiny"), resolve_model("org/tiny@v1")
    assert identify(old).key == identify(tmp_path / "old").key != identify(main).key
    assert place_or_id(old) == f"org/tiny@{commit_of('v1')}"
    asked = len(hub.asked)
    assert resolve_model(place_or_id(old)) == old
    assert len(hub.asked) == asked


def test_what_the_cache_holds_whole_needs_no_network(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"main": save_sharded(tmp_path / "tiny")}
    found = resolve_model("org/tiny")
    hub.asked.clear()
    assert resolve_model("org/tiny") == cached_model("org/tiny") == found
    assert hub.asked == []


@pytest.mark.parametrize("name", ["model-1-of-3.safetensors", "tokenizer.json", "config.json"])
def test_what_the_cache_lacks_alone_is_fetched(hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.repos["org/tiny"] = {"main": save_sharded(tmp_path / "tiny")}
    missing = resolve_model("org/tiny") / name
    missing.resolve().unlink()
    missing.unlink()
    assert cached_model("org/tiny") is None
    hub.asked.clear()
    assert missing.parent == resolve_model("org/tiny")
    assert missing.is_file() and hub.fetched == [name]


def test_a_download_that_breaks_off_goes_on_where_it_broke(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "tiny")}
    hub.dropped.add("model.safetensors")
    found = resolve_model("org/tiny") / "model.safetensors"
    whole = (tmp_path / "tiny" / "model.safetensors").read_bytes()
    assert found.read_bytes() == whole
    ranges = [asked for method, path, asked in hub.asked if method == "GET" and path.endswith("model.safetensors")]
    assert ranges == ["", f"bytes={len(whole) // 2 // 1024 * 1024}-"]


def test_a_full_disk_is_named_and_what_came_before_is_kept(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["org/tiny"] = {"main": save_sharded(tmp_path / "tiny")}

    fetch = file_download.http_get

    def fetch_to_full_disk(url: str, file: BinaryIO, **options: Any) -> None:
        fetch(url, cast(BinaryIO, FullDisk(file)), **options)

    with monkeypatch.context() as patch:
        patch.setattr(file_download, "http_get", fetch_to_full_disk)
        said = refused("org/tiny")
    assert re.search(r"org/tiny cannot be fetched .*the disk of \S+cache is full.*hf download org/tiny$", said)
    hub.asked.clear()
    assert identify(resolve_model("org/tiny")).key == identify(tmp_path / "tiny").key
    assert "model-0-of-3.safetensors" in hub.fetched and "config.json" not in hub.fetched


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (401, "RepoNotFound", "it is not there, or private; for that give a token: hf auth login"),
        (401, "", "answers 401; the token is wrong or has no right to it: hf auth login"),
        (404, "RepoNotFound", "it is not there, or private"),
        (403, "GatedRepo", "it is gated; accept its terms at http://.*/org/tiny and give a token: hf auth login"),
        (403, "", "answers 403; the token is wrong or has no right to it: hf auth login"),
    ],
)
def test_a_refusal_names_the_id_the_reason_and_the_command(
    hub: FakeHub, tmp_path: Path, status: int, code: str, reason: str
) -> None:
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "tiny")}
    hub.refused["org/tiny"] = status, code
    said = refused("org/tiny@v2")
    assert re.search(f"org/tiny cannot be fetched from Hugging Face: .*{reason}", said)
    assert said.endswith("hf download org/tiny --revision v2")


def test_files_that_are_gated_are_told_as_such(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "tiny")}
    hub.gated.add("org/tiny")
    assert "it is gated" in refused("org/tiny")


def test_a_revision_that_is_not_there_is_told(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "tiny")}
    assert "it has no revision 'v9'" in refused("org/tiny@v9")


def test_without_a_network_the_cache_serves_and_what_it_lacks_is_told(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "tiny")}
    found = resolve_model("org/tiny")
    point_at(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")  # where nothing listens
    assert resolve_model("org/tiny") == found
    assert "http://127.0.0.1:9 cannot be reached" in refused("org/other")


def test_offline_the_cache_serves_and_what_it_lacks_is_told(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["org/tiny"] = {"main": save_whole(tmp_path / "tiny")}
    found = resolve_model("org/tiny")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert resolve_model("org/tiny") == found
    (found / "model.safetensors").unlink()
    for text in ("org/tiny", "org/other"):
        assert "HF_HUB_OFFLINE is set" in refused(text)
    assert hub.asked == []


def test_pickles_alone_are_refused_and_not_fetched(hub: FakeHub, tmp_path: Path) -> None:
    folder = written(tmp_path / "tiny", "config.json", "tokenizer.json", "pytorch_model.bin")
    hub.repos["org/tiny"] = {"main": folder}
    assert "org/tiny holds only pickles (pytorch_model.bin)" in refused("org/tiny")
    assert "pytorch_model.bin" not in hub.fetched


def test_of_a_repository_of_gguf_files_one_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny-GGUF"] = {"main": written(tmp_path / "tiny", "config.json", "tiny-q4.gguf", "tiny-q8.gguf")}
    assert "name one of its files: org/tiny-GGUF/tiny-q4.gguf, org/tiny-GGUF/tiny-q8.gguf" in refused("org/tiny-GGUF")
    hub.asked.clear()
    found = resolve_model("org/tiny-GGUF/tiny-q4.gguf")
    assert (found.name, hub.fetched) == ("tiny-q4.gguf", ["tiny-q4.gguf"])
    assert place_or_id(found) == "org/tiny-GGUF/tiny-q4.gguf"
    assert "holds no file tiny-q5.gguf; name one of its files" in refused("org/tiny-GGUF/tiny-q5.gguf")


def test_what_lies_here_comes_before_an_id(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_whole(tmp_path / "org" / "tiny")
    assert resolve_model("org/tiny") == Path("org/tiny")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("text", "is_id"),
    [
        ("org/name", True),
        ("gpt2", True),
        ("Qwen/Qwen2.5-0.5B@refs/pr/1", True),
        ("org/name/file.gguf@main", True),
        ("./name", False),
        ("../org/name", False),
        ("/org/name", False),
        ("~/name", False),
        ("a/b/c", False),
        ("models/file.gguf", False),
        ("file.gguf", False),
        ("config.json", False),
        ("org/name/", False),
        ("org/name@", False),
        ("", False),
    ],
)
def test_paths_are_told_from_ids_by_their_form(text: str, is_id: bool) -> None:
    assert (hub_id(text) is not None) is is_id


def test_a_name_that_no_repository_can_have_is_refused_in_words(hub: FakeHub) -> None:
    assert "org/a--b cannot be fetched" in refused("org/a--b")
    assert hub.asked == []


def test_other_places_are_no_snapshots(tmp_path: Path) -> None:
    assert snapshot_at(tmp_path) is None
    assert place_or_id("models/small") == "models/small"


def test_a_snapshot_that_is_gone_is_told_with_the_command_that_brings_it(hub: FakeHub, tmp_path: Path) -> None:
    gone = tmp_path / "models--org--tiny" / "snapshots" / commit_of("main")
    with pytest.raises(ModelError, match=f"hf download org/tiny --revision {commit_of('main')}"):
        identify(gone)
