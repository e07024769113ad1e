"""A first start compiles in two processes; a later one, or one with one core, in none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from spectune.demo import warm as warming
from spectune.demo.story import family_folder, family_models

MODELS = family_models(family_folder())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Return what is started as a process of its own, on a CPU with bf16, two cores and no compiled kernel."""
    commands: list[list[str]] = []

    def start(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(wait=lambda: 0, kill=lambda: None)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(warming, "detect", lambda _: SimpleNamespace(kind="cpu", native_dtype="bfloat16"))
    monkeypatch.setattr(warming, "cores", lambda: 2)
    monkeypatch.setattr(warming, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(warming, "decode_a_little", lambda _models, dtype, _setups: commands.append([dtype]))
    return commands


def told(what: str, share: float) -> None:
    assert what == "compiling for this processor, once" and share == 0.0


def test_a_first_start_compiles_fp32_beside_the_profiles_format(started: list[list[str]]) -> None:
    warming.warm(MODELS, told)
    child, own = started
    assert child[1:4] == ["-m", "spectune.demo.warm", str(MODELS.target)]
    assert child[4:] == [f"small={MODELS.drafters['small']}", f"medium={MODELS.drafters['medium']}"]
    assert own == ["bfloat16"]


def test_a_later_start_compiles_nothing(started: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "kernels" / "0123").mkdir(parents=True)
    (tmp_path / "kernels" / "0123" / "kernel.1.nbc").touch()
    warming.warm(MODELS, told)
    assert started == []


@pytest.mark.parametrize(
    ("cores", "kind", "dtype"), [(1, "cpu", "bfloat16"), (2, "cuda", "bfloat16"), (2, "cpu", "float32")]
)
def test_nothing_is_compiled_ahead_where_it_saves_no_time(
    cores: int, kind: str, dtype: str, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "cores", lambda: cores)
    monkeypatch.setattr(warming, "detect", lambda _: SimpleNamespace(kind=kind, native_dtype=dtype))
    warming.warm(MODELS, told)
    assert started == []


@pytest.mark.slow
def test_the_other_process_compiles_for_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with warming._beside(MODELS):
        pass
    assert warming.is_warm()
