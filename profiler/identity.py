"""Which model is meant: hashes of its files and a parameter count, without loading a tensor."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import ModelError
from .gguf_file import is_gguf, read_gguf
from .records.model import ModelIdentity
from .safetensors_file import read_header
from .snapshot import name_of, snapshot_at

ADAPTER = "adapter_config.json"  # of the package PEFT


def identify(path: Path, name: str | None = None) -> ModelIdentity:
    """Return the identity of a Hugging Face folder or a GGUF file; its weights hash reads all `weight_files`.

    `name` None takes that of its id on the hub, folder or file. ModelError where the folder, config.json or safetensors
    weights are missing, or a file cannot be read.
    """
    if is_gguf(path):
        return identify_gguf(path, name)
    weights = require_folder(path)
    folder = path.resolve()
    config, tokenizer = folder / "config.json", folder / "tokenizer.json"
    return ModelIdentity(
        name=name or name_of(folder),
        weights_hash=_sha256(weights),
        parameters=sum(math.prod(one.shape) for file in weights for one in read_header(file).values()),
        config_hash=_sha256([config]),
        tokenizer_hash=_sha256([tokenizer]) if tokenizer.is_file() else "",
        location=str(folder),
    )


def identify_gguf(path: Path, name: str | None = None) -> ModelIdentity:
    """Return the identity of a whole GGUF file, else ModelError; one hash names all, as its vocabulary is inside."""
    tensors = read_gguf(path).tensors.values()
    return ModelIdentity(
        name=name or path.stem,
        weights_hash=_sha256([path]),
        parameters=max(1, sum(math.prod(tensor.shape) for tensor in tensors)),
        config_hash="",
        tokenizer_hash="",
        location=os.path.abspath(path),  # a link in the hub's cache keeps the name that says what it is
    )


def identify_config(config: Path, parameters: int, name: str | None = None) -> ModelIdentity:
    """Return the identity of a config.json with random weights, measured only for its latency.

    Equal configurations are one model whatever their weights. Its key is never that of real weights: the hash runs over
    the word "random" and the configuration. `name` None takes the file's, or its folder's for config.json. ModelError
    where there is no such file.
    """
    path = config.resolve()
    if not path.is_file():
        raise ModelError(f"no model configuration at {config}; give the path of a config.json")
    written = path.read_bytes()
    called = name or (path.parent.name if path.name == "config.json" else path.stem)
    return ModelIdentity(
        name=f"{called} (random weights)",
        weights_hash=hashlib.sha256(b"random:" + written).hexdigest(),
        parameters=parameters,
        config_hash=hashlib.sha256(written).hexdigest(),
        tokenizer_hash="",
        location=str(path),
    )


def require_folder(path: Path) -> list[Path]:
    """Return the files that hold the weights of a model folder.

    ModelError where it is none: there is no folder, an adapter, or neither config.json nor weights.
    """
    folder = path.resolve()
    if not folder.is_dir():
        raise ModelError(f"no model folder at {path}; {_instead(path)}")
    require_no_adapter(folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{path} holds no config.json; give the folder that save_pretrained wrote")
    return weight_files(folder)


def require_no_adapter(folder: Path) -> None:
    """Raise ModelError where an adapter lies in a folder, alone or beside weights: nothing here adds it to them."""
    place = folder / ADAPTER
    if not place.is_file():
        return
    try:
        said = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        said = {}
    found = said.get("peft_type") if isinstance(said, dict) else None
    kind = found if isinstance(found, str) and found != "LORA" else "LoRA"
    raise ModelError(
        f"{folder} holds a {kind} adapter ({ADAPTER}); merge it first: PEFT's merge_and_unload(), then "
        "save_pretrained, and give that folder"
    )


def weight_files(folder: Path) -> list[Path]:
    """Return a model's weight files as transformers chooses them.

    That is model.safetensors, else the shards of its index by name, else every *.safetensors file. ModelError where
    there are none, or the index cannot be read or names missing files.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        return [single]
    if index.is_file():
        return _shards(index)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        seen = f"only pickles ({', '.join(pickles)}), which can run code when loaded" if pickles else "no weights"
        raise ModelError(f"{folder} holds {seen}; save it with save_pretrained(folder, safe_serialization=True)")
    return files


def _instead(path: Path) -> str:
    snapshot = snapshot_at(path)
    if snapshot is not None:
        return f"fetch it again: hf download {snapshot.repo} --revision {snapshot.commit}"
    return "give a folder with config.json and safetensors, a GGUF file, or an id of Hugging Face such as org/name"


def _shards(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not an index of weights ({error!r}); copy or save the model again") from error
    files = [index.parent / name for name in sorted(names)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(f"{index.parent} lacks {', '.join(missing)}; finish the download or save the model again")
    return files


def _sha256(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(2**20))
    for path in files:
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(buffer[:size])
    return digest.hexdigest()
