"""A target whose logits are no numbers is told of, wherever it becomes so; none of its tokens are shown."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from spectune import load
from spectune.cli import main
from spectune.db import open_store
from spectune.errors import ModelError
from spectune.runtime.models.kernels.host_draws import NO_TOKEN, follow
from spectune.runtime.sampling.sampler import best_tokens
from spectune.tuning.profile import profile

from ..support.tiny_family import quick_request, save_model

WORDS = "the target's logits are not numbers"
PROMPT, NAN, INF = "def main", math.nan, math.inf


def broken(folder: Path, name: str, value: float, row: int | None = None) -> Path:
    """Return a saved target with a weight, or a row of it, that is no number."""
    file = save_model(folder, layers=2, seed=1) / "model.safetensors"
    stored = load_file(file)
    (stored[name] if row is None else stored[name][row]).fill_(value)
    save_file(stored, file, {"format": "pt"})
    return folder


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.9}])
@pytest.mark.parametrize(
    ("name", "value", "row"),
    [
        ("model.norm.weight", NAN, None),
        ("model.layers.1.mlp.down_proj.weight", INF, None),
        ("model.layers.0.input_layernorm.weight", NAN, None),
        ("lm_head.weight", NAN, 7),
    ],
)
def test_a_prompt_behind_which_nothing_is_a_number_is_refused(
    tmp_path: Path, dtype: str, settings: dict[str, float], name: str, value: float, row: int | None
) -> None:
    generator = load(broken(tmp_path, name, value, row), "cpu", plan="none", dtype=dtype)
    with pytest.raises(ModelError, match=WORDS):
        generator.generate(PROMPT, max_new_tokens=4, **settings)  # type: ignore[arg-type]


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8}, {"repetition_penalty": 1.3}])
def test_a_text_that_stops_being_numbers_on_its_way_is_refused(
    tmp_path: Path, dtype: str, settings: dict[str, float]
) -> None:
    sound = load(save_model(tmp_path / "sound", layers=2, seed=1), "cpu", plan="none", dtype=dtype)
    said = sound.generate(PROMPT, max_new_tokens=4, **settings).tokens  # type: ignore[arg-type]
    folder = broken(tmp_path / "broken", "model.embed_tokens.weight", NAN, row=said[2])
    generator = load(folder, "cpu", plan="none", dtype=dtype)
    with pytest.raises(ModelError, match=WORDS):
        generator.generate(PROMPT, max_new_tokens=8, **settings)  # type: ignore[arg-type]


def test_run_tells_it_and_fails(tmp_path: Path) -> None:
    target = broken(tmp_path, "model.norm.weight", NAN)
    asked = ["run", "--target", str(target), "--plan", "none", "--device", "cpu", "--prompt", PROMPT]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 1 and WORDS in done.output and "--dtype float32" in done.output


def test_a_session_tells_it(tmp_path: Path) -> None:
    session = load(broken(tmp_path, "model.norm.weight", NAN), "cpu", plan="none", dtype="float32").session(slots=2)
    session.submit(PROMPT)
    with pytest.raises(ModelError, match=WORDS):
        session.step()


def test_a_profile_of_it_is_refused(tmp_path: Path) -> None:
    request = quick_request(tmp_path)
    broken(tmp_path / "target", "model.norm.weight", NAN)
    with open_store("sqlite://") as store, pytest.raises(ModelError, match=WORDS):
        profile(request, store, progress=lambda *_: None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_best_of_no_numbers_is_no_token(dtype: torch.dtype) -> None:
    scores = torch.tensor(
        [[[1.0, 3.0, 2.0], [1.0, NAN, 2.0], [INF, 0.0, 0.0], [-INF] * 3, [-INF, 0.5, -INF]]], dtype=dtype
    )
    assert best_tokens(scores) == [[1, NO_TOKEN, NO_TOKEN, NO_TOKEN, 1]]


@pytest.mark.parametrize(("line", "drawn"), [([0, 2, 1], 1), ([0, NAN, 1], NO_TOKEN), ([0, 0, INF], NO_TOKEN)])
def test_kernels_draw_no_token_from_no_numbers(line: list[float], drawn: int) -> None:
    number, paths = np.zeros((1, 1), dtype=np.int64), np.empty((1, 2, 2), dtype=np.int64)
    scores = np.array([[line]], dtype=np.float32).view(np.uint32)
    settings = np.zeros((1, 3), dtype=np.float32)
    follow(scores, number, number - 1, np.array([1]), np.zeros((1, 3), dtype=np.int64), settings, paths)
    assert paths[0, :, 0].tolist() == [1, drawn]
