"""Heads are trained by the published losses, come nearer to their target, and what is saved is what is run."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from spectune.errors import ModelError, TrainingError
from spectune.profiler.identity import identify
from spectune.runtime.models.drafter import load_drafter, load_head, require_drafter_of
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import Form, HeadShape, head_shape, is_head
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model
from spectune.training.cards import TrainedCard
from spectune.training.eagle import (
    EagleRequest,
    EagleTraining,
    HeadModule,
    attended,
    feature_loss,
    frequent_ids,
    head_config,
    soft_cross_entropy,
    training_time_loss,
)
from spectune.training.frozen import FrozenTarget
from spectune.training.own_text import BLANK, OwnTextSettings, own_texts, readable, write_own_texts
from spectune.training.prompts import Corpus, own_requests
from spectune.training.run import train_drafter
from spectune.training.trainer import Checkpoint, TrainingSettings

from ..support.tiny_family import save_model
from ..support.tiny_models import tiny_llama
from ..support.tiny_runs import run_of

LLAMA = tiny_llama(layers=4, seed=0)
READS = {"eagle": (4,), "eagle3": (1, 2, 3)}
FORMS: tuple[Form, ...] = ("eagle", "eagle3")
IDS = torch.tensor([0, 3, 4, 7, 9, 11, 15, 20])
SETTINGS = TrainingSettings(steps=6, batch=2, sequence_tokens=16, warmup_steps=1)
KEPT = tempfile.TemporaryDirectory()  # of what is trained once; gone with the process
OWN = OwnTextSettings(texts=4, prompt_tokens=4, new_tokens=20)


def module(form: Form, seed: int = 1) -> HeadModule:
    torch.manual_seed(seed)
    config = head_config(LLAMA, intermediate=40)
    return HeadModule(form, config, reads=len(READS[form]), draft_vocabulary=len(IDS)).double()


def runtime_head(form: Form, trained: HeadModule) -> EagleHead:
    weights = dict(trained.state_dict()) | ({"d2t": IDS - torch.arange(len(IDS))} if form == "eagle3" else {})
    shape = HeadShape(form=form, config=head_config(LLAMA, intermediate=40), reads=READS[form])
    return EagleHead(weights, shape, LeanModel(LLAMA))


def inputs(form: Form, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return embeddings of the columns, hidden states of the columns before, and the target's logits behind them."""
    with torch.no_grad():
        said = LLAMA(text[None], output_hidden_states=True)
        hidden = torch.cat([said.hidden_states[count] for count in READS[form]], dim=-1)
        return LLAMA.model.embed_tokens(text[None, 1:]), hidden[:, :-1], said.logits[:, 1:]


def drafted_column(form: Form, head: HeadModule, text: Tensor, column: int, steps: int) -> Tensor:
    """Return own features at a column whose last `steps` tokens were drafted: one plain causal pass per token."""
    embedded, hidden, _ = inputs(form, text)
    features = head.features(hidden).clone()
    for drafted in range(column - steps, column + 1):
        own = head(embedded[:, : drafted + 1], features[:, : drafted + 1], [])
        if drafted < column:
            features[:, drafted + 1] = own[:, drafted]
    last: Tensor = own[0, column]
    return last


@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_the_training_time_test_is_a_draft_that_deep(form: Form) -> None:
    head, text = module(form), torch.randint(24, (12,), generator=torch.Generator().manual_seed(2))
    embedded, hidden, _ = inputs(form, text)
    with torch.no_grad():
        features, states = head.features(hidden), list[tuple[Tensor, Tensor]]()
        for step in range(4):
            own = head(embedded, features, states)
            for column in (step, 6, 10):
                torch.testing.assert_close(own[0, column], drafted_column(form, head, text, column, step))
            features = own.roll(1, 1)


