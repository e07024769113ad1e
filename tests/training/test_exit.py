"""An exit's network is trained by its three losses, comes nearer to its target, and what is saved is what is run."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.errors import ModelError, TrainingError
from spectune.profiler.identity import identify
from spectune.runtime.models.drafter import load_drafter, require_drafter_of
from spectune.runtime.models.drafter_shapes import ExitShape, exit_shape, is_exit
from spectune.runtime.models.exit import ExitModel
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model
from spectune.training.exit import (
    TAU,
    ExitCard,
    ExitRequest,
    ExitTraining,
    ImitationModule,
    imitation_loss,
)
from spectune.training.own_text import BLANK, OwnTextSettings
from spectune.training.run import train_drafter
from spectune.training.trainer import Checkpoint, TrainingSettings

from ..support.tiny_family import save_model
from ..support.tiny_models import tiny_llama, tiny_model
from ..support.tiny_runs import run_of

LLAMA = tiny_llama(layers=4, seed=0)
KEPT = tempfile.TemporaryDirectory()  # of what is trained once; gone with the process
OWN = OwnTextSettings(texts=4, prompt_tokens=4, new_tokens=20)


@cache
def place() -> Path:
    folder = Path(KEPT.name)
    save_model(folder / "target", layers=4, seed=0)
    save_model(folder / "other", layers=4, seed=5)
    (folder / "text.txt").write_text("def main(): return 1\n" * 40)
    return folder


def request(steps: int = 6, batch: int = 2, exit_layer: int = 2) -> ExitRequest:
    settings = TrainingSettings(
        steps=steps, batch=batch, sequence_tokens=16, warmup_steps=1, matrix_lr=2e-2, other_lr=2e-2
    )
    files = (place() / "text.txt",)
    return ExitRequest(
        target=place() / "target", data=files, exit_layer=exit_layer, settings=settings, own=OWN, dtype="float32"
    )


def training(asked: ExitRequest) -> ExitTraining:
    return ExitTraining(asked, run_of(asked, np.arange(40).reshape(2, 20) % 24, place()))


@cache
def trained() -> tuple[Path, ExitCard]:
    folder = place() / "exit"
    card = train_drafter(request(steps=60, batch=8), folder, progress=lambda *_: None)
    assert isinstance(card, ExitCard)
    return folder, card


def test_the_loss_is_the_sum_of_its_three_parts() -> None:
    own, deep = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[4.0, 3.0]]])
    said, known = torch.tensor([[[1.0, 0.0, -1.0]]]), torch.tensor([[[0.0, 2.0, 0.5]]])
    q, p, plain = (
        [math.exp(x / t) / sum(math.exp(y / t) for y in each) for x in each]
        for each, t in (([1.0, 0.0, -1.0], TAU), ([0.0, 2.0, 0.5], TAU), ([1.0, 0.0, -1.0], 1.0))
    )
    apart = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    expected = (1 - 24 / 25) + TAU**2 * apart - math.log(plain[2])
    assert imitation_loss(own, deep, said, known, torch.tensor([[2]])).item() == pytest.approx(expected, rel=1e-5)


def test_deep_states_are_joined_by_learned_shares() -> None:
    network = ImitationModule(2, 3, deep=2, eps=1e-6)
    deep = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert network.fused(deep).tolist() == [[0.5, 0.5]]
    with torch.no_grad():
        network.shares.copy_(torch.tensor([math.log(3.0), 0.0]))
    torch.testing.assert_close(network.fused(deep), torch.tensor([[0.75, 0.25]]))


def test_a_network_begins_by_adding_nothing() -> None:
    state = torch.randn(3, 8)
    assert torch.equal(ImitationModule(8, 4, deep=3, eps=1e-6)(state), state)


def test_the_states_read_are_those_after_each_layer_before_the_final_norm() -> None:
    job = training(request())
    target, ids = job.target.model, torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        states, logits = job.target.read(input_ids=ids)
        known = target(input_ids=ids, output_hidden_states=True)
        assert len(states) == 5
        assert all(torch.equal(a, b) for a, b in zip(states[:4], known.hidden_states, strict=False))
        torch.testing.assert_close(target.model.norm(states[4]), known.hidden_states[4])
        torch.testing.assert_close(job.said(states[4]), logits)


@pytest.mark.parametrize(("exit_layer", "deep"), [(1, [2, 3, 4]), (2, [3, 4]), (3, [4])])
def test_what_is_imitated_lies_behind_the_exit(exit_layer: int, deep: list[int]) -> None:
    assert list(training(request(exit_layer=exit_layer)).deep) == deep


def test_the_target_stays_as_it_is() -> None:
    job, ids = training(request()), torch.randint(24, (2, 17), generator=torch.Generator().manual_seed(1))
    network = job.network
    job.loss_of(ids, []).backward()
    assert all(weight.grad is None and not weight.requires_grad for weight in job.target.model.parameters())
    assert network.down.weight.grad is not None and float(network.down.weight.grad.abs().sum()) > 0


def test_what_stands_behind_the_end_of_a_text_does_not_count() -> None:
    job, ids = training(request()), torch.randint(24, (1, 9), generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(ids, (0, 3), value=BLANK)
    torch.testing.assert_close(job.loss_of(padded, []), job.loss_of(ids, []))


def said_by(model: LeanModel, text: list[int]) -> Tensor:
    visible = np.tri(len(text), dtype=np.bool_)[None]
    step = lay_out(np.array([text]), np.arange(len(text)), [0], visible, dtype=model.dtype, device=model.device)
    return model.forward(step, model.new_cache(1, len(text)))[0]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_runtime_says_what_was_trained(family: str, tmp_path: Path) -> None:
    """Of Gemma 2 too, whose logits are capped; saved weights are bf16, so both sides use tensors as they are."""
    source, text = tiny_model(family).float(), [3, 1, 4, 1, 5, 9, 2, 6]
    source.save_pretrained(tmp_path)
    job = training(replace(request(exit_layer=1), target=tmp_path))
    network = job.network
    torch.nn.init.normal_(network.down.weight, std=0.3)
    shape = ExitShape(layers=1, width=job.width, target="t")
    with torch.no_grad():
        states, _ = job.target.read(input_ids=torch.tensor([text]))
        expected = job.said(network(states[1]))[0]
        found = said_by(ExitModel(network.tensors(), shape, LeanModel(source)), text)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_losses_fall_and_the_folder_holds_an_exit_of_its_target() -> None:
    folder, card = trained()
    assert np.mean(card.losses[-5:]) < 0.95 * np.mean(card.losses[:5])
    target = load_model(str(place() / "target"), dtype="float32")
    loaded = load_drafter(str(folder), target, dtype="float32")
    assert is_exit(folder) and isinstance(loaded, ExitModel) and loaded.exit_layer == 2
    require_drafter_of(folder, identify(place() / "target"))
    names = ["card.json", "card.md", "config.json", "model.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_the_card_tells_acceptance_by_depth_and_the_parameters_that_were_saved() -> None:
    folder, card = trained()
    assert card.rounds > 10 and all(0.0 <= chance <= 1.0 for chance in card.acceptance)
    assert json.loads((folder / "card.json").read_text())["losses"] == list(card.losses)
    page = (folder / "card.md").read_text()
    assert "An exit after 2 of 4 layers" in page and f"{card.tokens_per_round:.2f} tokens a round" in page
    assert card.parameters == identify(folder).parameters == 32 + 2 * 32 * 32


def test_an_exit_of_another_target_is_refused() -> None:
    with pytest.raises(ModelError, match="was trained for a target with the weights"):
        require_drafter_of(trained()[0], identify(place() / "other"))


@pytest.mark.parametrize("exit_layer", [4, 7])
def test_an_exit_the_target_does_not_have_is_refused_before_anything_is_written(
    tmp_path: Path, exit_layer: int
) -> None:
    with pytest.raises(ModelError, match=f"exits behind 1 to 3 of them, not {exit_layer}; name another with --exit"):
        train_drafter(request(exit_layer=exit_layer), tmp_path / "exit", progress=lambda *_: None)
    assert not (tmp_path / "exit").exists()


def test_an_exit_without_text_or_layers_is_refused() -> None:
    with pytest.raises(TrainingError, match="give one file or more"):
        replace(request(), data=())
    with pytest.raises(TrainingError, match="1 layer or more"):
        replace(request(), exit_layer=0)


def test_a_stopped_run_goes_on_to_the_same_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (2,))

    def stop(what: str, share: float) -> None:
        if what == "training the exit" and share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(request(), tmp_path / "stopped", progress=stop)
    said: list[float] = []
    (tmp_path / "same.txt").write_bytes((place() / "text.txt").read_bytes())
    moved = replace(request(), data=(tmp_path / "same.txt",))  # follows from the same tokens
    card = train_drafter(
        moved, tmp_path / "stopped", progress=lambda what, share: said.append(share) if "exit" in what else None
    )
    whole = train_drafter(request(), tmp_path / "whole", progress=lambda *_: None)
    assert len(said) == 2 and card.losses == whole.losses
    assert identify(tmp_path / "stopped").weights_hash == identify(tmp_path / "whole").weights_hash
    assert exit_shape(tmp_path / "whole").width == 32


def test_another_unfinished_training_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (1,))

    def stop(what: str, share: float) -> None:
        if what.startswith("training"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(request(), tmp_path, progress=stop)
    with pytest.raises(TrainingError, match="another unfinished training"):
        train_drafter(request(exit_layer=1), tmp_path, progress=lambda *_: None)
