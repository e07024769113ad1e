"""What decoding beside a target takes at its peak, drafter by drafter: told from files, held to the allocator."""

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
from spectune.planner.inputs import PlanInputs
from spectune.planner.memory.heads import FRAME_GROUPS, DrafterParts, footprint_beside
from spectune.planner.memory.peak import load_of, memory_bytes, peak_bytes
from spectune.planner.memory.recycling import PIECE_TOKENS
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.beside import BlockMemory
from spectune.planner.records.footprint import Footprint, footprint_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.configuration import read_architecture
from spectune.profiler.identity import identify
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.head import model_drafter
from spectune.runtime.models import ctc, recycled
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for
from spectune.tuning.parts import drafter_parts, footprints_of
from spectune.tuning.plan import solve_plan
from spectune.tuning.request import PlanRequest

from ...support.allocator import count_bytes
from ...support.decoded_runs import run
from ...support.drafter_folders import KINDS, Kind, counted_drafter, save_drafter
from ...support.pairwise import crossed
from ...support.synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, inputs, record, texts
from ...support.tiny_models import tiny_llama

FAMILY = Path(__file__).parents[3] / "demo" / "models"
POLICIES: Sequence[TreePolicy] = (ChainPolicy(length=4), Eagle2Policy(verify_tokens=20, depth=3, top_k=6))
WIDE, ONE = Eagle2Policy(verify_tokens=8, depth=2, top_k=8), ChainPolicy(length=1)  # more is drafted than verified
NEW_TOKENS = 8
LONG = {"vocabulary": 300, "prompt": 400}  # prompts are the most that is fed
SHORT = {"vocabulary": 3000, "prompt": 40}  # logits are


@dataclass(frozen=True)
class Pair:
    """A target and a drafter of it, what the allocator handed out for both, and what is told of them."""

    target: LeanModel
    drafter: CausalModel
    held_bytes: int
    footprints: tuple[Footprint, Footprint]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shelf")


@cache
def pair(shelf: Path, kind: Kind, dtype: str, vocabulary: int) -> Pair:
    place = shelf / f"{kind}-{dtype}-{vocabulary}"
    llama = tiny_llama(layers=4, seed=1, vocabulary=vocabulary, hidden=128)
    folder = save_drafter(kind, llama, place)
    llama.float().save_pretrained(place / "target")
    source, models = llama.to(getattr(torch, dtype)), []

    def build() -> None:
        models.append(LeanModel(deepcopy(source)))
        gc.collect()

    held = count_bytes(build).left_bytes
    drafter, own = counted_drafter(folder, models[0], dtype)
    target, head = identify(place / "target"), identify(folder)
    told = footprints_of(target, [head], dtype)
    return Pair(models[0], drafter, held + own, (told[target.key], told[head.key]))


def measured(have: Pair, policy: TreePolicy, batch: int, prompt: int, temperature: float) -> tuple[int, int]:
    """Return the allocator's peak of decoding, and what is told."""
    load = load_of(Cell(batch=batch, context=prompt + NEW_TOKENS), policy)
    requests = [
        Request(prompt=(7,) * prompt, max_new_tokens=NEW_TOKENS, temperature=temperature, seed=seed)
        for seed in range(2 * batch)  # slots are filled again
    ]

    def decode() -> None:
        drafter = model_drafter(have.drafter, slots=batch, capacity=load.capacity)
        setup = always(StepConfig(policy=policy, drafter="it"))
        target = tapped_for(have.target, [have.drafter])
        run(target, requests, setup, {"it": drafter}, slots=batch, capacity=load.capacity)

    target, head = have.footprints
    told = peak_bytes(target, [head], load, device_kind="cpu", is_sampled=temperature > 0)
    return have.held_bytes + count_bytes(decode).peak_bytes, told


