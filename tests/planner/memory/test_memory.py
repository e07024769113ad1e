"""Memory of a plan's cells against a decoder's own caches, and what is unknown stays unknown."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from spectune.errors import PlanError
from spectune.planner.inputs import PlanInputs
from spectune.planner.memory.peak import PIECE, Load, load_of, memory_bytes, peak_bytes, plan_bytes, workspace_bytes
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.records.footprint import (
    BEYOND,
    LEAN_FAMILIES,
    LEAST_HALVED,
    MOST_ROWS,
    MOST_WIDENED,
    Footprint,
    footprint_of,
)
from spectune.planner.records.room import READ_TOGETHER
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import _note_of_memory
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.records.configuration import architecture_of
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models import projection
from spectune.runtime.models.anatomy import DRAFT_DEPTH, FAMILIES
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.layout import PREFILL_TOKENS
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring.decoding import room_for

from ...support.allocator import count_bytes
from ...support.decoded_runs import POLICIES, drafter_for, drafting, random_requests, run
from ...support.plans import plain_cell
from ...support.synthetic import DEVICE, TARGET, Language, SkilledDrafter, every_node, inputs, model, record, texts
from ...support.tiny_models import perturbed, tiny_llama
from ...support.watched_rounds import drafting_cell

CELL = Cell(batch=3, context=100)
SPOKEN = Language(3)
INPUTS = inputs(record(SkilledDrafter(SPOKEN, 0.8), texts(SPOKEN, 3, lambda text: 6), every_node(1, 2)))
LARGE, SMALL = Footprint(weight_bytes=1000, kv_bytes_per_token=10), Footprint(weight_bytes=100, kv_bytes_per_token=1)
KNOWN = replace(INPUTS, footprints={TARGET.key: LARGE, model("small").key: SMALL})


def test_plain_decoding_keeps_the_target_and_its_cache() -> None:
    assert memory_bytes(CELL, PlainPolicy(), None, KNOWN) == 1000 + 3 * (100 + 2) * 10


def test_a_drafter_adds_its_weights_and_a_cache_as_long_as_the_target_s() -> None:
    assert memory_bytes(CELL, ChainPolicy(length=2), "small", KNOWN) == 1100 + 3 * (100 + 3 + 1) * 11


def test_a_lookup_adds_no_model() -> None:
    assert memory_bytes(CELL, LookupPolicy(length=4), "lookup", KNOWN) == 1000 + 3 * (100 + 5 + 1) * 10


@pytest.mark.parametrize(
    ("policy", "run_tokens"),
    [
        (PlainPolicy(), (0, 1)),
        (PlainPolicy(), (0, 4)),
        (ChainPolicy(length=3), (0, 1, 2, 4, 4)),
        (LookupPolicy(length=2), (0, 8, 8, 8)),
        (Eagle2Policy(), tuple(range(61))),
        (TalonPolicy(), ()),
    ],
)
def test_caches_are_as_long_as_the_decoder_makes_them(policy: TreePolicy, run_tokens: tuple[int, ...]) -> None:
    asked = Request(prompt=(1,) * 60, max_new_tokens=40, seed=0)  # 100 tokens of context at its end
    setup = StepConfig(policy=policy, drafter=None, run_tokens=run_tokens)
    alone = replace(KNOWN, footprints={TARGET.key: Footprint(weight_bytes=1, kv_bytes_per_token=1)})
    one = Cell(batch=1, context=100)
    assert memory_bytes(one, policy, None, alone, run_tokens) == 1 + room_for([asked], [setup], 1)


def test_a_decoder_that_comes_to_every_cell_holds_all_their_drafters_for_the_largest_of_all() -> None:
    """One cell has the most sequences and no model, another the longest texts and a chain."""
    many = replace(plain_cell(8, 20), run_tokens=(0, 4))
    long = replace(drafting_cell(2, 300), run_tokens=(0, 1, 2, 3, 4))
    assert plan_bytes([many, long], KNOWN) == 1100 + 8 * (300 + 4 + 1) * 11
    assert plan_bytes([long], KNOWN) == memory_bytes(Cell(batch=2, context=300), long.policy, "small", KNOWN)
    assert plan_bytes([many], KNOWN) == 1000 + 8 * (20 + 4 + 1) * 10
    assert plan_bytes([many, long], replace(INPUTS, footprints={TARGET.key: LARGE})) is None


@pytest.mark.parametrize("most_bytes", [2**40, 20_000])
def test_a_plan_whose_cells_need_more_together_than_each_may_says_so(most_bytes: int) -> None:
    cells = [plain_cell(8, 20), drafting_cell(2, 300)]
    notes = _note_of_memory(cells, KNOWN, SearchOptions(max_memory_bytes=most_bytes))
    assert len(notes) == (most_bytes == 20_000)
    assert not _note_of_memory(cells, KNOWN, SearchOptions())


@pytest.mark.parametrize("known", [{}, {TARGET.key: LARGE}, {model("small").key: SMALL}])
def test_a_model_of_unknown_size_leaves_the_memory_unknown(known: dict[str, Footprint]) -> None:
    assert memory_bytes(CELL, ChainPolicy(length=1), "small", replace(INPUTS, footprints=known)) is None


def test_a_drafter_that_is_not_used_need_not_be_known() -> None:
    found: PlanInputs = replace(INPUTS, footprints={TARGET.key: LARGE})
    assert memory_bytes(CELL, PlainPolicy(), None, found) is not None


@pytest.mark.parametrize("wrong", [(0, 1), (1, -1)])
def test_a_footprint_of_nothing_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(PlanError, match="a footprint needs"):
        Footprint(weight_bytes=wrong[0], kv_bytes_per_token=wrong[1])


@pytest.mark.thinned
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("kind", POLICIES)
def test_no_forward_of_a_drafter_is_wider_than_the_widest_layer(kind: str, on_device: bool) -> None:
    llama = tiny_llama(layers=2, seed=0)
    drafter = drafter_for(kind, LeanModel(perturbed(llama, 0.06)), 3, on_device=on_device)
    schedule, drafters = drafting(kind, drafter)
    done = run(LeanModel(llama), random_requests(7, tokens=16, temperature=0.8), schedule, drafters)
    assert max((width for one in done.rounds for width in one.widths), default=0) <= POLICIES[kind].widest_layer


class WatchedDrafter(ModelDrafter):
    """Notes how many tokens of how many sequences its forwards read."""

    fed: list[tuple[int, int]]

    def read(self, step: ForwardInput) -> torch.Tensor:
        """Note and run one forward over committed text."""
        self.fed.append((step.tokens.shape[0], step.tokens.shape[1]))
        return super().read(step)


def test_all_that_a_hybrid_s_model_reads_at_once_behind_copied_rounds_is_counted() -> None:
    policy = HybridPolicy(text=SuffixPolicy(length=4), model=ChainPolicy(length=2))
    drafter = WatchedDrafter(LeanModel(tiny_llama(layers=1, seed=0)), slots=2, capacity=96)
    drafter.fed = []
    sequences = [Sequence(request=Request(prompt=(1, 2, 3), max_new_tokens=80), index=slot) for slot in range(2)]
    for slot, sequence in enumerate(sequences):
        drafter.admit(slot, sequence)
        sequence.tokens.extend([4] * (READ_TOGETHER - 1))  # behind the newest of its prompt
    drafter.draft(sequences, policy.model)
    widest = max(tokens for rows, tokens in drafter.fed if rows == 2)
    assert widest == READ_TOGETHER <= load_of(Cell(batch=2, context=96), policy).unread_tokens


def test_prompts_are_read_and_positions_laid_out_as_the_runtime_does() -> None:
    assert (PIECE, BEYOND, LEAST_HALVED) == (PREFILL_TOKENS, DRAFT_DEPTH, projection.LEAST_ELEMENTS)
    assert (MOST_ROWS, MOST_WIDENED) == (projection.MOST_ROWS, projection.WIDENED_ELEMENTS)
    assert set(FAMILIES) == LEAN_FAMILIES


def test_a_model_that_transformers_runs_is_kept_whole() -> None:
    llama = architecture_of({**wide_llama(2).config.to_dict(), "dtype": "bfloat16", "tie_word_embeddings": True})
    other = replace(llama, family="gpt_neox")
    assert footprint_of(llama, "float32").halved_bytes > 0 and footprint_of(llama, "float32").tied_head_bytes > 0
    for dtype in ("float32", "bfloat16"):
        told = footprint_of(other, dtype)
        assert (told.halved_bytes, told.tied_head_bytes) == (0, 0)


def wide_llama(layers: int) -> LlamaForCausalLM:
    model: LlamaForCausalLM = tiny_llama(layers=layers, seed=layers, vocabulary=3000, hidden=128).float()
    return model


@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_that_are_kept_in_halves_are_counted_so(is_tied: bool) -> None:
    source = wide_llama(2).bfloat16()
    config = {**source.config.to_dict(), "dtype": "bfloat16", "tie_word_embeddings": is_tied}
    if is_tied:
        source.lm_head.weight = source.model.embed_tokens.weight
    models: list[LeanModel] = []

    def build() -> None:
        models.append(LeanModel(copy.deepcopy(source).float()))
        gc.collect()

    held, footprint = count_bytes(build).left_bytes, footprint_of(architecture_of(config), "float32")
    assert footprint.halved_bytes > 0
    one = Load(slots=1, capacity=1, prompt_tokens=1, verify_tokens=1)
    told = [peak_bytes(footprint, [], one, device_kind=kind, is_sampled=False) for kind in ("cpu", "cuda")]
    assert told[0] == pytest.approx(held, rel=0.02)
    halves = 2 * 3000 * 128 if is_tied else 0
    assert told[1] - told[0] == pytest.approx(footprint.halved_bytes - halves, rel=0.02)


def test_halves_that_many_rows_are_multiplied_by_are_counted_as_they_are_widened() -> None:
    source, models, policy, run_tokens = wide_llama(2).bfloat16(), [], PlainPolicy(), (0, 80)
    config = {**source.config.to_dict(), "dtype": "bfloat16"}

    def build() -> None:
        models.append(LeanModel(copy.deepcopy(source).float()))
        gc.collect()

    held, load = count_bytes(build).left_bytes, load_of(Cell(batch=1, context=48), policy, run_tokens)
    requests = [Request(prompt=(7,) * 40, max_new_tokens=8, seed=seed) for seed in range(2)]
    setup = always(StepConfig(policy=policy, drafter=None, run_tokens=run_tokens))
    peak = count_bytes(lambda: run(models[0], requests, setup, slots=1, capacity=load.capacity)).peak_bytes
    footprint = footprint_of(architecture_of(config), "float32")
    told = peak_bytes(footprint, [], load, device_kind="cpu", is_sampled=False)
    assert told == pytest.approx(held + peak, rel=0.05)
    assert footprint.widened_bytes > 0.1 * told


def kept(layers: int) -> tuple[LeanModel, int, Footprint]:
    """Return a model, what torch's allocator handed out for it, and its footprint."""
    models: list[LeanModel] = []

    def build() -> None:
        models.append(LeanModel(wide_llama(layers)))
        gc.collect()

    held = count_bytes(build).left_bytes
    return models[0], held, footprint_of(architecture_of(wide_llama(layers).config.to_dict()), "float32")


