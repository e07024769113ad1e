"""The demo at tiny scale: what was replayed is what was counted, and the output is the target's own."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console

from spectune.db import Store, open_store
from spectune.demo.contest import CHAIN, GENERATE, PLAIN, PLAN, TREE
from spectune.demo.pages import WIDTH, outcome_page, plan_page, profile_page
from spectune.demo.prompts import calibration_prompts, evaluation_prompts
from spectune.demo.records import DemoOutcome
from spectune.demo.story import BATCHES, WORKLOAD, Chapter, DemoSize, compare, family_models, learn
from spectune.planner.plans.document import plan_from_json
from spectune.planner.strategies.naming import name_of
from spectune.tuning.inputs import inputs_from_store, inputs_of
from spectune.tuning.request import PlanRequest

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import byte_tokenizer
from ..support.tiny_models import perturbed, tiny_llama

__all__ = ["timed_coarsely"]

SCREEN = 24  # lines
SIZE = DemoSize(calibration_prompts=8, evaluation_prompts=10, new_tokens=12, budget_s=BUDGET_S)


@dataclass(frozen=True)
class Told:
    """One demo told to its end."""

    store: Store
    chapter: Chapter
    outcome: DemoOutcome


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("demo")
    save_family(folder)
    with pytest.MonkeyPatch.context() as patch, open_store(str(folder / "store.db")) as store:
        patch.setenv("XDG_CACHE_HOME", str(folder / "run"))  # another profile may hold the device
        patch.setattr("spectune.demo.story.PlanRequest", partial(PlanRequest, trials=2))
        chapter = learn(store, family_models(folder), SIZE, _quiet)
        yield Told(store, chapter, compare(chapter, family_models(folder), SIZE, _quiet, time.monotonic()))


def _quiet(what: str, share: float) -> None:
    """Say nothing."""


def save_family(folder: Path) -> None:
    """Write a target and two drafters that often agree with it."""
    tokenizer = byte_tokenizer("\n".join(prompt.text for prompt in calibration_prompts()))
    target = tiny_llama(layers=2, seed=1, vocabulary=len(tokenizer)).float()
    family = {"target": target, "small": perturbed(target, 0.1, seed=1), "medium": perturbed(target, 0.03, seed=2)}
    for name, model in family.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def test_every_row_replays_to_exactly_the_tokens_counted(told: Told) -> None:
    ours = [row for row in told.outcome.rows if row.name != GENERATE]
    assert len(ours) == 8
    assert [row.replayed_tokens_per_round for row in ours] == [row.tokens_per_round for row in ours]


def test_drafting_saves_rounds(told: Told) -> None:
    counted = {(row.batch, row.name): row.tokens_per_round or 0.0 for row in told.outcome.rows}
    for batch in BATCHES:
        assert counted[batch, PLAIN] == 1.0
        assert counted[batch, CHAIN] > 1.2 and counted[batch, TREE] > counted[batch, CHAIN]


def test_whatever_decodes_the_output_is_the_targets_own(told: Told) -> None:
    assert told.outcome.greedy_identical


def test_every_batch_has_a_row_of_each_way_of_decoding_and_a_cell(told: Told) -> None:
    for batch in BATCHES:
        names = [row.name for row in told.outcome.rows if row.batch == batch]
        assert names == [PLAIN, CHAIN, TREE, PLAN, GENERATE]
    assert [cell.batch for cell in told.outcome.cells] == list(BATCHES)
    assert all(row.measured_tokens_per_s > 0 for row in told.outcome.rows)


def test_rows_predict_what_the_plan_promised(told: Told) -> None:
    rows = {(row.batch, row.name): row for row in told.outcome.rows}
    for cell in told.chapter.plan.cells:
        assert rows[cell.batch, PLAN].policy == name_of(cell.policy.code, cell.drafter)
        assert rows[cell.batch, PLAN].predicted_tokens_per_s == cell.prediction.tokens_per_s
        assert rows[cell.batch, PLAIN].predicted_tokens_per_s == cell.plain.tokens_per_s


def test_the_hand_set_defaults_are_a_chain_of_four_and_eagle2s_published_tree(told: Told) -> None:
    policies = {row.name: row.policy for row in told.outcome.rows}
    assert re.fullmatch(r"chain of 4 by (small|medium)", str(policies[CHAIN]))
    assert re.fullmatch(r"tree of 60 nodes by (small|medium) \(EAGLE-2\)", str(policies[TREE]))


def test_a_cells_figures_are_those_of_its_rows(told: Told) -> None:
    rows = {(row.batch, row.name): row for row in told.outcome.rows}
    for cell in told.outcome.cells:
        plan = rows[cell.batch, PLAN]
        assert plan.predicted_tokens_per_s is not None
        assert cell.speedup_over_plain == plan.measured_tokens_per_s / rows[cell.batch, PLAIN].measured_tokens_per_s
        error = abs(plan.predicted_tokens_per_s / plan.measured_tokens_per_s - 1.0)
        assert cell.prediction_error == pytest.approx(error)


def test_the_outcome_is_one_json_object(told: Told) -> None:
    document = json.loads(json.dumps(asdict(told.outcome)))
    assert document["greedy_identical"] is True
    assert document["device"] == told.chapter.profile.device.label


def test_the_plan_is_for_the_middle_of_the_calibration_texts_and_lies_in_the_store(told: Told) -> None:
    plan, target = told.chapter.plan, told.chapter.profile.identities.target
    stored = told.store.find_plan(device=plan.device.fingerprint, target=target.key, workload=WORKLOAD, temperature=0.0)
    assert plan_from_json(told.store.plan(stored.id)) == plan
    traced = told.chapter.profile.traces[0].prompts
    middle = int(median(len(text.prompt) + len(text.continuation) // 2 for text in traced))
    assert [(cell.batch, cell.context) for cell in plan.cells] == [(batch, middle) for batch in BATCHES]


def test_the_plan_never_saw_the_prompts_it_is_judged_on(told: Told) -> None:
    seen = {prompt.prompt for trace in told.chapter.profile.traces for prompt in trace.prompts}
    tokenizer = byte_tokenizer("\n".join(prompt.text for prompt in calibration_prompts()))
    asked = {tuple(tokenizer(prompt.text)["input_ids"][-64:]) for prompt in evaluation_prompts()}
    assert seen and not seen & asked


def test_the_store_gives_the_planner_what_the_profile_measured(told: Told) -> None:
    profile = told.chapter.profile
    request = PlanRequest(target=profile.identities.target, device=profile.device, workload=WORKLOAD)
    found, fresh = inputs_from_store(request, told.store), inputs_of(profile)
    assert found.drafters == fresh.drafters
    assert (found.texts, found.overhead) == (fresh.texts, fresh.overhead)
    assert set(found.verify.measurements) == set(fresh.verify.measurements)


def test_the_pages_name_the_device_every_drafter_the_choice_and_every_row(told: Told) -> None:
    screen = Console(file=io.StringIO(), width=WIDTH)
    chapter = told.chapter
    screen.print(profile_page(chapter.profile))
    screen.print(plan_page(chapter.plan))
    screen.print(outcome_page(told.outcome))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    for word in (chapter.profile.device.label, "small", "medium", PLAIN, CHAIN, "(EAGLE-2)", PLAN, GENERATE):
        assert word in shown
    assert "output is the target's own in fp32: yes" in shown
    assert all(name_of(cell.policy.code, cell.drafter)[:20] in shown for cell in chapter.plan.cells)
    assert len(shown.splitlines()) <= SCREEN