@crossed(kind=KINDS, policy=POLICIES, batch=(1, 3))
def test_the_peak_beside_a_target_is_what_torchs_allocator_hands_out(
    shelf: Path, kind: Kind, policy: TreePolicy, batch: int
) -> None:
    have = pair(shelf, kind, "float32", SHORT["vocabulary"])
    seen, told = measured(have, policy, batch, SHORT["prompt"], 0.0)
    assert told == pytest.approx(seen, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_of_long_prompts_is_what_the_allocator_hands_out(shelf: Path, kind: Kind) -> None:
    have = pair(shelf, kind, "float32", LONG["vocabulary"])
    seen, told = measured(have, POLICIES[1], 1, LONG["prompt"], 0.0)
    assert told == pytest.approx(seen, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_of_sampled_trees_is_what_the_allocator_hands_out(shelf: Path, kind: Kind) -> None:
    have = pair(shelf, kind, "float32", SHORT["vocabulary"])
    seen, told = measured(have, POLICIES[1], 3, SHORT["prompt"], 0.8)
    assert told == pytest.approx(seen, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_what_drafting_alone_has_alive_is_what_the_allocator_hands_out(shelf: Path, kind: Kind) -> None:
    have = pair(shelf, kind, "float32", SHORT["vocabulary"])
    policy = ONE if kind in ("medusa", "specformer") else WIDE
    seen, told = measured(have, policy, 8, 8, 0.0)
    assert told - have.held_bytes == pytest.approx(seen - have.held_bytes, rel=0.05)


def test_what_looking_up_a_wide_layer_in_a_long_text_has_alive_is_what_the_allocator_hands_out(shelf: Path) -> None:
    have = pair(shelf, "recycling", "float32", LONG["vocabulary"])
    wide, narrow = (Eagle2Policy(verify_tokens=4, depth=2, top_k=width) for width in (200, 2))
    seen, told = measured(have, wide, 3, LONG["prompt"], 0.0)
    assert told - have.held_bytes == pytest.approx(seen - have.held_bytes, rel=0.05)
    assert measured(have, narrow, 3, LONG["prompt"], 0.0)[1] < 0.9 * told, "nodes are looked up in all of the text"


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_in_bfloat16_is_what_the_allocator_hands_out(shelf: Path, kind: Kind) -> None:
    have = pair(shelf, kind, "bfloat16", SHORT["vocabulary"])
    seen, told = measured(have, POLICIES[1], 3, SHORT["prompt"], 0.0)
    assert told == pytest.approx(seen, rel=0.05)


def test_successors_are_chosen_from_as_many_tokens_at_once_as_the_runtime_does() -> None:
    assert PIECE_TOKENS == recycled.PIECE


def test_no_more_successors_are_kept_than_there_are_tokens() -> None:
    target = read_architecture(FAMILY / "target")
    told = {
        successors: footprint_beside(
            DrafterParts(form="recycling", target=target, sizes={}, successors=successors), "float32"
        )
        for successors in (8, target.vocabulary, 10 * target.vocabulary)
    }
    assert told[8].kv_bytes_per_token == 8 + 8 * 12 and told[8].weight_bytes == 0
    assert told[10 * target.vocabulary] == told[target.vocabulary] != told[8]


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("prompt", [8, SHORT["prompt"]])
def test_the_peak_of_verifying_from_an_exit_is_what_the_allocator_hands_out(
    shelf: Path, prompt: int, batch: int, dtype: str
) -> None:
    have = pair(shelf, "exit", dtype, SHORT["vocabulary"])
    seen, told = measured(have, ResumedPolicy(draft=ChainPolicy(length=20)), batch, prompt, 0.0)
    assert told == pytest.approx(seen, rel=0.05)


def test_the_states_that_an_exit_keeps_are_counted(shelf: Path) -> None:
    """What verifying from them takes more, to the byte: three sequences, 21 tokens, 128 numbers of 4 bytes."""
    have, chain = pair(shelf, "exit", "float32", SHORT["vocabulary"]), ChainPolicy(length=20)
    whole, resumed = (measured(have, policy, 3, 8, 0.0) for policy in (chain, ResumedPolicy(draft=chain)))
    assert resumed[1] - whole[1] == 3 * 21 * 128 * 4
    assert resumed[0] - whole[0] == resumed[1] - whole[1]


def test_frames_have_room_for_as_many_groups_as_the_runtime_makes() -> None:
    assert FRAME_GROUPS == ctc.GROUPS


@pytest.mark.parametrize("name", ["eagle3", "medusa", "ctc", "specformer"])
def test_the_demo_s_heads_are_known_by_their_files(name: str) -> None:
    target, head = identify(FAMILY / "target"), identify(FAMILY / name)
    told = footprints_of(target, [head], "bfloat16")[head.key]
    ids = 8 * 1024 + 4096 + 1024 if name == "eagle3" else 0  # of the reduced vocabulary; the file's are no bfloat16
    assert told.beside is not None
    assert 2 * head.parameters - 2 * ids <= told.weight_bytes <= 2 * head.parameters + ids


def test_a_head_whose_configuration_was_changed_is_not_known() -> None:
    target, head = identify(FAMILY / "target"), identify(FAMILY / "medusa")
    assert head.key not in footprints_of(target, [replace(head, config_hash="0" * 64)], "float32")
    assert head.key not in footprints_of(replace(target, location=""), [head], "float32")


def test_a_block_of_a_kind_that_is_not_counted_is_not_known(tmp_path: Path) -> None:
    target, medusa = identify(FAMILY / "target"), FAMILY / "medusa"
    (tmp_path / "model.safetensors").write_bytes((medusa / "model.safetensors").read_bytes())
    said = json.loads((medusa / "config.json").read_text())
    said["spectune"]["kind"] = "else"
    (tmp_path / "config.json").write_text(json.dumps(said))
    other = identify(tmp_path)
    assert other.key not in footprints_of(target, [other], "float32")


def test_a_form_without_its_tensors_is_refused() -> None:
    parts = DrafterParts(form="medusa", target=read_architecture(FAMILY / "target"), sizes={"heads.weight": (4, 4)})
    with pytest.raises(PlanError, match=r"lacks the tensor 'outs.weight'"):
        footprint_beside(parts, "float32")


def test_a_block_drafter_says_something() -> None:
    with pytest.raises(PlanError, match="in 1 place or more"):
        BlockMemory(places=0, row_bytes=1, made_bytes=1, kept_bytes=1)


@cache
def planned(name: str, role: str) -> PlanInputs:
    """Return made up inputs whose drafter takes as much memory as one of the demo's heads, as they stand beside it."""
    spoken = Language(3)
    found = inputs(record(SkilledDrafter(spoken, 0.8), texts(spoken, 6, lambda text: 16), every_node(2, 3)))
    (drafter,), whole = found.drafters, read_architecture(FAMILY / "target")
    parts = drafter_parts(FAMILY / name, whole)
    assert parts is not None
    told = {TARGET.key: footprint_of(whole, "float32"), drafter.model.key: footprint_beside(parts, "float32")}
    head = replace(drafter, surface=replace(drafter.surface, role=role))
    return replace(found, drafters=(head,), footprints=told)


@pytest.mark.parametrize(
    ("name", "role"), [("eagle3", "head"), ("medusa", "block"), ("ctc", "block"), ("recycling", "block")]
)
def test_a_head_competes_where_it_fits_and_is_left_out_where_it_does_not(name: str, role: str) -> None:
    found, cell = planned(name, role), Cell(batch=1, context=30)
    asked = PlanRequest(
        target=TARGET, device=DEVICE, dtype="float32", workload="made up", batches=(1,), contexts=(30,), trials=2
    )
    (free,) = solve_plan(found, asked).cells
    assert free.drafter == "small" and free.memory_bytes is not None
    (fits,) = solve_plan(found, replace(asked, max_memory_bytes=free.memory_bytes)).cells
    assert (fits.drafter, fits.memory_bytes) == ("small", free.memory_bytes)
    alone, head = memory_bytes(cell, PlainPolicy(), None, found), found.footprints[found.drafters[0].model.key]
    assert alone is not None
    (left,) = solve_plan(found, replace(asked, max_memory_bytes=alone + head.weight_bytes // 4)).cells
    assert left.drafter in (None, "lookup") and {other.drafter for other in left.alternatives} <= {None, "lookup"}
