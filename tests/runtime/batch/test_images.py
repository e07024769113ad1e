"""Images of a target that sees: who holds which rows of its table, and how prompts, pixels and folders are read."""

from __future__ import annotations

import gc
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from shapes import PLACEHOLDER, shapes_tokenizer
from torch import Tensor
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerBase

from spectune.errors import DeviceError, ModelError, RequestError
from spectune.planner.records.image_ids import IMAGE_IDS, said
from spectune.planner.records.recording import Text
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.runtime.batch.images import Image, ImagePrompt, ImageTokens, read_image
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, always
from spectune.runtime.engine.generator import Generator
from spectune.runtime.engine.prompts import prompt_ids
from spectune.runtime.models.anatomy import anatomy_of
from spectune.runtime.models.drafter import BlindModel, load_drafter
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.image_cache import ImageCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import load_model
from spectune.runtime.models.regime import CompiledModel
from spectune.runtime.models.tapped import TappedModel
from spectune.runtime.models.vision import Lens, lens_of
from spectune.runtime.plan_choice import plainly

from ...support.repeated import graphed
from ...support.tiny_exits import exit_weights, tiny_exit
from ...support.tiny_llava import SIDE, SIZE, random_image, tiny_llava
from ...support.tiny_models import tiny_llama, tiny_model

WORDS = shapes_tokenizer()
LLAVA = tiny_llava(vocabulary=len(WORDS))


class Holder:
    """Needs images as long as it lives."""


def small_gallery(images: int = 2) -> ImageCache:
    gallery = anatomy_of(LLAVA, images=images).gallery
    assert gallery is not None
    return gallery


def about(*seeds: int) -> Request:
    images = tuple(random_image(seed) for seed in seeds)
    ids = [token for place in range(len(images)) for token in gallery_tokens().ids(place)]
    return Request(prompt=(1, *ids, 2), images=images, max_new_tokens=3)


def gallery_tokens() -> ImageTokens:
    return ImageTokens(placeholder=len(WORDS) - 1, size=SIZE)


