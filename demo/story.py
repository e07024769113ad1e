"""The demo end to end: profile, plan, then measure the plan beside what people do by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from ..db.store import Store
from ..planner.inputs import PlanInputs
from ..planner.plans.plan import Plan
from ..runtime.models.loading import load_pretrained, load_tokenizer
from ..runtime.models.regime import decoding_regime
from ..tuning.family import EXACT_DTYPE, load_family, torch_device
from ..tuning.inputs import inputs_of
from ..tuning.plan import solve_and_store
from ..tuning.profile import Profile, profile
from ..tuning.prompts import requests_of
from ..tuning.request import Models, PlanRequest, ProfileRequest
from ..tuning.steps import Progress
from .contest import (
    PLAN,
    Counter,
    contestants,
    measure_speeds,
    outcome_of_cell,
    rows_of_cell,
)
from .prompts import as_chats, calibration_prompts, evaluation_prompts
from .records import CellOutcome, DemoOutcome, DemoRow

WORKLOAD, CHATS = "python-stdlib", "python-chats"
BATCHES = (1, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSize:
    """How much the demo measures; the defaults take two to three minutes on two cores.

    The defaults decode the first 16 evaluation prompts; of 32, tokens per round were a tenth off those of 64. The first
    `counted_prompts` are decoded again in fp32, judged and replayed.
    """

    calibration_prompts: int = 24
    evaluation_prompts: int = 64
    counted_prompts: int = 16
    new_tokens: int = 128  # of both: the longer these models write, the more they repeat
    budget_s: float = 15.0  # for the latency cells
    repeats: int = 1  # of the side-by-side measurement; medians count
    temperature: float = 0.0
    asks: bool = False  # whether the prompts are put as questions, for models that were trained on chats

    @property
    def workload(self) -> str:
        """What the prompts are called."""
        return CHATS if self.asks else WORKLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """What is known before anything is compared: the profile and the plan it led to."""

    profile: Profile
    inputs: PlanInputs
    plan: Plan


def family_folder() -> Path:
    """Return where the shipped models lie."""
    return Path(__file__).parent / "models"


def family_models(folder: Path) -> Models:
    """Return the demo family's target and drafters."""
    return Models(target=folder / "target", drafters={"small": folder / "small", "medium": folder / "medium"})


def learn(store: Store, models: Models, size: DemoSize, progress: Progress) -> Chapter:
    """Profile the models on the calibration prompts and plan for this device."""
    measured = profile(_request(models, size), store, progress=progress)
    inputs = inputs_of(measured)
    middle = median(len(t.prompt) + len(t.continuation) // 2 for t in measured.traces[0].prompts)
    progress("solving the plan", 0.0)
    request = PlanRequest(
        target=measured.identities.target,
        device=measured.device,
        dtype=inputs.dtype,
        workload=size.workload,
        temperature=size.temperature,
        batches=BATCHES,
        contexts=(int(middle),),
    )
    return Chapter(profile=measured, inputs=inputs, plan=solve_and_store(inputs, request, store))


def compare(chapter: Chapter, models: Models, size: DemoSize, progress: Progress, started: float) -> DemoOutcome:
    """Measure the plan, plain decoding, the hand-set defaults and transformers on the evaluation prompts."""
    requests = requests_of(_evaluation(models, size), load_tokenizer(str(models.target)))
    device = torch_device(chapter.profile.device)
    found = {cell.batch: contestants(chapter.plan, cell, chapter.inputs) for cell in chapter.plan.cells}
    speeds, kept = {}, {}
    regime = decoding_regime(chapter.plan.regime, chapter.profile.device.kind)
    family = load_family(models, dtype=chapter.inputs.dtype, device=device, regime=regime)
    baseline = load_pretrained(str(models.target), dtype=chapter.inputs.dtype, device=device)
    for cell in chapter.plan.cells:
        progress(f"decoding side by side, batch {cell.batch}", 0.0)
        repeated = [
            measure_speeds(found[cell.batch], family, baseline, requests, cell.batch, seed=seed)
            for seed in range(size.repeats)
        ]
        names = repeated[0].tokens_per_s
        speeds[cell.batch] = {name: median(run.tokens_per_s[name] for run in repeated) for name in names}
        kept[cell.batch] = median(run.tokens_per_round[PLAN] for run in repeated)
    exact = load_family(models, dtype=EXACT_DTYPE, device=device)
    judge_model = load_pretrained(str(models.target), dtype=EXACT_DTYPE, device=device)
    counter = Counter(exact, judge_model, requests[: size.counted_prompts])
    for cell in chapter.plan.cells:
        progress(f"counting in fp32, batch {cell.batch}", 0.0)
        for contestant in found[cell.batch]:
            counter.run(contestant.setup, cell.batch)
    progress("replaying the measured prompts", 0.0)
    counted = replace(size, evaluation_prompts=min(size.counted_prompts, size.evaluation_prompts))
    traced = counter.traced(chapter.inputs, _evaluation(models, counted))
    rows: list[DemoRow] = []
    cells: list[CellOutcome] = []
    is_identical = True
    for cell in chapter.plan.cells:
        counts = {c.name: counter.count(c.setup, cell, traced) for c in found[cell.batch]}
        rows.extend(rows_of_cell(found[cell.batch], speeds[cell.batch], counts, cell.batch))
        cells.append(outcome_of_cell(cell, speeds[cell.batch], kept[cell.batch]))
        is_identical &= all(count.judgement.is_identical for count in counts.values())
    return DemoOutcome(
        device=chapter.profile.device.label,
        rows=tuple(rows),
        cells=tuple(cells),
        greedy_identical=is_identical,
        seconds=time.monotonic() - started,
    )


def _request(models: Models, size: DemoSize) -> ProfileRequest:
    prompts = calibration_prompts()[: size.calibration_prompts]
    return ProfileRequest(
        models=models,
        prompts=as_chats(prompts) if size.asks else prompts,
        workload=size.workload,
        temperature=size.temperature,
        batches=BATCHES,
        max_new_tokens=size.new_tokens,
        budget_s=size.budget_s,
    )


def _evaluation(models: Models, size: DemoSize) -> ProfileRequest:
    prompts = evaluation_prompts()[: size.evaluation_prompts]
    return replace(_request(models, size), prompts=as_chats(prompts) if size.asks else prompts, seed=1000)
