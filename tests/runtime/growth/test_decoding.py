"""A decoder whose drafts grow as tensors emits the target's own text, in the rounds of one that drafts on the host."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

import pytest

from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always, draft_room
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.lean import LeanModel

from ...support.decoded_runs import CAPACITY, POLICIES, Run, drafting, random_requests, run
from ...support.pairwise import crossed
from ...support.tiny_models import perturbed, tiny_llama, tiny_neox

pytestmark = pytest.mark.lossless

LLAMA, NEOX = tiny_llama(layers=2, seed=0), tiny_neox(layers=2, seed=0)
TARGETS: dict[str, CausalModel] = {"llama": LeanModel(LLAMA), "neox": GenericModel(NEOX)}
DRAFTERS: dict[str, CausalModel] = {
    "llama": LeanModel(perturbed(LLAMA, 0.06)),
    "neox": GenericModel(perturbed(NEOX, 0.1)),
}
KINDS = [kind for kind in POLICIES if kind != "lookup"]


def decoded(kind: str, requests: Many[Request], *, on_device: bool, slots: int = 3, family: str = "llama") -> Run:
    """Decode requests with drafts that grow on the model's device or on the host."""
    drafter = ModelDrafter(DRAFTERS[family], slots=slots, capacity=CAPACITY, on_device=on_device)
    schedule, drafters = drafting(kind, drafter)
    return run(TARGETS[family], requests, schedule, drafters, slots=slots)


def rounds(done: Run) -> list[tuple[list[int], int, int]]:
    """Return what every round kept and fed, and how many forwards it drafted with."""
    return [(one.kept, one.verify_tokens, len(one.widths)) for one in done.rounds]


def assert_same_rounds(kind: str, requests: Many[Request], *, slots: int = 3, family: str = "llama") -> None:
    host, device = (decoded(kind, requests, on_device=way, slots=slots, family=family) for way in (False, True))
    assert device.outputs == host.outputs == run(TARGETS[family], requests).outputs
    assert rounds(device) == rounds(host)


@crossed(kind=KINDS, slots=(1, 3), temperature=(0.0, 0.8))
def test_outputs_and_rounds_are_those_of_drafts_that_grow_on_the_host(
    kind: str, slots: int, temperature: float
) -> None:
    assert_same_rounds(kind, random_requests(6, tokens=10, temperature=temperature), slots=slots)


@pytest.mark.parametrize("kind", KINDS)
def test_a_generic_familys_rounds_are_those_of_drafts_that_grow_on_the_host(kind: str) -> None:
    assert_same_rounds(kind, random_requests(4, tokens=8), family="neox")


@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_sampling_reach_drafts_that_grow_as_tensors(kind: str) -> None:
    requests = [
        replace(request, top_k=6 if request.seed % 2 else 0, repetition_penalty=1.2)
        for request in random_requests(4, tokens=10, temperature=0.8)
    ]
    assert_same_rounds(kind, requests)


def test_the_rounds_compared_here_keep_few_and_many_tokens() -> None:
    done = decoded("chain", random_requests(11, tokens=16), on_device=True)
    assert {kept for one in done.rounds for kept in one.kept} == {1, 2, 3, 4}


def test_a_drafter_on_a_cpu_grows_on_the_host_unless_asked() -> None:
    requests = random_requests(3, tokens=9)
    unasked = ModelDrafter(DRAFTERS["llama"], slots=3, capacity=CAPACITY)
    narrow = run(TARGETS["llama"], requests, *drafting("talon", unasked)).rounds
    assert [one.widths for one in narrow] == [one.widths for one in decoded("talon", requests, on_device=False).rounds]
    wide = decoded("talon", requests, on_device=True).rounds
    assert sum(sum(one.widths) for one in wide) > sum(sum(one.widths) for one in narrow)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_that_grow_as_tensors_fit_where_those_of_the_host_fit(kind: str) -> None:
    requests = random_requests(6, tokens=10)
    setup = StepConfig(policy=POLICIES[kind], drafter="it")
    capacity = max(len(r.prompt) + r.max_new_tokens for r in requests) + draft_room([setup], 3)
    drafter = ModelDrafter(DRAFTERS["llama"], slots=3, capacity=capacity, on_device=True)
    done = run(TARGETS["llama"], requests, always(setup), {"it": drafter}, capacity=capacity)
    assert done.rounds and not any(one.faults for one in done.rounds)
