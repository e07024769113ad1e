"""The task that needs eyes: its parts are apart, its model learns to see, and an exit of it learns from images."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import shapes_models
import torch
from shapes import COLOURS, PLACES, SHAPES, Scene, scenes, shapes_tokenizer
from shapes_models import IGNORED, captioned, prepare

from spectune.errors import RequestError, TrainingError
from spectune.planner.lossy.quality import ends_with
from spectune.planner.records.image_ids import IMAGE_IDS
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.prompts import answers_of, read_prompts
from spectune.runtime.batch.images import ImagePrompt, read_image
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.head import ExitDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.generator import Generator
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.exit import ExitModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model, load_pretrained, load_tokenizer
from spectune.runtime.plan_choice import plainly
from spectune.training.exit import ExitCard, ExitRequest, ExitTraining, SeenStates
from spectune.training.own_text import BLANK, OwnTextSettings, is_said, together
from spectune.training.prompts import own_prompts
from spectune.training.run import train_drafter
from spectune.training.trainer import TrainingSettings

from ..support.tiny_runs import run_of

KEPT = tempfile.TemporaryDirectory()  # of what is trained once; gone with the process
OWN = OwnTextSettings(texts=6, new_tokens=12)
FEW = TrainingSettings(steps=3, batch=4, sequence_tokens=1, warmup_steps=1)


@cache
def place() -> Path:
    """Return a folder with a model that has hardly learned anything, and prompts for it."""
    folder = Path(KEPT.name)
    with pytest.MonkeyPatch.context() as patch:
        for name, count in (("PICTURES", 20), ("PROMPTS", 8), ("EXAM", 3)):
            patch.setattr(shapes_models, name, count)
        shapes_models.train_model(folder / "target", FEW, pictures=20)
        prepare(folder, FEW)
    return folder


def request(**changes: object) -> ExitRequest:
    settings = TrainingSettings(steps=20, batch=4, sequence_tokens=64, warmup_steps=1)
    asked = ExitRequest(
        target=place() / "target", data=(place() / "prompts.jsonl",), exit_layer=2, settings=settings, own=OWN,
        dtype="float32",
    )  # fmt: skip
    return replace(asked, **changes)  # type: ignore[arg-type]


def test_every_scene_is_of_one_part_and_every_word_is_learned() -> None:
    whole = [Scene(colour=c, shape=s, place=p) for c in COLOURS for s in SHAPES for p in PLACES]
    held = [scene for scene in whole if scene.is_held_out]
    assert 0 < len(held) < len(whole) / 4
    learned = [scene for scene in whole if not scene.is_held_out]
    assert {(s.colour, s.shape) for s in learned} == {(c, s) for c in COLOURS for s in SHAPES}
    assert {s.place for s in learned} == set(PLACES)
    assert all(scene.is_held_out for scene in islice(scenes(3, is_held_out=True), 30))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_picture_shows_its_colour_where_its_place_says(shape: str) -> None:
    image = Scene(colour="red", shape=shape, place="bottom left").draw(np.random.default_rng(1))
    red = np.array(image.pixels[:, :, 0] > 150)
    assert np.sum(red[32:, :16]) > 60 and not red[:30].any() and not red[:, 18:].any()


def test_what_is_to_be_said_is_the_caption_behind_the_picture() -> None:
    data, words = captioned(3, seed=5), shapes_tokenizer()
    told = [token for token in data.wanted[0].tolist() if token != IGNORED]
    assert told[-1] == 0 and words.decode(told[:-1])[-1] == "."
    assert data.ids[0].tolist().count(words.convert_tokens_to_ids("<image>")) == shapes_models.IMAGE_TOKENS


def test_training_is_deterministic_and_its_losses_fall(tmp_path: Path) -> None:
    settings = replace(FEW, steps=12, matrix_lr=1e-2, other_lr=1e-2)
    one, other = (shapes_models.train_model(tmp_path / name, settings, pictures=20) for name in "ab")
    assert one == other and one[-1] < 0.8 * one[0]


def test_prompts_with_images_are_read_with_their_files() -> None:
    prompts = own_prompts(request().target, request().data, OWN)
    assert (len(prompts.learned), len(prompts.judged)) == (6, 1)
    assert all(prompt.images[0].pixels.shape == (48, 48, 3) for prompt in prompts.learned)
    assert len(answers_of(read_prompts(place() / "exam.jsonl"))) == 3


def test_no_more_prompts_judge_than_a_target_keeps_the_images_of(tmp_path: Path) -> None:
    picture = str(sorted((place() / "prompts").iterdir())[0])
    line = json.dumps({"prompt": "two", "image": [picture] * 2})
    (tmp_path / "two.jsonl").write_text(f"{line}\n" * 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spectune.training.prompts.IMAGES", 3)
        assert len(own_prompts(place() / "target", [tmp_path / "two.jsonl"], OWN).judged) == 1
    assert len(own_prompts(place() / "target", [tmp_path / "two.jsonl"], OWN).judged) == 2


@pytest.mark.parametrize("line", ['{"prompt": "a", "image": 3}', '{"messages": [], "image": "a.npy"}'])
def test_lines_whose_image_is_none_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(RequestError, match="image"):
        read_prompts(tmp_path / "a.jsonl")


def test_the_states_learned_from_are_those_of_transformers_own_reading() -> None:
    """Rows with images of their own, one of them padded: what counts is what Llava itself makes of the pixels."""
    job = ExitTraining(request(), run_of(request(), np.arange(40).reshape(2, 20), place()))
    asked = own_prompts(request().target, request().data, OWN).learned[:2]
    rows = [[*asked[0].prompt, 5, 6, 7, BLANK], [*asked[1].prompt, 8, 9, 10, 11]]
    ids = torch.tensor(rows)
    with torch.no_grad():
        vectors = SeenStates(job.target.model, job._folder).vectors(ids, [one.images for one in asked])
        states, logits = job.target.read(inputs_embeds=vectors)
    mark = int(job.target.model.config.image_token_index)
    for row, own in enumerate(asked):
        length = int((ids[row] != BLANK).sum())
        plain = torch.where(ids[row, :length] >= IMAGE_IDS, mark, ids[row, :length])
        pixels = SeenStates(job.target.model, job._folder)._eyes.pixels(list(own.images))
        with torch.no_grad():
            known = job.target.model(input_ids=plain[None], pixel_values=pixels, output_hidden_states=True)
        torch.testing.assert_close(logits[row, :length], known.logits[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states[2][row, :length], known.hidden_states[2][0], rtol=1e-4, atol=1e-4)
    assert int(is_said(ids).sum()) == sum(len(row) for row in rows) - 2 * shapes_models.IMAGE_TOKENS - 1


@cache
def trained() -> tuple[Path, ExitCard]:
    folder = place() / "exit"
    card = train_drafter(request(), folder, progress=lambda *_: None)
    assert isinstance(card, ExitCard)
    return folder, card


def test_an_exit_learns_from_images_and_drafts_behind_them_without_changing_the_output() -> None:
    folder, card = trained()
    assert np.mean(card.losses[-5:]) < np.mean(card.losses[:5]) and card.rounds > 0
    target = load_model(str(place() / "target"), dtype="float32")
    drafter, gallery = load_drafter(str(folder), target, dtype="float32"), target.gallery
    assert isinstance(drafter, ExitModel) and gallery is not None
    asked = own_prompts(request().target, request().data, OWN).judged
    texts = []
    for setup in (PLAIN, StepConfig(policy=ChainPolicy(length=3), drafter="it")):
        drafters = {"it": ExitDrafter(drafter, slots=1, capacity=80)}
        decoder = Engine(target, drafters, always(setup), slots=1, capacity=80)
        sequence = decoder.admit(gallery.shown(asked[0], decoder))
        while decoder.running:
            assert not decoder.step().faults
        texts.append(sequence.emitted)
    assert texts[0] == texts[1] and len(texts[0]) > 2


def test_an_image_longer_than_a_piece_is_read_whole_with_what_is_said_behind_it(tmp_path: Path) -> None:
    short = replace(request().settings, steps=1, sequence_tokens=8)
    card = train_drafter(request(settings=short), tmp_path / "exit", progress=lambda *_: None)
    assert isinstance(card, ExitCard)
    assert card.losses[0] == trained()[1].losses[0] and card.sequence_tokens > shapes_models.IMAGE_TOKENS


def test_a_run_that_stopped_goes_on_with_the_texts_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, written = place() / "stopped", list[int]()
    with monkeypatch.context() as patch:
        patch.setattr("spectune.training.exit.save_exit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_drafter(request(), folder, progress=lambda *_: None)
    monkeypatch.setattr("spectune.training.own_text.own_texts", lambda *_: written.append(1))
    card = train_drafter(request(), folder, progress=lambda *_: None)
    assert not written and card.losses == trained()[1].losses


def test_a_text_beside_prompts_with_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("a book")
    with pytest.raises(TrainingError, match=r"beside them lies .*book\.txt; leave it out"):
        train_drafter(
            request(data=(*request().data, tmp_path / "book.txt")), tmp_path / "exit", progress=lambda *_: None
        )


@pytest.mark.parametrize(("images", "texts"), [(0, 64), (1, 32), (3, 21), (64, 1), (65, 1)])
def test_as_many_texts_are_written_at_once_as_there_is_room_for_the_images_of(images: int, texts: int) -> None:
    picture = read_image(sorted((place() / "prompts").iterdir())[0])
    assert together([Request(prompt=(1,), images=(picture,) * images, max_new_tokens=1)]) == texts


def test_pictures_that_were_drawn_anew_are_not_gone_on_with(tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        if what.startswith("training"):
            raise KeyboardInterrupt

    shutil.copytree(place() / "prompts", tmp_path / "prompts")
    shutil.copy(place() / "prompts.jsonl", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_drafter(request(data=(tmp_path / "prompts.jsonl",)), tmp_path / "exit", progress=stop)
    first, second = sorted((tmp_path / "prompts").iterdir())[:2]
    shutil.copy(second, first)
    with pytest.raises(TrainingError, match="began with other images, tokens of prompts"):
        train_drafter(request(data=(tmp_path / "prompts.jsonl",)), tmp_path / "exit", progress=lambda *_: None)


def test_one_prompt_is_too_few(tmp_path: Path) -> None:
    first = (place() / "prompts.jsonl").read_text().splitlines()[0]
    (place() / "one.jsonl").write_text(first)
    with pytest.raises(TrainingError, match="too few"):
        train_drafter(request(data=(place() / "one.jsonl",)), tmp_path / "exit", progress=lambda *_: None)


@pytest.mark.slow
def test_a_trained_model_says_all_that_is_seen_of_scenes_it_never_saw(tmp_path: Path) -> None:
    """Colour, shape and place make 162 answers, so chance is under 1 %; a caption with one of them wrong is wrong."""
    prepare(tmp_path)
    model = load_model(str(tmp_path / "target"), dtype="float32")
    generator = Generator(model, load_tokenizer(str(tmp_path / "target")), {}, always(PLAIN), plainly("a test"))
    done = generator.generate_batch(list(exam_of(tmp_path)), max_new_tokens=60)
    answers = answers_of(read_prompts(tmp_path / "exam.jsonl"))
    right = [ends_with(text.text, answer) for text, answer in zip(done, answers, strict=True)]
    assert len(right) == shapes_models.EXAM and np.mean(right) > 0.9


def exam_of(folder: Path) -> Iterator[ImagePrompt]:
    for prompt in read_prompts(folder / "exam.jsonl"):
        yield ImagePrompt(text=prompt.text, images=tuple(read_image(path) for path in prompt.images))


def test_the_folder_loads_as_it_was_trained() -> None:
    model = load_pretrained(str(place() / "target"), dtype="float32")
    assert isinstance(load_model(str(place() / "target"), dtype="float32"), LeanModel)
    assert model.config.model_type == "llava"
