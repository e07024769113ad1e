"""Who an engine's models are, and that folders of OpenVINO go through profile, plan and validate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from spectune.db import open_store
from spectune.errors import ModelError
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.prompts import Prompt
from spectune.tuning.engines.models import identify_engine_model
from spectune.tuning.engines.plan import EnginePlanRequest, plan_engine
from spectune.tuning.engines.profile import EngineRequest, profile_engine
from spectune.tuning.engines.validate import EngineValidateRequest, validate_engine
from spectune.tuning.request import Models

from ...support.simulated_engine import SimulatedEngine

CONSTANTS = (
    ("f32", "4, 8", 0),
    ("f32", "8", 128),
    ("f32", "4, 8", 0),  # the same place once more, as tied weights lie
    ("u4", "2, 3, 16", 160),
    ("f16", "", 300),
    ("i64", "3", 400),  # a shape
)
LAYER = (
    '<layer id="{0}" name="c{0}" type="Const" version="opset1">'
    '<data element_type="{1}" shape="{2}" offset="{3}"/></layer>'
)
PROMPTS = tuple(Prompt(text=f"{number} things to say about {number * 7}") for number in range(6))


def openvino_folder(folder: Path, weights: bytes = b"weights") -> Path:
    """Make a folder that looks like a model of OpenVINO, and return it."""
    folder.mkdir()
    layers = "".join(LAYER.format(place, *constant) for place, constant in enumerate(CONSTANTS))
    (folder / "openvino_model.xml").write_text(f'<?xml version="1.0"?><net name="m"><layers>{layers}</layers></net>')
    (folder / "openvino_model.bin").write_bytes(weights)
    (folder / "openvino_tokenizer.xml").write_text("<net/>")
    (folder / "config.json").write_text("{}")
    return folder


def add_safetensors(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file({"weight": np.ones(3, dtype=np.float32)}, folder / "model.safetensors")
    return folder


def test_a_folder_of_openvino_has_as_many_parameters_as_its_weights_hold_numbers(tmp_path: Path) -> None:
    found = identify_engine_model(openvino_folder(tmp_path / "target"))
    assert found.parameters == 4 * 8 + 8 + 2 * 3 * 16 + 1
    assert (found.name, found.location) == ("target", str((tmp_path / "target").resolve()))


def test_a_folder_of_openvino_is_known_by_its_weights_and_its_graph_wherever_it_lies(tmp_path: Path) -> None:
    own, moved = (identify_engine_model(openvino_folder(tmp_path / name)) for name in ("own", "moved"))
    assert own.key == moved.key
    other = identify_engine_model(openvino_folder(tmp_path / "other", b"other weights"))
    graph = tmp_path / "moved" / "openvino_model.xml"
    graph.write_text(graph.read_text().replace('name="m"', 'name="n"'))
    assert len({own.key, other.key, identify_engine_model(tmp_path / "moved").key}) == 3


def test_the_tokenizer_of_a_folder_of_openvino_is_hugging_face_s_where_it_lies_there(tmp_path: Path) -> None:
    folder = openvino_folder(tmp_path / "target")
    own = identify_engine_model(folder).tokenizer_hash
    (folder / "tokenizer.json").write_text("{}")
    add_safetensors(tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_text("{}")
    assert own != identify_engine_model(folder).tokenizer_hash == identify(tmp_path / "other").tokenizer_hash


def test_a_folder_of_hugging_face_is_who_it_is_for_our_own_decoder(tmp_path: Path) -> None:
    folder = add_safetensors(tmp_path / "target")
    assert identify_engine_model(folder, "small") == identify(folder, "small")
    both = add_safetensors(openvino_folder(tmp_path / "both"))
    assert identify_engine_model(both) == identify(both)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    for name, wrong in (("none.gguf", "no GGUF file at"), ("none", "no model folder at")):
        with pytest.raises(ModelError, match=wrong):
            identify_engine_model(tmp_path / name)
    folder = openvino_folder(tmp_path / "target")
    (folder / "openvino_model.xml").write_text("no XML")
    with pytest.raises(ModelError, match="is no graph of OpenVINO"):
        identify_engine_model(folder)
    (folder / "openvino_model.bin").unlink()
    with pytest.raises(ModelError, match=r"has openvino_model.xml and no openvino_model.bin"):
        identify_engine_model(folder)


def test_folders_of_openvino_are_profiled_planned_and_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path))  # another test may hold the device
    monkeypatch.setattr("spectune.tuning.engines.turns.SETTLE_S", 0.0)
    models = Models(
        target=openvino_folder(tmp_path / "target"),
        drafters={"small": openvino_folder(tmp_path / "small", b"small weights")},
    )
    engine = SimulatedEngine(right={"small": 0.8})
    asked = EngineRequest(engine="llama.cpp", models=models, prompts=PROMPTS, concurrencies=(1,), max_new_tokens=32)
    wanted = EnginePlanRequest(engine="llama.cpp", target=identify_engine_model(models.target), device=detect("cpu"))
    checked = EngineValidateRequest(plan=wanted, prompts=PROMPTS, max_new_tokens=32)
    with open_store(str(tmp_path / "store.db")) as store:
        profile_engine(asked, engine, store, progress=lambda what, share: None)
        number, plan = plan_engine(wanted, store)
        done = validate_engine(checked, engine, store, progress=lambda what, share: None)
    assert dict(plan.drafters)["small"].location == str((tmp_path / "small").resolve())
    assert done.validation.plan_id == number
