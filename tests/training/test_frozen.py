"""The target of a training: of every family what is learned is what the runtime says, and it leaves memory in time."""

from __future__ import annotations

import weakref
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BloomConfig

from spectune.errors import ModelError
from spectune.runtime.models.drafter import BLOCKS, load_drafter
from spectune.runtime.models.drafter_shapes import Kind
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.loading import load_model, load_pretrained
from spectune.training import eagle, frozen, run
from spectune.training.block import BlockRequest, BlockTraining
from spectune.training.eagle import EagleRequest, EagleTraining, feature_loss
from spectune.training.exit import ExitRequest
from spectune.training.own_text import OwnTextSettings
from spectune.training.trainer import TrainingSettings

from ..support.tiny_blocks import KINDS, said_along
from ..support.tiny_family import save_model
from ..support.tiny_models import tiny_model
from ..support.tiny_runs import run_of

KEPT = TemporaryDirectory()  # of targets; gone with the process
APART = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")  # families, each other than the ones before
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
OWN = OwnTextSettings(texts=4, prompt_tokens=4, new_tokens=20)
SETTINGS = TrainingSettings(steps=1, batch=2, sequence_tokens=16, warmup_steps=1)


@cache
def target(family: str) -> Path:
    folder = Path(KEPT.name) / family
    tiny_model(family).float().save_pretrained(folder)
    return folder


def spread(module: torch.nn.Module) -> None:
    """Give a drafter weights that say something, as they are saved: in bfloat16."""
    torch.manual_seed(4)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn_like(weight).mul(0.3).bfloat16())


@pytest.mark.thinned
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", APART)
def test_a_block_drafter_learns_what_the_runtime_says(family: str, kind: Kind, tmp_path: Path) -> None:
    asked = BlockRequest(
        kind=kind, target=target(family), data=(Path("text"),), depth=3, frames=4 if kind == "ctc" else 0,
        intermediate=24, width=20, settings=SETTINGS, own=OWN,
    )  # fmt: skip
    job, places = BlockTraining(asked, run_of(asked, np.array([TEXT]), tmp_path)), torch.tensor([[1, 4, 6]])
    spread(job.network)
    job.save(tmp_path)
    with torch.no_grad():
        learned = job.said(torch.tensor([0]), places)
    runs = load_drafter(str(tmp_path), load_model(str(target(family)), dtype="float32"), dtype="float32")
    assert isinstance(runs, BLOCKS[kind])
    torch.testing.assert_close(said_along(runs, TEXT)[places[0] + 1], learned, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", APART)
def test_a_head_learns_what_the_runtime_says(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[Tensor] = []

    def noted(own: Tensor, features: Tensor, logits: Tensor, wanted: Tensor) -> Tensor:
        learned.append(logits.detach())
        return feature_loss(own, features, logits, wanted)

    monkeypatch.setattr(eagle, "feature_loss", noted)
    monkeypatch.setattr(eagle, "NOISE", 0.0)
    asked = EagleRequest(
        target=target(family), data=(Path("text"),), form="eagle", intermediate=24, settings=SETTINGS, own=OWN
    )
    job, ids = EagleTraining(asked, run_of(asked, np.array([TEXT]), tmp_path)), torch.tensor([TEXT])
    spread(job.network)
    job.save(tmp_path)
    job.loss_of(ids, job._target.states(ids[:, :-1])[-1], ids[:, :-1])
    runs: Any = load_drafter(str(tmp_path), load_model(str(target(family)), dtype="float32"), dtype="float32")
    count = len(TEXT)
    sees = np.tri(count, dtype=np.bool_)[None]
    step = lay_out(np.array([TEXT]), np.arange(count), [0], sees, dtype=runs.dtype, device=runs.device)
    found = runs.read(runs.along(TEXT)[None], step, runs.new_cache(1, count))
    torch.testing.assert_close(found[0, 1:-1], learned[0], rtol=1e-3, atol=1e-3)


def test_a_target_whose_states_are_not_read_is_refused_by_its_configuration(tmp_path: Path) -> None:
    BloomConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"of type bloom, whose hidden states are not read; .* llama, mistral"):
        frozen.positions_of(tmp_path)
    assert frozen.positions_of(target("llama")) == 128


REQUESTS: dict[str, Any] = {
    "eagle": lambda **given: EagleRequest(form="eagle", **given),
    "block": lambda **given: BlockRequest(kind="medusa", depth=2, **given),
    "exit": lambda **given: ExitRequest(exit_layer=1, **given),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_the_target_is_in_memory_once_at_a_time(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that writes, the one that teaches, and the one that judges: each is gone when the next is loaded."""
    loaded: list[Any] = []

    def noted(load: Any) -> Any:
        def loading(*given: Any, **named: Any) -> Any:
            assert [one() for one in loaded] == [None] * len(loaded)
            made = load(*given, **named)
            loaded.append(weakref.ref(made))
            return made

        return loading

    monkeypatch.setattr(run, "load_model", noted(load_model))
    monkeypatch.setattr(frozen, "load_pretrained", noted(load_pretrained))
    save_model(tmp_path / "target", layers=2, seed=0)
    (tmp_path / "text.txt").write_text("def main(): return 1\n" * 40)
    given = {"target": tmp_path / "target", "data": (tmp_path / "text.txt",), "settings": SETTINGS, "own": OWN}
    run.train_drafter(REQUESTS[kind](**given, dtype="float32"), tmp_path / "drafter", progress=lambda *_: None)
    assert len(loaded) == 3
