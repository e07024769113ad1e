"""`spectune convert`: the file or folder that an engine reads, whole and under the name that was told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.engines.table import FORMATS

from ..support.llama_program import convert_here
from ..support.tiny_family import save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "target", layers=1, seed=1)


def converted(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, words)])


def require(engine: str) -> None:
    for wheel in {"llama.cpp": ("gguf",), "openvino": ("openvino_genai", "openvino_tokenizers")}[engine]:
        pytest.importorskip(wheel, reason=f"{wheel} is not installed")


@pytest.mark.parametrize("engine", FORMATS)
def test_a_model_is_written_once_under_its_folder_s_name(
    engine: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(engine)
    monkeypatch.chdir(tmp_path)
    done = converted(model, "--engine", engine, "--dtype", "float32")
    name = f"target.{FORMATS[engine].ending}"
    assert done.exit_code == 0 and name in done.stdout and f"written to {name}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    again = converted(model, "--engine", engine, "--dtype", "float32")
    assert again.exit_code == 1 and f"{name} is there already" in again.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_file_is_the_one_that_a_profile_makes_for_itself(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("llama.cpp")
    convert_here(monkeypatch)
    from spectune.engines.llama_cpp.model_format import as_gguf

    told = json.loads(
        converted(model, "--engine", "llama.cpp", "--dtype", "float16", "-o", tmp_path / "a.gguf", "--json").stdout
    )
    file = tmp_path / "a.gguf"
    assert told == {
        "engine": "llama.cpp",
        "model": str(model),
        "dtype": "float16",
        "written": str(file),
        "bytes": file.stat().st_size,
    }
    assert file.read_bytes() == as_gguf(model, tmp_path, "float16").read_bytes()


def test_the_folder_is_one_that_openvino_reads(model: Path, tmp_path: Path) -> None:
    require("openvino")
    from spectune.engines.running import run_engine

    assert converted(model, "--engine", "openvino", "--dtype", "float16", "-o", tmp_path / "target").exit_code == 0
    engine = run_engine("openvino", tmp_path / "target", {}, dtype="float16", threads=1, folder=tmp_path / "none")
    assert engine.encode(["def main"])[0]


def test_the_number_format_is_the_profile_s_own_unless_one_is_given(model: Path, tmp_path: Path) -> None:
    require("llama.cpp")
    from spectune.profiler.device import detect

    told = json.loads(converted(model, "--engine", "llama.cpp", "-o", tmp_path / "a.gguf", "--json").stdout)
    assert told["dtype"] == detect("cpu").native_dtype


def test_what_cannot_be_written_is_told_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    require("llama.cpp")
    (tmp_path / "mistral").mkdir()
    (tmp_path / "mistral" / "config.json").write_text('{"model_type": "mistral"}')
    out = tmp_path / "out"
    out.mkdir()
    for words, wrong in (
        ((tmp_path / "mistral", "-o", out / "a.gguf"), "is a mistral"),
        ((tmp_path / "none", "-o", out / "a.gguf"), "no model folder at"),
        ((model, "-o", out / "none" / "a.gguf"), "there is no folder"),
        ((model, "-o", out / "a.gguf", "--dtype", "float64"), "not 'float64'; give one with --dtype"),
    ):
        done = converted(*words, "--engine", "llama.cpp")
        assert done.exit_code == 1 and wrong in done.stderr and "Traceback" not in done.stderr
    assert not list(out.iterdir())
