"""Who an engine's models are: folders of Hugging Face by their weights, GGUF files by their bytes."""

from __future__ import annotations

import hashlib
import importlib
import math
from pathlib import Path

from ...errors import ModelError
from ...profiler.identity import identify
from ...profiler.records.model import ModelIdentity
from ..request import Identities, Models

CHUNK = 2**20


def identify_engine_models(models: Models) -> Identities:
    """Return who the models are; a folder is who it is for our own decoder, so that their traces are shared.

    Raises:
        ModelError: there is no model at a path, or it cannot be read.
    """
    return Identities(
        target=_identified(models.target, None),
        drafters={name: _identified(path, name) for name, path in models.drafters.items()},
    )


def identify_gguf(path: Path, name: str | None = None) -> ModelIdentity:
    """Return the identity of a GGUF file; its vocabulary is inside, so one hash names all of it.

    Raises:
        ModelError: it is no GGUF file.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
    try:
        tensors = importlib.import_module("gguf").GGUFReader(path).tensors
        parameters = sum(math.prod(int(size) for size in tensor.shape) for tensor in tensors)
    except ImportError as error:
        raise ModelError("GGUF files are read by the package gguf; pip install 'spectune[llamacpp]'") from error
    except Exception as error:  # whatever the reader raises for another kind of file
        raise ModelError(f"{path} is no GGUF file ({error}); give one, or a model folder") from error
    return ModelIdentity(
        name=name or path.stem,
        weights_hash=digest.hexdigest(),
        parameters=max(1, parameters),
        config_hash="",
        tokenizer_hash="",
        location=str(path.resolve()),
    )


def _identified(path: Path, name: str | None) -> ModelIdentity:
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"no GGUF file at {path}; give its path, or a model folder")
        return identify_gguf(path, name)
    return identify(path, name)
