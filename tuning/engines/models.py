"""Who an engine's models are: folders of Hugging Face by their weights, files of the engines by their bytes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from ...engines.openvino.model_format import OPENVINO_FILE, is_openvino
from ...errors import ModelError
from ...profiler.identity import identify
from ...profiler.records.model import ModelIdentity
from ...profiler.snapshot import name_of
from ..request import Identities, Models

CHUNK = 2**20
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
OPENVINO_TOKENIZER = ("openvino_tokenizer.xml", "openvino_tokenizer.bin")
COUNTING = ("i64", "i32", "boolean", "string", "u1")  # element types of shapes, axes and masks, which are no weights


def identify_engine_models(models: Models) -> Identities:
    """Return the models' identities, the same as for our own decoder; ModelError for an unreadable one."""
    return Identities(
        target=identify_engine_model(models.target),
        drafters={name: identify_engine_model(path, name) for name, path in models.drafters.items()},
    )


def identify_engine_model(path: Path, name: str | None = None) -> ModelIdentity:
    """Return the identity of a GGUF file, an OpenVINO folder or a Hugging Face folder.

    With weights of both kinds the safetensors count: the engine's form is another one of the same model.

    Raises:
        ModelError: it is none of these, or cannot be read.
    """
    is_hugging_face = any(path.glob("*.safetensors")) if path.is_dir() else True
    return identify(path, name) if is_hugging_face or not is_openvino(path) else identify_openvino(path, name)


def identify_openvino(path: Path, name: str | None = None) -> ModelIdentity:
    """Return the identity of an OpenVINO folder by its weights and graph; needs no OpenVINO.

    The tokenizer is that of Hugging Face where there is one, else OpenVINO's own.

    Raises:
        ModelError: the weights are missing, or the graph is no XML.
    """
    folder = path.resolve()
    graph = folder / OPENVINO_FILE
    weights = graph.with_suffix(".bin")
    if not weights.is_file():
        raise ModelError(f"{path} has {OPENVINO_FILE} and no {weights.name}; copy or convert the model again")
    own = [folder / TOKENIZER] if (folder / TOKENIZER).is_file() else [folder / part for part in OPENVINO_TOKENIZER]
    return ModelIdentity(
        name=name or name_of(folder),
        weights_hash=_sha256([weights, graph]),
        parameters=max(1, _constants(graph)),
        config_hash=_sha256_of_those_there([folder / CONFIG]),
        tokenizer_hash=_sha256_of_those_there(own),
        location=str(folder),
    )


def _constants(graph: Path) -> int:
    """Return how many numbers a graph's weights hold, scales and zero points too, each place of its .bin once."""
    held: dict[str, int] = {}
    try:
        for _, layer in ElementTree.iterparse(graph):
            data = layer.find("data")
            if layer.tag == "layer" and layer.get("type") == "Const" and data is not None:
                if data.get("element_type") not in COUNTING:
                    sizes = [int(size) for size in data.get("shape", "").split(",") if size.strip()]
                    held[data.get("offset", "")] = math.prod(sizes)
                layer.clear()
    except (ElementTree.ParseError, ValueError) as error:
        raise ModelError(f"{graph} is no graph of OpenVINO ({error}); copy or convert the model again") from error
    return sum(held.values())


def _sha256_of_those_there(files: Sequence[Path]) -> str:
    there = [file for file in files if file.is_file()]
    return _sha256(there) if there else ""


def _sha256(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(CHUNK):
                digest.update(part)
    return digest.hexdigest()