@pytest.mark.parametrize("form", FORMS)
def test_the_runtime_says_what_was_trained(form: Form) -> None:
    head, text = module(form), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    embedded, hidden, _ = inputs(form, text)
    with torch.no_grad():
        own = head(embedded, head.features(hidden), [])[0]
        said = F.linear(own, LLAMA.lm_head.weight) if form == "eagle" else head.logits(own)
    runs = runtime_head(form, head)
    step = lay_out(
        text[None].numpy(), np.arange(8), [0], np.tri(8, dtype=np.bool_)[None], dtype=runs.dtype, device=runs.device
    )
    found = runs.read(runs.along(text.tolist())[None], step, runs.new_cache(1, 8))[0, 1:]
    torch.testing.assert_close(
        found if form == "eagle" else found[:, IDS], said, rtol=1e-5, atol=1e-5
    )  # norms round to float32


def test_the_first_step_is_plain_causal_attention() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(attended(q, [(k, v)]), F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_the_feature_loss_is_the_published_sum() -> None:
    own, features = torch.tensor([[[0.5, 3.0]]]), torch.zeros(1, 1, 2)
    logits, wanted = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 0.0]]])
    smooth = (0.5 * 0.5**2 + (3.0 - 0.5)) / 2
    nats = -0.5 * (logits.log_softmax(-1).sum())
    assert feature_loss(own, features, logits, wanted).item() == pytest.approx(smooth + 0.1 * nats.item())


def test_the_training_time_loss_is_the_weighted_sum_over_drafted_depths() -> None:
    head, text = module("eagle3"), torch.randint(24, (12,), generator=torch.Generator().manual_seed(4))
    embedded, hidden, logits = inputs("eagle3", text)
    expected = 0.0
    for step in range(3):
        nats = []
        for column in range(step, 11):
            if int(logits[0, column].argmax()) in IDS:
                with torch.no_grad():
                    said = head.logits(drafted_column("eagle3", head, text, column, step))
                nats.append(float(soft_cross_entropy(said, logits[0, column, IDS].softmax(-1))))
        expected += 0.8**step * sum(nats) / max(len(nats), 1)
    embedded, hidden, logits = (F.pad(each, (0, 0, 0, 2)) for each in (embedded, hidden, logits))  # behind its end
    counts = torch.isin(logits.argmax(-1), IDS) & (torch.arange(13) < 11)
    found = training_time_loss(head, embedded, hidden, logits[..., IDS].softmax(-1), counts, 3)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_the_drafted_tokens_are_the_most_frequent_ones() -> None:
    texts = np.array([[5, 5, 2, 7], [7, 1, 5, BLANK]])
    assert frequent_ids(texts, 10, 3).tolist() == [1, 5, 7]


def test_own_text_is_the_targets_own() -> None:
    target = LeanModel(LLAMA)
    asked = own_requests(Corpus(tokens=np.arange(100) % 24), OWN)
    texts = own_texts(target, asked)
    greedy = {request.prompt for request in asked if request.temperature == 0}
    followed = 0
    for text in texts:
        if tuple(text[:4].tolist()) in greedy:
            with torch.no_grad():
                said = LLAMA(torch.from_numpy(text[None])).logits[0].argmax(-1)
            followed += bool(torch.equal(said[3:-1], torch.from_numpy(text[4:])))
    assert followed >= len(greedy) > 0


def test_no_text_is_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.training.own_text.SLOTS", 2)
    asked, shares = own_requests(Corpus(tokens=np.arange(100) % 24), OWN), list[float]()
    first = write_own_texts(lambda: LeanModel(LLAMA), asked, tmp_path, shares.append)

    def unloaded() -> LeanModel:
        raise AssertionError("nothing is left to write")

    assert shares == [0.5, 1.0] and np.array_equal(write_own_texts(unloaded, asked, tmp_path, shares.append), first)


@cache
def place() -> Path:
    folder = Path(KEPT.name)
    save_model(folder / "target", layers=6, seed=0)
    (folder / "text.txt").write_text("def main(): return 1\n" * 40)
    return folder


