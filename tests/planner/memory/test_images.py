"""What decoding by a target that sees takes at its peak, held to what torch's allocator hands out."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from spectune.errors import PlanError
from spectune.planner.memory import eyesight
from spectune.planner.memory.eyesight import Eyesight
from spectune.planner.memory.peak import load_of, peak_bytes
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.footprint import Footprint, footprint_of
from spectune.planner.records.image_ids import IMAGE_IDS
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.identity import identify, identify_config
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.anatomy import anatomy_of
from spectune.runtime.models.drafter import BlindModel
from spectune.runtime.models.eyesight import eyesight_of, seeing_config
from spectune.runtime.models.image_cache import IMAGES
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.parts import architecture_of, footprints_of

from ...support.allocator import count_bytes
from ...support.decoded_runs import run
from ...support.tiny_llava import PATCH, random_image, tiny_llava
from ...support.tiny_models import tiny_llama

SIDE, WIDTH, VOCABULARY = 24, 64, 900
IMAGE = (SIDE // PATCH) ** 2  # tokens of an image
POLICIES: Sequence[TreePolicy] = (
    PlainPolicy(),
    ChainPolicy(length=4),
    Eagle2Policy(verify_tokens=20, depth=3, top_k=6),
)
NEW_TOKENS = 8


@dataclass(frozen=True)
class Pair:
    """A target that sees and a drafter that does not, what the allocator handed out for each, and what is told."""

    target: LeanModel
    drafter: BlindModel
    held_bytes: tuple[int, int]
    footprints: tuple[Footprint, Footprint]


class Holder:
    """Needs images as long as it lives."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shelf")


@cache
def pair(shelf: Path, dtype: str, stored: str = "float32", width: int = WIDTH, is_tied: bool = False) -> Pair:
    folder = shelf / f"{dtype}-{stored}-{width}-{is_tied}"
    llava = tiny_llava(layers=3, vocabulary=VOCABULARY, hidden=128, side=SIDE, width=width)
    llama = tiny_llama(layers=1, seed=1, vocabulary=VOCABULARY, hidden=128)
    if is_tied:
        llava.lm_head.weight = llava.model.language_model.embed_tokens.weight
        llava.config.tie_word_embeddings = llava.config.get_text_config().tie_word_embeddings = True
    for name, model in {"target": llava, "small": llama}.items():
        model.to(getattr(torch, stored)).save_pretrained(folder / name)
        model.to(getattr(torch, dtype))
    targets: list[LeanModel] = []
    smalls: list[LeanModel] = []

    def build() -> None:
        targets.append(LeanModel(anatomy_of(deepcopy(llava))))
        gc.collect()

    def build_small() -> None:
        smalls.append(LeanModel(deepcopy(llama)))
        gc.collect()

    held = (count_bytes(build).left_bytes, count_bytes(build_small).left_bytes)
    target, small = identify(folder / "target"), identify(folder / "small")
    told = footprints_of(target, [small], dtype)
    drafter = BlindModel(smalls[0], placeholder=VOCABULARY - 1)
    return Pair(targets[0], drafter, held, (told[target.key], told[small.key]))


def about(seed: int) -> Request:
    """Return a request with one image that no other one has."""
    ids = range(IMAGE_IDS, IMAGE_IDS + IMAGE)
    shown = (random_image(seed, SIDE),)
    return Request(prompt=(1, 2, *ids, 3, 4), images=shown, max_new_tokens=NEW_TOKENS, seed=seed)


def show(have: Pair, requests: Sequence[Request], holder: object) -> list[Request]:
    gallery = have.target.gallery
    assert gallery is not None
    return [gallery.shown(request, holder) for request in requests]


def measured(have: Pair, policy: TreePolicy, batch: int, temperature: float = 0.0) -> tuple[int, int]:
    """Return the allocator's peak of showing images and decoding behind them, and what is told."""
    requests = [replace(about(seed), temperature=temperature) for seed in range(2 * batch)]
    load = load_of(Cell(batch=batch, context=len(requests[0].prompt) + NEW_TOKENS), policy)
    drafts = not isinstance(policy, PlainPolicy)

    def decode() -> None:
        holder = Holder()
        shown = show(have, requests, holder)
        drafters = {"it": ModelDrafter(have.drafter, slots=batch, capacity=load.capacity)} if drafts else {}
        setup = always(StepConfig(policy=policy, drafter="it" if drafts else None))
        run(have.target, shown, setup, drafters, slots=batch, capacity=load.capacity)

    target, small = have.footprints
    told = peak_bytes(target, [small] * drafts, load, device_kind="cpu", is_sampled=temperature > 0)
    return sum(have.held_bytes[: 1 + drafts]) + count_bytes(decode).peak_bytes, told


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", POLICIES, ids=["plain", "chain", "tree"])
def test_the_peak_of_a_target_that_sees_is_what_torchs_allocator_hands_out(
    shelf: Path, policy: TreePolicy, batch: int
) -> None:
    seen, told = measured(pair(shelf, "float32"), policy, batch)
    assert told == pytest.approx(seen, rel=0.05)


