"""Training of block drafters: what torch trains is what the runtime runs, losses are the published ones, runs go on."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from spectune.errors import ModelError, TrainingError
from spectune.profiler.identity import identify
from spectune.runtime.models.block import BlockHead
from spectune.runtime.models.drafter import BLOCKS, load_block, load_drafter, require_drafter_of
from spectune.runtime.models.drafter_shapes import Kind, block_shape, is_block
from spectune.runtime.models.formats import draft_role
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model
from spectune.training.block import BlockRequest, BlockTraining
from spectune.training.cards import TrainedCard
from spectune.training.ctc import CtcModule, ctc_loss
from spectune.training.medusa import MedusaModule, medusa_loss
from spectune.training.own_text import BLANK, OwnTextSettings
from spectune.training.run import train_drafter
from spectune.training.specformer import SpecFormerModule, specformer_loss
from spectune.training.trainer import Checkpoint, TrainingSettings, train

from ..support.tiny_blocks import DEPTH, FRAMES, KINDS, block_shape_of, chances_of_prefixes, collapsed, said_along
from ..support.tiny_family import save_model
from ..support.tiny_models import tiny_llama
from ..support.tiny_runs import run_of

LLAMA = tiny_llama(layers=2, seed=0)
OWN = OwnTextSettings(texts=6, prompt_tokens=4, new_tokens=16, seed=1)
KEPT = TemporaryDirectory()


@pytest.mark.parametrize(("kind", "published"), [*((kind, False) for kind in KINDS), ("specformer", True)])
def test_the_runtime_says_what_the_module_says(kind: Kind, published: bool) -> None:
    """At every anchor of a text: the state behind x[t], the newest token x[t + 1]."""
    torch.manual_seed(3)
    text = torch.randint(24, (11,))
    with torch.no_grad():
        hidden = LLAMA(text[None], output_hidden_states=True).hidden_states
    shape, anchors = block_shape_of(kind, LLAMA, published=published), torch.tensor([[0, 3, 8]])
    made = CtcModule if kind == "ctc" else SpecFormerModule
    module = (MedusaModule(32, DEPTH) if kind == "medusa" else made(LLAMA, shape)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
        states = torch.cat([hidden[count] for count in shape.reads], dim=-1)
        if isinstance(module, MedusaModule):
            expected = LLAMA.lm_head(module(states[:, anchors[0]]))[0]
        else:
            embedded = LLAMA.model.embed_tokens(text[None, 1:])
            turns = LLAMA.model.rotary_emb(embedded, torch.arange(1, 11 + FRAMES)[None])
            normed = LLAMA.model.norm(module(embedded, states[:, :-1], anchors, turns))[0]
            expected = LLAMA.lm_head(normed)
        if isinstance(module, CtcModule):
            expected = torch.cat((expected, normed @ module.blank.weight.T), dim=-1).log_softmax(-1)
    tensors = {name: tensor.detach() for name, tensor in module.tensors().items()}
    found = said_along(BLOCKS[kind](tensors, shape, LeanModel(LLAMA)), text.tolist())[anchors[0] + 1]
    torch.testing.assert_close(found.double(), expected.view_as(found), rtol=1e-4, atol=1e-4)  # norms round to float32


def test_medusa_s_heads_begin_as_the_target_s_own() -> None:
    states = torch.randn(5, 32)
    torch.testing.assert_close(MedusaModule(32, 3)(states), states.unsqueeze(1).expand(-1, 3, -1))


def test_medusa_s_loss_is_the_discounted_sum() -> None:
    logits, wanted = torch.randn(4, 3, 7), torch.randint(7, (4, 3))
    nats = [-float(logits[:, head].log_softmax(-1)[range(4), wanted[:, head]].mean()) for head in range(3)]
    expected = sum(0.8**head * each for head, each in enumerate(nats)) / (1 + 0.8 + 0.64)
    assert medusa_loss(logits, wanted).item() == pytest.approx(expected, rel=1e-5)


def test_ctc_s_loss_is_that_of_all_paths_that_say_the_tokens() -> None:
    said = torch.randn(1, 5, 4).log_softmax(-1)
    wanted = torch.tensor([[1, 1]])
    chance = sum(
        float(said[0, range(5), list(path)].sum().exp())
        for path in np.ndindex(*([4] * 5))
        if collapsed(path, blank=3) == (1, 1)
    )
    first = -float(said[0, 0, 1])
    assert ctc_loss(said, wanted).item() == pytest.approx(-np.log(chance) / 2 + 0.1 * first, rel=1e-4)
    assert chances_of_prefixes(said[0].double())[1, 1] >= chance - 1e-6


def test_specformer_s_loss_is_the_mean_over_places() -> None:
    logits, wanted = torch.randn(4, 3, 7), torch.randint(7, (4, 3))
    chances = logits.softmax(-1)
    nats = [-np.log(float(chances[anchor, place, wanted[anchor, place]])) for anchor, place in np.ndindex(4, 3)]
    assert specformer_loss(logits, wanted).item() == pytest.approx(np.mean(nats), rel=1e-5)


def test_what_no_frames_can_say_does_not_count() -> None:
    said = torch.randn(2, 3, 4).log_softmax(-1)
    short, possible = torch.tensor([[1, 1, 1]]), torch.tensor([[0, 1, 2]])
    both = ctc_loss(said, torch.cat((short, possible)))
    alone = ctc_loss(said[1:], possible)
    firsts = 0.1 * (-said[0, 0, 1] - said[1, 0, 0]) / 2, 0.1 * -said[1, 0, 0]
    assert (both - firsts[0]).item() == pytest.approx((alone - firsts[1]).item() / 2, rel=1e-4)


@cache
def place() -> Path:
    folder = Path(KEPT.name)
    save_model(folder / "target", layers=2, seed=0)
    (folder / "text.txt").write_text("def main(): return 1\n" * 40)
    return folder


def request(kind: Kind, steps: int = 6) -> BlockRequest:
    settings = TrainingSettings(steps=steps, batch=4, sequence_tokens=7, warmup_steps=1, matrix_lr=1e-2, other_lr=1e-2)
    return BlockRequest(
        kind=kind, target=place() / "target", data=(place() / "text.txt",), depth=3,
        frames=5 if kind == "ctc" else 0, intermediate=0 if kind == "medusa" else 16,
        width=12 if kind == "specformer" else 0, settings=settings, own=OWN,
    )  # fmt: skip


@cache
def trained(kind: Kind) -> tuple[Path, TrainedCard]:
    folder = place() / kind
    return folder, train_drafter(request(kind, steps=40), folder, progress=lambda *_: None)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_fall_and_the_folder_holds_a_drafter_of_its_target(kind: Kind) -> None:
    folder, card = trained(kind)
    assert np.mean(card.losses[-5:]) < 0.95 * np.mean(card.losses[:5])
    target = load_model(str(place() / "target"), dtype="float32")
    drafter = load_drafter(str(folder), target, dtype="float32")
    assert isinstance(drafter, BLOCKS[kind])
    assert is_block(folder) and not is_block(place() / "target") and draft_role(folder) == "block"
    require_drafter_of(folder, identify(place() / "target"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "card.json",
        "card.md",
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_tells_acceptance_by_depth(kind: Kind) -> None:
    folder, card = trained(kind)
    assert card.rounds > 10 and all(0.0 <= chance <= 1.0 for chance in card.acceptance)
    assert json.loads((folder / "card.json").read_text())["losses"] == list(card.losses)
    assert f"{card.tokens_per_round:.2f} tokens a round" in (folder / "card.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_of_another_target_is_refused(kind: Kind) -> None:
    with pytest.raises(ModelError, match="was trained for a target with the weights"):
        require_drafter_of(trained(kind)[0], replace(identify(place() / "target"), weights_hash="0" * 64))


@pytest.mark.parametrize(("kind", "lacks"), [("ctc", "frames >= depth"), ("specformer", "a width and an MLP")])
def test_a_folder_that_describes_nothing_is_refused(kind: Kind, lacks: str, tmp_path: Path) -> None:
    said = {"kind": kind, "depth": 4, "reads": [2], "target": ""}
    (tmp_path / "config.json").write_text(json.dumps({"spectune": said}))
    assert is_block(tmp_path)
    with pytest.raises(ModelError, match=lacks):
        block_shape(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_to_the_same_drafter(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (2,))

    def stop(what: str, share: float) -> None:
        if what == "training the drafter" and share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(request(kind), tmp_path / "stopped", progress=stop)
    said: list[float] = []
    card = train_drafter(
        request(kind), tmp_path / "stopped",
        progress=lambda what, share: said.append(share) if what == "training the drafter" else None,
    )  # fmt: skip
    whole = train_drafter(request(kind), tmp_path / "whole", progress=lambda *_: None)
    assert len(said) == 2 and card.losses == whole.losses
    assert identify(tmp_path / "stopped").weights_hash == identify(tmp_path / "whole").weights_hash


def test_another_unfinished_training_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (1,))

    def stop(what: str, share: float) -> None:
        if what.startswith("training"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(request("medusa"), tmp_path, progress=stop)
    with pytest.raises(TrainingError, match="another unfinished training"):
        train_drafter(request("ctc"), tmp_path, progress=stop)


def test_nothing_is_said_behind_the_end_of_a_text(tmp_path: Path) -> None:
    texts = np.stack([np.arange(20), np.where(np.arange(20) < 8, np.arange(20), BLANK)])
    job = BlockTraining(request("medusa"), run_of(request("medusa"), texts, tmp_path))
    assert [int(each) - 20 for each in job.numbers if each >= 20] == [1, 2, 3]  # the last says tokens 5, 6 and 7


def test_a_kind_that_is_read_but_not_trained_is_refused() -> None:
    with pytest.raises(TrainingError, match="kind 'dflash' is not trained here; use medusa, ctc, specformer"):
        replace(request("medusa"), kind="dflash")


def test_too_few_frames_are_refused() -> None:
    with pytest.raises(TrainingError, match="as many frames"):
        replace(request("ctc"), frames=2)


def taught(texts: np.ndarray, folder: Path, *, steps: int, published: bool = False) -> BlockHead:
    """Return a SpecFormer that learned from given texts and went through its folder."""
    asked = request("specformer", steps=steps)
    asked = replace(asked, published=published, settings=replace(asked.settings, batch=16, sequence_tokens=15))
    torch.manual_seed(0)
    job = BlockTraining(asked, run_of(asked, texts, folder, identify(place() / "target")))
    for _ in train(job.network, job.loss, job.numbers, asked.settings):
        pass
    job.save(folder)
    return load_block(folder, load_model(str(place() / "target"), dtype="float32"))


@pytest.mark.parametrize("published", [False, True])
def test_a_specformer_that_learned_to_count_counts_on_from_the_newest_token(published: bool, tmp_path: Path) -> None:
    """The copy task: what is learned of x[t + 2 + i] behind x[t] is said by place i behind x[t + 1]."""
    runs = taught((np.arange(20) + np.arange(32)[:, None]) % 8, tmp_path, steps=60, published=published)
    text = [(7 + count) % 8 for count in range(12)]
    ahead = [[(token + 1 + i) % 8 for i in range(3)] for token in text]
    assert said_along(runs, text).argmax(dim=-1)[2:].tolist() == ahead[2:]  # the first anchor is x[1]


def test_a_specformer_knows_less_further_on_and_never_more_than_can_be_known(tmp_path: Path) -> None:
    """Texts take steps of 1 or 2 by a fair coin, so at best it knows the binomial law of i + 1 steps."""

    def walks(count: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).choice([1, 2], (count, 20)).cumsum(axis=1) % 8

    runs, nats = taught(walks(400, 1), tmp_path, steps=100), []
    for text in walks(40, 2):
        said = said_along(runs, text.tolist()).double().log_softmax(-1)
        nats += [[-float(said[t, i, text[t + 1 + i]]) for i in range(3)] for t in range(2, 17)]
    found, laws = np.mean(nats, axis=0), (np.array([1, 1]) / 2, np.array([1, 2, 1]) / 4, np.array([1, 3, 3, 1]) / 8)
    assert np.all(found > [-(law * np.log(law)).sum() for law in laws])
    assert found[0] < np.log(8) and np.all(np.diff(found) > 0.2)


def test_what_is_wanted_at_an_anchor_are_the_tokens_behind_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that count up: the state behind t, the newest t + 1, so t + 2 and on; a row keeps to its first text."""
    texts = np.stack([np.arange(20), np.arange(3, 23)])
    job = BlockTraining(request("medusa"), run_of(request("medusa"), texts, tmp_path))
    assert job.numbers.min() == 1 and job.numbers.max() == 20 + 15
    asked: list[torch.Tensor] = []

    def noted(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        asked.append(wanted)
        return logits.sum()

    monkeypatch.setattr("spectune.training.block.medusa_loss", noted)
    job.loss(torch.tensor([[14, 15, 21], [25, 26, 27]]))
    first = [[16, 17, 18], [17, 18, 19], [16, 17, 18]]
    assert asked[0].tolist() == [*first, [10, 11, 12], [11, 12, 13], [12, 13, 14]]