def places(request: Request) -> list[int]:
    return sorted({(token - IMAGE_IDS) // SIZE for token in request.prompt if token >= IMAGE_IDS})


def test_an_image_keeps_its_place_and_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gallery, holder, computed = small_gallery(), Holder(), list[int]()
    rows = gallery.eyes.rows

    def counted(images: list[Image]) -> Tensor:
        computed.append(len(images))
        return rows(images)

    monkeypatch.setattr(gallery.eyes, "rows", counted)
    one, other, again = (gallery.shown(about(seed), holder) for seed in (1, 2, 1))
    assert places(one) == places(again) == [0] and places(other) == [1] and len(computed) == 2
    assert not one.images and one.prompt == again.prompt


def test_a_place_is_free_when_nobody_needs_it_and_the_longest_unasked_goes_first() -> None:
    gallery, holder = small_gallery(), Holder()
    one, other = (gallery.shown(about(seed), holder) for seed in (1, 2))
    assert not gallery.has_room([random_image(3)]) and gallery.has_room([random_image(2)])
    with pytest.raises(RequestError, match="2 images are in use and 1 more"):
        gallery.shown(about(3), holder)
    gallery.release(one.prompt, holder)
    gallery.release(other.prompt, holder)
    assert places(gallery.shown(about(1), holder)) == [0], "still there"
    assert places(gallery.shown(about(3), holder)) == [1], "the other one's"


def test_who_is_gone_holds_nothing() -> None:
    gallery, holder = small_gallery(1), Holder()
    gallery.shown(about(1), holder)
    assert not gallery.has_room([random_image(2)])
    del holder
    gc.collect()
    assert gallery.has_room([random_image(2)])


def test_an_image_needed_twice_is_held_until_both_are_done() -> None:
    gallery, holder = small_gallery(1), Holder()
    first, _ = gallery.shown(about(1, 1), holder), gallery.shown(about(1), holder)
    gallery.release(first.prompt, holder)
    assert not gallery.has_room([random_image(2)])
    gallery.release(first.prompt, holder)
    assert gallery.has_room([random_image(2)])


def test_a_prompt_s_placeholders_become_its_images() -> None:
    tokens, (a, b) = gallery_tokens(), WORDS("ab")["input_ids"]
    images = (random_image(1), random_image(2))
    ids = prompt_ids(WORDS, f"a{PLACEHOLDER}b{PLACEHOLDER}", images, tokens)
    assert ids == (a, *tokens.ids(0), b, *tokens.ids(1))
    assert prompt_ids(WORDS, "ab", images, tokens) == (*tokens.ids(0), *tokens.ids(1), a, b)
    with pytest.raises(RequestError, match="1 placeholders and 2 images"):
        prompt_ids(WORDS, f"a{PLACEHOLDER}", images, tokens)
    with pytest.raises(RequestError, match="target sees none"):
        prompt_ids(WORDS, "a", images, None)


def generator(model: LeanModel) -> Generator:
    words: PreTrainedTokenizerBase = WORDS
    return Generator(model, words, {}, always(PLAIN), plainly("a test"))


def prompts(count: int) -> list[str | ImagePrompt]:
    texts: list[str | ImagePrompt] = []
    for index in range(count):
        text = "abc"[index % 3] + "de"
        texts.append(text if index % 3 == 2 else ImagePrompt(text=text, images=(random_image(index),)))
    return texts


def test_a_generator_takes_prompts_with_and_without_images_in_one_batch() -> None:
    model = LeanModel(anatomy_of(LLAVA, images=2))
    together = generator(model).generate_batch(prompts(7), max_new_tokens=9, slots=3, seed=0)
    alone = [generator(LeanModel(LLAVA)).generate(prompt, max_new_tokens=9) for prompt in prompts(7)]
    assert [done.tokens for done in together] == [done.tokens for done in alone]


def test_a_session_s_images_are_free_when_its_requests_have_ended_or_were_cancelled() -> None:
    model = LeanModel(anatomy_of(LLAVA, images=2))
    gallery, session = model.gallery, generator(model).session(slots=3, longest=200)
    assert gallery is not None
    handles = [session.submit(prompt) for prompt in prompts(3)]
    session.step()
    assert not gallery.has_room([random_image(50)])
    for handle in handles:
        session.cancel(handle)
    list(session.events())
    assert gallery.has_room([random_image(50), random_image(51)])


def test_a_request_with_more_images_than_there_is_room_for_is_refused() -> None:
    model = LeanModel(anatomy_of(LLAVA, images=1))
    wide = ImagePrompt(text="a", images=(random_image(1), random_image(2)))
    with pytest.raises(RequestError, match="shows 2 images and there is room for 1"):
        generator(model).generate(wide, max_new_tokens=2)
    session = generator(model).session(slots=2, longest=200)
    (narrow,) = prompts(1)
    handle = session.submit(narrow, max_new_tokens=2)
    with pytest.raises(RequestError, match="show fewer"):
        session.submit(wide, max_new_tokens=2)
    assert [event.handle for event in session.events() if event.completion is not None] == [handle]


def test_a_request_whose_images_have_no_place_beside_another_session_s_waits_for_them() -> None:
    model, prompt = LeanModel(anatomy_of(LLAVA, images=1)), ImagePrompt(text="a", images=(random_image(9),))
    first, second = (generator(model).session(slots=1, longest=200) for _ in range(2))
    handle = first.submit(prompts(1)[0])
    first.step()
    second.submit(prompt)
    with pytest.raises(RequestError, match="images are in use"):
        second.step()
    first.cancel(handle)
    list(first.events())
    done = list(second.events())[-1].completion
    assert done is not None and done.tokens == generator(LeanModel(LLAVA)).generate(prompt).tokens


def test_an_abandoned_stream_frees_its_images() -> None:
    model = LeanModel(anatomy_of(LLAVA, images=1))
    pieces = generator(model).stream(prompts(1)[0], max_new_tokens=20)
    next(pieces)
    del pieces
    gc.collect()
    gallery = model.gallery
    assert gallery is not None and gallery.has_room([random_image(9)])


def test_images_with_the_same_pixels_are_one() -> None:
    assert random_image(1) == random_image(1) != random_image(2) and len({random_image(1), random_image(1)}) == 1


@pytest.mark.parametrize("pixels", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)])
def test_what_is_no_image_is_refused(pixels: np.ndarray) -> None:
    with pytest.raises(RequestError, match="an image is an array of uint8"):
        Image(pixels)


def test_files_of_images_are_read(tmp_path: Path) -> None:
    from PIL import Image as Picture

    image = random_image(4)
    np.save(tmp_path / "a.npy", image.pixels)
    Picture.fromarray(image.pixels).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.npy") == read_image(tmp_path / "a.png") == image
    with pytest.raises(RequestError, match="cannot read an image"):
        read_image(tmp_path / "none.png")


