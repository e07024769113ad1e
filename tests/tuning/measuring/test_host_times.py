"""Host times of a profile: where memory has no room for some of them, the others are there and the gap is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spectune.errors import ModelError, NoRoomError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import REGISTRY
from spectune.profiler.prompts import Prompt
from spectune.profiler.records.overhead import OverheadSample
from spectune.runtime.backends.captured_rounds import CapturedRounds
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.engine.step import TargetVerifier
from spectune.runtime.engine.step_output import RoundResult
from spectune.runtime.models.drafter_shapes import Kind
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring import host_times as module
from spectune.tuning.measuring.decoding import Family
from spectune.tuning.measuring.host_times import HostTimes, host_times
from spectune.tuning.request import Models, ProfileRequest
from spectune.tuning.steps import silent

from ...support.limited_memory import Limit, uncollected
from ...support.repeated import graphed
from ...support.shelf import Shelf
from ...support.tiny_blocks import block_weights, tiny_block
from ...support.tiny_exits import exit_weights, tiny_exit
from ...support.tiny_heads import head_weights, tiny_head
from ...support.tiny_models import tiny_lean, tiny_llama

FAMILY = Family(target=tiny_lean(layers=1, seed=1), drafters={"small": tiny_lean(layers=1, seed=2)})
REQUESTS = [Request(prompt=(1, 2, 1, 2, place), max_new_tokens=20) for place in range(3)]
SHORT = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation"
WITHOUT_DRAFTER = {"plain", *(kind for kind, policy in REGISTRY.items() if policy.source == "text")}


def timed(*batches: int, family: Family = FAMILY, shelf: Shelf | None = None) -> HostTimes:
    request = ProfileRequest(
        models=Models(target=Path()), prompts=[Prompt(text=str(place)) for place in range(3)], batches=batches
    )
    return host_times(request, family, [REQUESTS], {name: name for name in family.drafters}, shelf or Shelf(), silent)


def kinds(found: HostTimes, batch: int) -> set[str]:
    return {sample.kind for sample in found.samples if sample.batch == batch}


def test_rounds_are_timed_with_a_drafter_of_every_role_and_with_every_block_drafter() -> None:
    """Beside a head a target keeps hidden states, and what drafts is asked in another way than a model."""
    llama = tiny_llama(layers=4, seed=1)
    target = LeanModel(llama)
    heads = {name: tiny_head("eagle3", llama, head_weights("eagle3", llama)) for name in ("one", "two")}
    own = tiny_exit(target, exit_weights(target.hidden), 1)
    kinds: tuple[Kind, ...] = ("medusa", "ctc")
    blocks: dict[str, CausalModel] = {kind: tiny_block(kind, llama, block_weights(kind, llama)) for kind in kinds}
    drafters: dict[str, CausalModel] = {**heads, "exit": own, **blocks, **FAMILY.drafters}
    family, shelf = Family(target=target, drafters=drafters), Shelf()
    found = timed(2, family=family, shelf=shelf)
    assert not found.left_out
    told = ("draft", "head", "self", "block medusa", "block ctc")
    drafted = {role: {s.kind for s in found.samples if s.beside == role} for role in told}
    assert "stack" in drafted["draft"] and "resumed" in drafted["self"] and "resumed" not in drafted["draft"]
    assert all({"plain", "suffix", "chain", "hybrid", "cast"} <= kinds for kinds in drafted.values())
    assert len(found.samples) == sum(s.beside in drafted for s in found.samples)
    assert timed(2, family=family, shelf=shelf) == found  # of all roles the journal remembers what was timed


def test_a_role_whose_rounds_fail_leaves_those_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = tiny_llama(layers=4, seed=1)
    head = tiny_head("eagle3", llama, head_weights("eagle3", llama))
    family = Family(target=LeanModel(llama), drafters={"head": head, **FAMILY.drafters})

    def failing(*_: object, drafter: str | None, **__: object) -> list[OverheadSample]:
        if drafter == "head":
            raise ModelError("it breaks")
        return [OverheadSample(kind="plain", batch=2, draft_forwards=0, nodes=1, host_ms=(1.0,))]

    monkeypatch.setattr(module, "measure_overhead", failing)
    found = timed(2, family=family)
    assert len(found.samples) == 1 and found.left_out == ("rounds of batch 2 with head were not timed: it breaks",)


def test_a_batch_without_memory_for_a_drafter_s_caches_is_timed_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Limit(monkeypatch, tokens=220)
    found = timed(3)
    assert kinds(found, 3) == WITHOUT_DRAFTER
    (words,) = found.left_out
    assert words.startswith("rounds of batch 3 with a drafter were not timed: memory has no room for rounds of batch 3")


def test_a_batch_whose_rounds_memory_has_no_room_for_has_no_host_times_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Limit(monkeypatch, tokens=120)
    found = timed(1, 3)
    assert {sample.batch for sample in found.samples} == {1}
    assert found.left_out == ("memory has no room for rounds of batch 3, which were not timed",)


def test_without_memory_for_rounds_of_any_batch_a_profile_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    Limit(monkeypatch, tokens=0)
    with pytest.raises(NoRoomError, match="no room for rounds of batch 1, which were not timed; profile smaller"):
        timed(1)


def test_a_verification_that_finds_no_memory_leaves_its_batch_out(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = TargetVerifier._verify

    def short(verification: TargetVerifier, batch: list[object], draft: DraftBatch, config: StepConfig) -> RoundResult:
        if len(batch) == 3 and draft.sizes.max() > 1:
            raise torch.OutOfMemoryError(SHORT)
        return verify(verification, batch, draft, config)  # type: ignore[arg-type]

    monkeypatch.setattr(TargetVerifier, "_verify", short)
    found = timed(1, 3)
    assert {sample.batch for sample in found.samples} == {1}
    assert found.left_out == ("memory has no room for rounds of batch 3, which were not timed",)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            torch.OutOfMemoryError(SHORT),
            "small found no memory in a round of 3 sequences (OutOfMemoryError: CUDA",
        ),
        (ValueError("a bad head"), "small failed and cannot be measured: ValueError: a bad head"),
    ],
)
def test_a_drafter_that_fails_leaves_the_rounds_without_it_and_their_memory(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = HybridDrafter.draft

    def failing(drafter: HybridDrafter, batch: list[object], policy: object) -> DraftBatch:
        if len(batch) == 3:
            raise type(error)(*error.args)
        return draft(drafter, batch, policy)  # type: ignore[arg-type]

    monkeypatch.setattr(HybridDrafter, "draft", failing)
    memory = Limit(monkeypatch)
    with uncollected():
        found = timed(3)
    assert kinds(found, 3) == WITHOUT_DRAFTER
    assert found.left_out[0].startswith(f"rounds of batch 3 with a drafter were not timed: {told}")
    assert memory.alive.count(0) == 2  # each time that the batch is tried


def test_a_round_that_finds_no_memory_to_run_ahead_leaves_its_batch_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(rounds: CapturedRounds, *_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(SHORT)

    monkeypatch.setattr(CapturedRounds, "__init__", short)
    target, _ = graphed(FAMILY.target)
    with pytest.raises(NoRoomError, match="no room for rounds of batch 2, which were not timed"):
        timed(2, family=Family(target=target, drafters={}))


def test_a_batch_that_was_timed_in_part_is_tried_again_when_the_profile_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf = Shelf()
    with monkeypatch.context() as patched:
        Limit(patched, tokens=220)
        timed(3, shelf=shelf)
    found = timed(3, shelf=shelf)
    assert shelf.added == ["overhead 3"] and kinds(found, 3) > WITHOUT_DRAFTER and not found.left_out
