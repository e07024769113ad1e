"""Memory of a plan's cells against a decoder's own caches, and what is unknown stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.errors import PlanError
from spectune.planner.cost import Cell
from spectune.planner.inputs import PlanInputs
from spectune.planner.memory import Footprint, memory_bytes
from spectune.planner.policy import ChainPolicy, Eagle2Policy, LookupPolicy, PlainPolicy, TalonPolicy, TreePolicy
from spectune.runtime.requests import Request
from spectune.runtime.setup import RoundSetup
from spectune.tuning.decoding import room_for

from .synthetic import TARGET, Language, SkilledDrafter, every_node, inputs, model, record, texts

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
    setup = RoundSetup(policy=policy, drafter=None, run_tokens=run_tokens)
    alone = replace(KNOWN, footprints={TARGET.key: Footprint(weight_bytes=1, kv_bytes_per_token=1)})
    one = Cell(batch=1, context=100)
    assert memory_bytes(one, policy, None, alone, run_tokens) == 1 + room_for([asked], [setup], 1)


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
