from pathlib import Path

import numpy as np
import pytest

from spectune.profiler.records.acceptance import AcceptanceTrace, PromptTrace
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.loading import load_model
from spectune.tuning.recording.effort import NARROW, RecordingBudget, width_of
from spectune.tuning.recording.recipe import Recipe, recipe_of
from spectune.tuning.recording.traces import COMPARED_POSITIONS, compared

from ...support.tiny_family import save_model


class NoParts:
    """Keeps nothing."""

    def part(self, name: str) -> str | None:
        return None

    def add_part(self, name: str, document: str) -> None:
        pass


def trace_with(shares: list[float]) -> AcceptanceTrace:
    """Return a trace of one text for every share of positions at which the drafter is right."""
    prompts = []
    for share in shares:
        positions = 40
        right = np.arange(positions) < round(share * positions)
        prompts.append(
            PromptTrace(
                prompt=(1,),
                continuation=tuple(range(positions + 1)),
                next_rank=np.where(right, 0, 255).astype(np.uint8),
                offsets=np.arange(positions + 1, dtype=np.int32),
                parent=np.full(positions, -1, dtype=np.int16),
                rank=np.zeros(positions, dtype=np.uint8),
                log_probs=np.full((positions, 1), -0.1, dtype=np.float32),
                hit_rank=np.where(right, 0, 255).astype(np.uint8),
            )
        )
    return AcceptanceTrace(
        target="t", drafter="d", drafter_name="d", workload="w", temperature=0.0, seed=0, children=1,
        prefix_exact=True, prompts=tuple(prompts),
    )  # fmt: skip


def test_texts_that_are_alike_end_the_recording_and_texts_that_differ_do_not() -> None:
    effort = RecordingBudget(limit_s=100.0, fewest_texts=4)
    alike, apart = trace_with([0.8] * 16), trace_with([0.1, 1.0] * 8)
    assert width_of(alike) < NARROW < width_of(apart)
    assert not effort.wants_more([alike], spent_s=10.0, group_s=10.0)
    assert effort.wants_more([apart], spent_s=10.0, group_s=10.0)


def test_recording_ends_with_its_time_but_never_below_a_full_batch() -> None:
    apart = trace_with([0.1, 1.0] * 4)
    assert not RecordingBudget(limit_s=100.0, fewest_texts=4).wants_more([apart], spent_s=96.0, group_s=10.0)
    assert RecordingBudget(limit_s=100.0, fewest_texts=9).wants_more([apart], spent_s=1e6, group_s=10.0)


@pytest.mark.parametrize(("left_s", "level"), [(1e9, "standard"), (0.0, "chains"), (-5.0, "chains")])
def test_the_richest_trees_that_there_is_time_for_are_recorded(left_s: float, level: str, tmp_path: Path) -> None:
    drafter = load_model(str(save_model(tmp_path / "small", layers=1, seed=0)), dtype="float32")
    texts = [(Request(prompt=(1, 2, 3), max_new_tokens=24), tuple(range(4, 28)))]
    found = RecordingBudget(limit_s=1.0, fewest_texts=1).recipes({"small": drafter}, texts, left_s, 1000, NoParts())
    assert found == {"small": recipe_of(level)} and isinstance(found["small"], Recipe)  # type: ignore[arg-type]


def test_models_are_compared_along_as_many_texts_as_shares_need() -> None:
    texts = [(Request(prompt=(1,), max_new_tokens=200), tuple(range(200)))] * 5
    assert len(compared(texts)) == -(-COMPARED_POSITIONS // 200)
    assert compared(texts[:1]) == texts[:1]