@pytest.mark.thinned
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("policy", [PlainPolicy(), ChainPolicy(length=5), Eagle2Policy(verify_tokens=20, depth=2)])
def test_the_peak_is_what_torchs_allocator_hands_out(policy: TreePolicy, batch: int, temperature: float) -> None:
    (target, held, footprint), (small, small_held, small_footprint) = kept(3), kept(1)
    load = load_of(Cell(batch=batch, context=48), policy)
    drafts = not isinstance(policy, PlainPolicy)
    requests = [Request(prompt=(7,) * 40, max_new_tokens=8, temperature=temperature, seed=i) for i in range(batch)]

    def decode() -> None:
        drafters = {"it": ModelDrafter(small, slots=batch, capacity=load.capacity)} if drafts else {}
        setup = StepConfig(policy=policy, drafter="it" if drafts else None)
        run(target, requests, always(setup), drafters, slots=batch, capacity=load.capacity)

    measured = held + drafts * small_held + count_bytes(decode).peak_bytes
    used = [small_footprint] if drafts else []
    told = peak_bytes(footprint, used, load, device_kind="cpu", is_sampled=temperature > 0)
    assert told == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("capability", "mib"), [("9.0", 32.0), ("10.0", 32.0), ("8.9", 8.125)])
def test_a_gpus_libraries_work_in_memory_of_torchs_allocator(capability: str, mib: float) -> None:
    gpu = replace(DEVICE, kind="cuda", compute_capability=capability)
    assert workspace_bytes(gpu) == mib * 2**20 and workspace_bytes(DEVICE) == 0


def test_lossy_rules_read_scores_that_lossless_rounds_do_without() -> None:
    """Compiled calls draw from logits as they lie; a rule that weighs other tokens has them in float32, with noise."""
    chain = ChainPolicy(length=5)
    loads = [load_of(Cell(batch=4, context=8), policy) for policy in (chain, FlyPolicy(draft=chain, rule=FlyRule()))]
    target = Footprint(weight_bytes=1, kv_bytes_per_token=1, vocabulary=50_000, number_bytes=2)
    lossless, lossy = (peak_bytes(target, [], load, device_kind="cpu", is_sampled=True) for load in loads)
    assert lossy - lossless > 4 * 6 * 50_000 * 8
