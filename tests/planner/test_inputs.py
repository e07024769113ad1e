"""A plan's inputs: what does not belong together is refused, and all of it can be sent to another process."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from spectune.errors import PlanError
from spectune.planner.inputs import PlanInputs
from spectune.planner.records.footprint import Footprint
from spectune.profiler.records.acceptance import PairwiseAcceptance

from ..support.synthetic import TARGET, Language, SkilledDrafter, every_node, inputs, record, texts

SPOKEN = Language(3)
INPUTS = inputs(record(SkilledDrafter(SPOKEN, 0.8), texts(SPOKEN, 3, lambda text: 6), every_node(1, 2)))
AGREEMENT = PairwiseAcceptance(
    models=("target", "small"),
    greedy=((1.0, 0.7), (0.7, 1.0)),
    overlap=((1.0, 0.6), (0.6, 1.0)),
    positions=15,
    target=TARGET.key,
    workload="made up",
    temperature=0.0,
)


def test_an_agreement_of_these_models_along_these_texts_is_taken() -> None:
    assert replace(INPUTS, pairwise=AGREEMENT).pairwise == AGREEMENT


def test_an_agreement_that_does_not_say_where_it_is_from_is_taken() -> None:
    unsaid = replace(AGREEMENT, target="", workload="", temperature=None)
    assert replace(INPUTS, pairwise=unsaid).pairwise == unsaid


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"target": "else"}, "the agreement's target is 'else'"),
        ({"workload": "chat"}, "the agreement's workload is 'chat'"),
        ({"temperature": 0.8}, "recorded at temperature 0.8, not 0.0"),
        ({"models": ("target", "elder")}, "which lacks some of"),
    ],
)
def test_an_agreement_of_something_else_is_refused(other: dict[str, object], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        replace(INPUTS, pairwise=replace(AGREEMENT, **other))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["lookup", "target", "v1.0+fast", ""])
def test_a_drafter_s_name_is_not_that_of_the_text_the_target_or_a_stack(name: str) -> None:
    with pytest.raises(PlanError, match=r"a drafter cannot be called .*; take another name"):
        replace(INPUTS.drafters[0], name=name)


def test_inputs_survive_the_way_to_another_process() -> None:
    footprint = Footprint(weight_bytes=4, kv_bytes_per_token=2)
    sent: PlanInputs = replace(INPUTS, pairwise=AGREEMENT, footprints={TARGET.key: footprint}, notes=("by hand",))
    assert pickle.loads(pickle.dumps(sent)) == sent
