"""`spectune.load`: a target that decodes by the plan of its device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import ModelError
from ..planner.plan import Plan, PlanCell
from ..planner.schedule import next_cell
from ..profiler.device import detect
from ..profiler.identity import identify
from ..profiler.records.model import ModelIdentity
from .choice import Choice, choose_plan
from .generator import Generator
from .models.forward import CausalModel
from .models.loading import load_model, load_tokenizer, require_one_vocabulary
from .setup import PLAIN, RoundSetup, Schedule, always, setup_of

LOOKUP = "lookup"  # the plan's name for the text itself as drafter


def load(
    target: str | Path,
    device: str = "auto",
    store: str | None = None,
    plan: str = "auto",
    *,
    drafters: Mapping[str, str | Path] | None = None,
    workload: str = "default",
    temperature: float = 0.0,
    dtype: str | None = None,
) -> Generator:
    """Return a generator that decodes the target as fast as its plan knows how; the output is the target's own.

    Args:
        target: model folder in Hugging Face layout, safetensors.
        device: "auto", "cpu" or "cuda:N".
        store: where plans are kept, as `open_store` takes it.
        plan: "auto", "none", or a plan file.
        drafters: folders by name, where they differ from the recorded ones.
        workload: whose plan to take.
        temperature: of the requests the plan was made for.
        dtype: of the weights; the plan's where None, bfloat16 without a plan.

    Raises:
        ModelError: the target cannot be loaded.
        PlanError: a plan *file* is corrupt or for another target or device. Whatever else is wrong with
            a plan means plain decoding, and `Generator.choice` says why.
    """
    identity = identify(Path(target))
    here = detect(device)
    choice = choose_plan(plan, target=identity, device=here, store=store, workload=workload, temperature=temperature)
    place = "cpu" if here.kind == "cpu" else f"cuda:{here.index}"
    number_format = dtype or (choice.plan.dtype if choice.plan else "bfloat16")
    models: dict[str, CausalModel] = {}
    if choice.plan is not None:
        try:
            models = _drafters(choice.plan, Path(target), drafters or {}, number_format, place)
        except ModelError as error:
            choice = Choice(plan=None, source="none", reason=f"plain decoding, a drafter is missing: {error}")
    return Generator(
        load_model(str(target), dtype=number_format, device=place),
        load_tokenizer(str(target)),
        models,
        _schedule(choice.plan),
        choice,
    )


def _drafters(
    plan: Plan, target: Path, given: Mapping[str, str | Path], dtype: str, device: str
) -> dict[str, CausalModel]:
    """Return the models the plan's cells draft with, each checked against the recorded weights."""
    needed = {cell.drafter for cell in plan.cells} - {None, LOOKUP}
    loaded = {}
    for name, recorded in plan.drafters:
        if name in needed:
            folder = Path(given.get(name, recorded.location))
            require_recorded(name, identify(folder, name), recorded)
            require_one_vocabulary(str(target), str(folder))
            loaded[name] = load_model(str(folder), dtype=dtype, device=device)
    return loaded


def require_recorded(name: str, found: ModelIdentity, recorded: ModelIdentity) -> None:
    """Raise ModelError unless a drafter has the weights that a plan was made with."""
    if found.key != recorded.key:
        raise ModelError(
            f"drafter {name} at {found.location} has other weights ({found.key}) than the plan's ({recorded.key}); "
            "profile and plan again, or pass the planned drafter"
        )


def _schedule(plan: Plan | None) -> Schedule:
    """Return the plan's cells as round setups; plain decoding without a plan."""
    return always(PLAIN) if plan is None else PlannedSchedule(plan)


class PlannedSchedule:
    """A plan's cells as round setups, with its hysteresis: a cell is left only when another is clearly nearer."""

    def __init__(self, plan: Plan) -> None:
        """Start in no cell."""
        self._plan = plan
        self._cell: PlanCell | None = None
        self._setups = {id(cell): setup_of(cell) for cell in plan.cells}

    def __call__(self, batch: int, context: int) -> RoundSetup:
        """Return how to run a round of so many sequences behind so many tokens."""
        self._cell = next_cell(self._plan, self._cell, batch, context)
        return self._setups[id(self._cell)]