def test_the_peak_of_sampled_trees_behind_images_is_what_the_allocator_hands_out(shelf: Path) -> None:
    seen, told = measured(pair(shelf, "float32"), POLICIES[-1], 3, temperature=0.8)
    assert told == pytest.approx(seen, rel=0.05)


@pytest.mark.parametrize(
    ("dtype", "stored", "is_tied"),
    [("bfloat16", "bfloat16", False), ("bfloat16", "float32", True), ("float32", "bfloat16", True)],
)
def test_a_token_table_with_images_behind_it_is_no_output_head(
    shelf: Path, dtype: str, stored: str, is_tied: bool
) -> None:
    seen, told = measured(pair(shelf, dtype, stored, is_tied=is_tied), POLICIES[-1], 1)
    assert told == pytest.approx(seen, rel=0.05)


def test_a_tied_head_is_counted_beside_the_table_on_every_device(shelf: Path) -> None:
    tied, apart = (pair(shelf, "float32", is_tied=is_tied).footprints[0] for is_tied in (True, False))
    assert tied == apart and tied.tied_head_bytes == 0


def test_what_is_held_is_told_to_a_hundredth_and_most_of_what_text_alone_has_not_is_the_images(shelf: Path) -> None:
    have = pair(shelf, "float32")
    told, text = have.footprints[0], architecture_of(identify(shelf / "float32-float32-64-False" / "target"))
    assert text is not None
    alone = footprint_of(text, "float32")
    assert told.weight_bytes + told.table_bytes == pytest.approx(have.held_bytes[0], rel=0.01)
    assert told.weight_bytes - alone.weight_bytes > IMAGES * IMAGE * 128 * 4 > 0.2 * told.weight_bytes


def test_looking_at_an_image_takes_what_is_told(shelf: Path) -> None:
    have, holder = pair(shelf, "float32", width=512), Holder()
    looking = count_bytes(lambda: show(have, [about(100)], holder)).peak_bytes
    assert have.footprints[0].looking_bytes == pytest.approx(looking, rel=0.05)
    assert count_bytes(lambda: show(have, [about(100)], holder)).peak_bytes == 0, "it is looked at once"


def test_a_wide_tower_decides_the_peak_of_short_texts(shelf: Path) -> None:
    have = pair(shelf, "float32", width=512)
    load, (target, _) = load_of(Cell(batch=1, context=8), PlainPolicy()), have.footprints
    blind = replace(target, looking_bytes=0)
    peaks = [peak_bytes(each, [], load, device_kind="cpu", is_sampled=False) for each in (target, blind)]
    assert peaks[0] - peaks[1] > 0.5 * target.looking_bytes


def test_as_many_images_are_counted_as_the_runtime_keeps() -> None:
    assert eyesight.IMAGES == IMAGES


def test_a_configuration_that_leaves_out_what_is_usual_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    said = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}, "image_seq_length": 576}
    (tmp_path / "config.json").write_text(json.dumps(said))
    config = seeing_config(tmp_path)
    assert config is not None
    told = eyesight_of(config)
    assert told.image_tokens == 576 and 0.32e9 < told.parameters < 0.33e9, "LLaVA 1.5: CLIP L/14 at 336, and two layers"
    known = architecture_of(identify_config(tmp_path / "config.json", parameters=1))
    assert known is not None and (known.hidden, known.layers, known.vocabulary) == (4096, 32, 32064)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("", "image_seq_length", 36),  # the control: as it was written
        ("vision_config", "image_size", [SIDE, SIDE]),
        ("vision_config", "patch_size", [PATCH, PATCH]),
        ("vision_config", "hidden_size", [WIDTH]),
        ("vision_config", "patch_size", 0),
        ("vision_config", "patch_size", -PATCH),
        ("vision_config", "num_attention_heads", 0),
        ("", "image_seq_length", [36]),
        ("", "vision_config", [1]),
    ],
)
def test_what_sees_with_sizes_that_none_has_takes_an_unknown_memory(
    part: str, name: str, value: object, shelf: Path, tmp_path: Path
) -> None:
    pair(shelf, "float32")
    said = json.loads((shelf / f"float32-float32-{WIDTH}-False" / "target" / "config.json").read_text())
    own = said[part] if part else said
    is_known = own[name] == value
    own[name] = value
    (tmp_path / "config.json").write_text(json.dumps(said))
    target = identify_config(tmp_path / "config.json", parameters=1)
    assert (target.key in footprints_of(target, [], "float32")) == is_known


def test_a_model_of_text_alone_sees_nothing(shelf: Path) -> None:
    pair(shelf, "float32")
    assert seeing_config(shelf / "float32-float32-64-False" / "small") is None


def test_eyes_without_weights_are_refused() -> None:
    with pytest.raises(PlanError, match="parameters >= 1"):
        Eyesight(parameters=0, image_tokens=4, looking_numbers=0)
