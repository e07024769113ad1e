"""A target that sees is profiled on prompts with images, and planned for, like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import shapes_models

from spectune.db import open_store
from spectune.errors import RequestError
from spectune.planner.records.image_ids import IMAGE_IDS
from spectune.planner.records.recording import texts_of
from spectune.profiler.identity import identify
from spectune.profiler.prompts import read_prompts
from spectune.runtime.models.drafter_shapes import ExitShape
from spectune.runtime.models.loading import load_model, load_tokenizer
from spectune.training.exit import save_exit
from spectune.training.trainer import TrainingSettings
from spectune.tuning.plan import make_plan
from spectune.tuning.profile import profile
from spectune.tuning.prompts import requests_of, shown_to
from spectune.tuning.request import Models, PlanRequest, ProfileRequest

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_exits import WIDTH, exit_weights

__all__ = ["timed_coarsely"]

FEW = TrainingSettings(steps=1, batch=2, sequence_tokens=1, warmup_steps=1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PROMPTS", "EXAM"):
            patch.setattr(shapes_models, name, 3)
        shapes_models.train_model(folder / "target", FEW, pictures=8)
        shapes_models.prepare(folder, FEW)
    return folder


def asked(place: Path, **changes: object) -> ProfileRequest:
    request = ProfileRequest(
        models=Models(target=place / "target"), prompts=read_prompts(place / "prompts.jsonl"), device="cpu",
        dtype="float32", batches=(1,), max_new_tokens=8, budget_s=BUDGET_S, held_out=0,
    )  # fmt: skip
    return replace(request, **changes)  # type: ignore[arg-type]


def test_requests_of_images_are_shown_alike_to_every_load_of_a_target(place: Path) -> None:
    requests = requests_of(asked(place), load_tokenizer(str(place / "target")))
    targets = [load_model(str(place / "target"), dtype=dtype) for dtype in ("float32", "bfloat16")]
    one, other = (shown_to(target, requests) for target in targets)
    assert [r.prompt for r in one] == [r.prompt for r in other]
    assert len({r.prompt for r in one}) == 3 and all(max(r.prompt) >= IMAGE_IDS and not r.images for r in one)


def test_an_image_is_not_cut(place: Path) -> None:
    with pytest.raises(RequestError, match="an image is not cut; raise --max-prompt-tokens above 20"):
        requests_of(asked(place, max_prompt_tokens=20), load_tokenizer(str(place / "target")))


def test_a_target_that_sees_is_profiled_and_planned_with_an_exit_of_its_own(place: Path, tmp_path: Path) -> None:
    identity = identify(place / "target")
    (place / "exit").mkdir()
    save_exit(place / "exit", exit_weights(64), ExitShape(layers=2, width=WIDTH, target=identity.weights_hash))
    models = Models(target=place / "target", drafters={"exit2": place / "exit"})
    request = asked(place, models=models, record="quick")
    with open_store(str(tmp_path / "store.db")) as store:
        done = profile(request, store, lock_wait_s=60.0, progress=lambda what, share: None)
        wanted = PlanRequest(target=done.identities.target, device=done.device, dtype="float32", trials=2)
        plan = make_plan(wanted, store)
    assert [trace.drafter_name for trace in done.traces] == ["exit2"] and plan.cells
    texts = texts_of(done.traces[0])
    assert texts and all(max(text.prompt) >= IMAGE_IDS > max(text.continuation) for text in texts)
