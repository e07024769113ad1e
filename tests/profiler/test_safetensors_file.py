"""Headers of safetensors files, held to what the package safetensors reads in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from spectune.errors import ModelError
from spectune.profiler.safetensors_file import LENGTH, StoredTensor, read_header

TENSORS = {
    "whole": torch.zeros(3, 5),
    "half": torch.zeros(2, 2, dtype=torch.bfloat16),
    "count": torch.tensor([7]),
    "one": torch.tensor(1.5),
    "none": torch.zeros(0, 4),
    "flags": torch.zeros(3, dtype=torch.bool),
    "eighth": torch.zeros(9, dtype=torch.float8_e4m3fn),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path


def by_the_package(file: Path) -> dict[str, StoredTensor]:
    with safe_open(file, framework="pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
    return {
        name: StoredTensor(shape=tuple(one.get_shape()), dtype=str(one.get_dtype())) for name, one in slices.items()
    }


def described(change: Callable[[dict[str, dict[str, object]]], object]) -> Callable[[bytes], bytes]:
    """Return what writes a file whose header was changed."""

    def rewritten(written: bytes) -> bytes:
        (length,) = LENGTH.unpack(written[:8])
        said = json.loads(written[8 : 8 + length])
        change(said)
        header = json.dumps(said).encode()
        return LENGTH.pack(len(header)) + header + written[8 + length :]

    return rewritten


def test_a_header_says_what_the_package_reads_in_it(file: Path) -> None:
    assert read_header(file) == by_the_package(file)
    assert read_header(file)["half"] == StoredTensor(shape=(2, 2), dtype="BF16")


@pytest.mark.parametrize(
    "damage",
    [
        lambda written: b"",
        lambda written: b"broken",
        lambda written: written[:-1],
        lambda written: written + b"\0",
        lambda written: written[:20],
        lambda written: struct.pack("<Q", 2**62) + written[8:],
        lambda written: written[:8] + b"[" + written[9:],
        lambda written: written[:8] + b"\xff" + written[9:],
        described(lambda said: said["whole"].update(data_offsets=[0, 4])),
        described(lambda said: said["whole"].update(data_offsets=[60, 0])),
        described(lambda said: said["whole"].update(data_offsets="none")),
        described(lambda said: said["whole"].update(shape=["three", 5])),
        described(lambda said: said["whole"].pop("dtype")),
        described(lambda said: said.pop("whole")),
    ],
)
def test_what_the_package_refuses_is_refused(damage: Callable[[bytes], bytes], file: Path) -> None:
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(SafetensorError):
        by_the_package(file)
    with pytest.raises(ModelError, match="is not a safetensors file"):
        read_header(file)


def test_a_header_that_is_no_dictionary_is_refused(file: Path) -> None:
    file.write_bytes(LENGTH.pack(2) + b"[]")
    with pytest.raises(ModelError, match="is not a safetensors file"):
        read_header(file)


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, mode: str = "r") -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(ModelError, match=r"may not be read .*change its permissions"):
        read_header(tmp_path / "model.safetensors")