def request(form: Form, steps: int = 6) -> EagleRequest:
    settings = TrainingSettings(steps=steps, batch=2, sequence_tokens=16, warmup_steps=1, matrix_lr=1e-2, other_lr=1e-2)
    files = (place() / "text.txt",)
    return EagleRequest(
        target=place() / "target", data=files, form=form, settings=settings, own=OWN, test_steps=3, dtype="float32"
    )


@cache
def trained(form: Form) -> tuple[Path, TrainedCard]:
    folder = place() / f"head of {form}"
    return folder, train_drafter(request(form, steps=30), folder, progress=lambda *_: None)


@pytest.mark.parametrize("form", FORMS)
def test_losses_fall_and_the_folder_holds_a_head_of_its_target(form: Form) -> None:
    folder, card = trained(form)
    assert np.mean(card.losses[-5:]) < 0.9 * np.mean(card.losses[:5])
    target = load_model(str(place() / "target"), dtype="float32")
    assert is_head(folder) and not is_head(place() / "target")
    assert isinstance(load_drafter(str(folder), target, dtype="float32"), EagleHead)
    require_drafter_of(folder, identify(place() / "target"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "card.json",
        "card.md",
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("form", FORMS)
def test_the_card_tells_acceptance_by_depth(form: Form) -> None:
    folder, card = trained(form)
    assert card.rounds > 10 and all(0.0 <= chance <= 1.0 for chance in card.acceptance)
    assert json.loads((folder / "card.json").read_text())["losses"] == list(card.losses)
    assert f"{card.tokens_per_round:.2f} tokens a round" in (folder / "card.md").read_text()


def exact_loss(job: EagleTraining, ids: Tensor) -> Tensor:
    """Return the loss of pieces with states as the target computes them, from no file."""
    with torch.no_grad():
        read = job._target.states(readable(ids)[:, :-1])
    states = torch.cat([read[count] for count in dict.fromkeys((*job.reads, 6))], dim=-1)
    return job.loss_of(ids, states, job._target.said(read[-1]).argmax(-1))


@pytest.mark.parametrize("form", FORMS)
def test_what_stands_behind_the_end_of_a_text_does_not_count(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spectune.training.eagle.NOISE", 0.0)
    text = np.random.default_rng(1).integers(24, size=(1, 12))
    job, ids = EagleTraining(request(form), run_of(request(form), text, tmp_path)), torch.from_numpy(text)
    torch.testing.assert_close(exact_loss(job, F.pad(ids, (0, 3), value=BLANK)), exact_loss(job, ids))


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_from_the_files_is_that_of_the_target_s_own_states_in_bfloat16(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spectune.training.eagle.NOISE", 0.0)
    monkeypatch.setattr("spectune.training.states.ROWS", 2)  # several files
    texts = np.random.default_rng(1).integers(24, size=(5, 17))
    texts[3, 9:] = BLANK
    job = EagleTraining(request(form), run_of(request(form), texts, tmp_path))
    assert len(list(tmp_path.glob("states-*"))) == len(list(tmp_path.glob("likeliest-*"))) == 3
    for rows in ([4, 1], [3, 0]):
        found = job.loss(torch.tensor(rows)[:, None])
        assert found.item() == pytest.approx(exact_loss(job, torch.from_numpy(texts[rows])).item(), rel=0.02)
    assert job.loss(torch.tensor([[3]])).item() == pytest.approx(
        exact_loss(job, torch.from_numpy(texts[3:4, :9])).item(), rel=0.02
    )


def test_states_that_are_in_files_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.training.states.ROWS", 2)
    texts = np.random.default_rng(1).integers(24, size=(5, 17))
    asked = request("eagle3")
    first = EagleTraining(asked, run_of(asked, texts, tmp_path)).loss(torch.tensor([[4], [0]]))
    (lost,) = tmp_path.glob("states-*-2.npy")
    lost.unlink()  # stopped there
    read, states = list[Tensor](), FrozenTarget.states

    def noted(target: FrozenTarget, ids: Tensor) -> tuple[Tensor, ...]:
        read.append(ids)
        return states(target, ids)

    monkeypatch.setattr(FrozenTarget, "states", noted)
    torch.manual_seed(0)
    again = EagleTraining(asked, run_of(asked, texts, tmp_path))
    assert [each.tolist() for each in read] == [texts[2:4, :16].tolist()] and first.isfinite()
    EagleTraining(asked, run_of(asked, texts + 0, tmp_path))
    assert len(read) == 1 and again.numbers.shape == (7,)
    EagleTraining(asked, run_of(asked, texts[::-1].copy(), tmp_path))
    assert len(read) == 4  # of other texts


def test_another_head_is_trained_on_the_texts_and_states_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(request("eagle3", steps=2), cache=tmp_path / "cache")
    plain = train_drafter(replace(asked, cache=None), tmp_path / "plain", progress=lambda *_: None)
    first = train_drafter(asked, tmp_path / "first", progress=lambda *_: None)
    (kept,) = (tmp_path / "cache").iterdir()
    assert {path.name.split("-")[0] for path in kept.iterdir()} == {"own", "states", "likeliest"}
    for name in ("own_text.own_texts", "frozen.FrozenTarget.states"):
        monkeypatch.setattr(f"spectune.training.{name}", None)  # nothing is left to do
    longer = replace(asked, settings=replace(asked.settings, steps=4, decay_share=1.0), draft_vocabulary=8)
    train_drafter(longer, tmp_path / "second", progress=lambda *_: None)
    again = train_drafter(asked, tmp_path / "third", progress=lambda *_: None)
    assert again.losses == first.losses == plain.losses
    other = replace(asked, own=replace(asked.own, new_tokens=19))
    with pytest.raises(TypeError, match="NoneType"):
        train_drafter(other, tmp_path / "fourth", progress=lambda *_: None)


class Clock:
    """A clock that goes on by a second whenever it is read."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_a_training_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shares = Clock(), list[float]()
    monkeypatch.setattr("spectune.training.trainer.time", clock)
    monkeypatch.setattr("spectune.training.run.time", clock)
    asked = replace(request("eagle3", steps=1000), hours=60.0 / 3600.0)
    card = train_drafter(
        asked, tmp_path / "head", progress=lambda what, share: shares.append(share) if "head" in what else None
    )
    assert 10 < card.steps == len(card.losses) < 60 and shares[-1] == 1.0 and shares == sorted(shares)
    assert card.seconds > 60.0 and json.loads((tmp_path / "head" / "card.json").read_text())["steps"] == card.steps


def test_a_run_whose_time_goes_by_before_it_trains_says_so(tmp_path: Path) -> None:
    asked = replace(request("eagle3"), hours=1e-9)
    with pytest.raises(TrainingError, match=r"no time was left to train the head .*raise --hours"):
        train_drafter(asked, tmp_path / "head", progress=lambda *_: None)
    assert list((tmp_path / "head" / ".partial").glob("own-*"))
    card = train_drafter(replace(asked, hours=1.0), tmp_path / "head", progress=lambda *_: None)
    assert card.steps == 6


def test_a_checkpoint_of_before_time_was_counted_is_gone_on_with(tmp_path: Path) -> None:
    network, checkpoint = torch.nn.Linear(2, 2), Checkpoint(tmp_path / "run.pt", every=1)
    checkpoint.keep(0.5, network, ())
    kept = torch.load(tmp_path / "run.pt", weights_only=True)
    assert kept.pop("seconds") >= 0.0
    torch.save(kept, tmp_path / "run.pt")
    again = Checkpoint(tmp_path / "run.pt")
    assert again.restore(network, ()) == 1 and 0.0 <= again.seconds < 60.0


def test_a_head_of_another_target_is_refused() -> None:
    with pytest.raises(ModelError, match="was trained for a target with the weights"):
        require_drafter_of(trained("eagle3")[0], replace(identify(place() / "target"), weights_hash="0" * 64))


@pytest.mark.parametrize("form", FORMS)
def test_a_stopped_run_goes_on_to_the_same_head(form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "EVERY", 2)
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (2,))

    def stop(what: str, share: float) -> None:
        if what == "training the head" and share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(request(form), tmp_path / "stopped", progress=stop)
    said: list[float] = []
    card = train_drafter(
        request(form),
        tmp_path / "stopped",
        progress=lambda what, share: said.append(share) if "head" in what else None,
    )
    whole = train_drafter(request(form), tmp_path / "whole", progress=lambda *_: None)
    assert len(said) == 2 and card.losses == whole.losses
    assert identify(tmp_path / "stopped").weights_hash == identify(tmp_path / "whole").weights_hash


def test_another_unfinished_training_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (1,))

    def stop(what: str, share: float) -> None:
        if what.startswith("training"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(request("eagle"), tmp_path, progress=stop)
    with pytest.raises(TrainingError, match="another unfinished training"):
        train_drafter(request("eagle3"), tmp_path, progress=lambda *_: None)


def test_a_public_head_is_read_by_its_tensors_names(tmp_path: Path) -> None:
    wide = tiny_llama(layers=8, seed=3)
    config = head_config(wide, intermediate=40)
    torch.manual_seed(2)
    head = HeadModule("eagle3", config, reads=3, draft_vocabulary=len(IDS))
    t2d = torch.zeros(24, dtype=torch.bool)
    t2d[IDS] = True
    weights = {name: weight.detach().clone().half() for name, weight in head.state_dict().items()}
    save_file(
        weights | {"d2t": IDS - torch.arange(len(IDS)), "t2d": t2d, "embed_tokens.weight": torch.randn(24, 32)},
        tmp_path / "model.safetensors",
    )
    said = {**config.to_dict(), "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(IDS)}
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert head_shape(tmp_path).form == "eagle3" and head_shape(tmp_path).target == ""
    assert load_head(tmp_path, LeanModel(wide)).reads == (2, 4, 5)


@pytest.mark.parametrize("missing", ["fc.weight", "midlayer.hidden_norm.weight"])
def test_a_head_that_lacks_a_tensor_is_refused(missing: str) -> None:
    weights = {name: weight for name, weight in module("eagle3").state_dict().items() if name != missing}
    shape = HeadShape(form="eagle3", config=head_config(LLAMA), reads=(1, 2, 3))
    with pytest.raises(ModelError, match=f"lacks the tensor {missing}"):
        EagleHead(weights, shape, LeanModel(LLAMA))


def test_a_head_for_wider_hidden_states_is_refused() -> None:
    shape = HeadShape(form="eagle", config=head_config(LLAMA), reads=(4,))
    wide = LeanModel(tiny_llama(layers=4, seed=0, hidden=64))
    with pytest.raises(ModelError, match="the hidden states of this target have 64 numbers"):
        EagleHead(module("eagle").state_dict(), shape, wide)


def test_a_head_reads_the_layers_that_were_named(tmp_path: Path) -> None:
    asked = replace(request("eagle3", steps=1), reads=(1, 3))
    card = train_drafter(asked, tmp_path / "head", progress=lambda *_: None)
    assert card.reads == head_shape(tmp_path / "head").reads == (1, 3)


@pytest.mark.parametrize("reads", [(0, 2), (1, 6)])
def test_layers_that_have_no_states_of_their_own_are_refused(tmp_path: Path, reads: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="--reads"):
        train_drafter(replace(request("eagle3", steps=1), reads=reads), tmp_path / "head", progress=lambda *_: None)


def test_a_piece_is_as_long_as_the_training_time_test_needs_where_there_is_one() -> None:
    short = replace(SETTINGS, sequence_tokens=4)
    assert replace(request("eagle"), settings=short).settings == short
    with pytest.raises(TrainingError, match="got 3 of 4; lower --test-steps or raise --piece"):
        replace(request("eagle3"), settings=short)


def test_form_eagle_reads_the_last_state_alone() -> None:
    with pytest.raises(TrainingError, match="take eagle3"):
        replace(request("eagle", steps=1), reads=(1, 3))