def test_a_lens_scales_the_shorter_side_cuts_the_middle_and_normalises() -> None:
    pixels = np.zeros((SIDE, 2 * SIDE, 3), dtype=np.uint8)
    pixels[:, SIDE // 2 : SIDE // 2 + SIDE] = 255
    lens = Lens(side=SIDE, shortest=SIDE, mean=(0.5, 0.5, 0.5), std=(0.5, 0.25, 0.5))
    seen = lens.pixels(Image(pixels))
    assert seen.shape == (3, SIDE, SIDE) and seen[0].unique().tolist() == [1.0] and seen[1].unique().tolist() == [2.0]
    wide = Lens(side=SIDE, shortest=SIDE).pixels(random_image(3, side=3 * SIDE))
    assert wide.shape == (3, SIDE, SIDE)


def test_what_a_folder_says_of_pixels_is_obeyed(tmp_path: Path) -> None:
    config = LLAVA.config
    assert lens_of(config, tmp_path) == Lens(side=SIDE, shortest=SIDE)
    said_of = {"size": {"shortest_edge": 12}, "image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said_of))
    assert lens_of(config, tmp_path) == Lens(side=SIDE, shortest=12, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0))
    (tmp_path / "preprocessor_config.json").write_text('{"size": 2}')
    with pytest.raises(ModelError, match="scales images to 2 and the tower sees 8"):
        lens_of(config, tmp_path)


@cache
def saved() -> LlavaForConditionalGeneration:
    model = tiny_llava(vocabulary=len(WORDS))
    model.float()
    return model


def test_a_folder_loads_as_a_target_that_sees_and_its_text_drafters_read_the_placeholder(tmp_path: Path) -> None:
    saved().save_pretrained(tmp_path / "target")
    tiny_llama(layers=1, seed=1, vocabulary=len(WORDS)).float().save_pretrained(tmp_path / "small")
    target = load_model(str(tmp_path / "target"), dtype="float32")
    gallery = target.gallery
    assert gallery is not None and gallery.tokens == gallery_tokens()
    assert type(load_drafter(str(tmp_path / "small"), target, dtype="float32")).__name__ == "BlindModel"


def test_a_device_without_room_for_what_becomes_of_a_model_is_named(tmp_path: Path) -> None:
    saved().save_pretrained(tmp_path)
    with pytest.raises(DeviceError, match=r"^cpu has no room for .* in float32: .* choose another --device"):
        load_model(str(tmp_path), dtype="float32", images=10**12)


def test_a_language_model_that_images_are_not_shown_to_is_refused(tmp_path: Path) -> None:
    text = tiny_model("gemma2").config
    vision = CLIPVisionConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    LlavaForConditionalGeneration(
        LlavaConfig(text_config=text, vision_config=vision, image_token_index=3, image_seq_length=4)
    ).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="of kind gemma2, which is not one of llama"):
        load_model(str(tmp_path), dtype="float32")


def test_a_tower_that_gives_another_number_of_vectors_is_told() -> None:
    model = tiny_llava()
    model.config.image_seq_length = 7
    gallery = anatomy_of(model).gallery
    assert gallery is not None
    with pytest.raises(ModelError, match="gives 4 vectors for an image and the configuration says 7"):
        gallery.eyes.rows([random_image(1)])


def test_a_text_model_s_table_is_as_large_as_its_vocabulary() -> None:
    assert len(LeanModel(tiny_llama(layers=1, seed=0)).anatomy.embedding) == 24


def test_replays_of_copying_pass_images_over() -> None:
    """What follows an image follows what stands before it, in a replay as in the runtime."""
    seen = (3, 4, *range(IMAGE_IDS, IMAGE_IDS + SIZE), 5, 6)
    continuation = (3, 4, 5, 6, 7)
    policy = LookupPolicy(length=2)
    found = policy.results_in([Text(prompt=seen, continuation=continuation)])
    plain = policy.results_in([Text(prompt=tuple(said(seen)), continuation=continuation)])
    assert found.accepted.tolist() == plain.accepted.tolist() and found.accepted.sum() > 0


def test_an_exit_of_a_target_that_sees_shares_its_table() -> None:
    target = LeanModel(LLAVA)
    own = tiny_exit(target, exit_weights(32), 2)
    assert own.anatomy.embedding.data_ptr() == target.anatomy.embedding.data_ptr()
    assert own.gallery is target.gallery is not None


@pytest.mark.parametrize("regime", ["graphed", "compiled", "tapped"])
def test_a_target_keeps_its_images_in_whatever_regime_it_runs(regime: str) -> None:
    target = LeanModel(anatomy_of(LLAVA, images=2))
    wrapped: dict[str, CausalModel] = {
        "graphed": graphed(target)[0],
        "compiled": CompiledModel(target),
        "tapped": TappedModel(target, (1,)),
    }
    assert wrapped[regime].gallery is target.gallery is not None


def test_what_sees_no_images_keeps_none() -> None:
    text, seeing = tiny_llama(layers=2, seed=0), LeanModel(LLAVA)
    lean = LeanModel(text)
    models: list[CausalModel] = [lean, GenericModel(text), graphed(lean)[0], BlindModel(seeing, placeholder=0)]
    assert [model.gallery for model in models] == [None] * 4
