"""`spectune.load`: a target that decodes by the plan of its device."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from ..errors import ModelError
from ..planner.plans.plan import Plan
from ..profiler.device import detect
from ..profiler.hub import resolve_model
from ..profiler.identity import identify
from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import CAPTURED
from .batch.reason import reach_told, told
from .device_match import in_short
from .engine.generator import Generator
from .engine.stop_tokens import end_tokens
from .fallbacks import with_rivals, with_substitutes
from .models.configuration import why_shorter
from .models.drafter import load_drafter, require_drafter_of
from .models.forward import CausalModel
from .models.loading import DTYPES, load_config, load_model, load_tokenizer
from .models.pivots import PivotClassifier, load_pivots, require_pivots_of
from .models.regime import decoding_regime, in_regime, plain_regime
from .openmp import let_workers_go
from .plan_choice import Choice, choose_plan, plainly
from .watch.ledger import Subject
from .watch.observations import ObservationWriter, keeper
from .watch.options import WatchOptions
from .watch.watch import Watch


def load(
    target: str | Path,
    device: str = "auto",
    store: str | Path | None = None,
    plan: str | Path | int = "auto",
    *,
    drafters: Mapping[str, str | Path] | None = None,
    workload: str | None = None,
    temperature: float = 0.0,
    dtype: str | None = None,
    watch: WatchOptions | None = None,
    allow_lossy: bool = False,
) -> Generator:
    """Return a generator that decodes the target as fast as its plan allows; the output is the target's own.

    A faulty plan, store or drafter only costs speed: `Generator.choice` says which plan is used and why, or why none
    is. While it decodes, the generator watches itself: see `Watch`.

    Args:
        target: model folder in Hugging Face layout, safetensors; or, as a text, an id `org/name`, with an optional
            `@revision`, downloaded if the cache lacks it.
        device: "auto", "cpu" or "cuda:N".
        store: of plans, as `open_store` takes it; observations of a stored plan are written back to it.
        plan: "auto", "none", the number of a plan in the store, a plan file, or the URL of another store.
        drafters: folders or ids by name, where they differ from the recorded ones; also those of pivot classifiers.
        workload: of the plan; None: "default" if there is one, else the newest.
        temperature: of the requests that the plan was made for.
        dtype: of the weights; plans made for it come first. None: the plan's, without one the device's native one.
        watch: how closely it watches itself.
        allow_lossy: run a plan's lossy cells as they are, so that the output is not the target's own. Without it such
            cells use their fastest lossless way, and `Generator.choice` says so.

    Raises:
        ModelError: the target cannot be loaded.
        DeviceError: there is no such device.
        RequestError: there is no such plan file, or the store has no plan of that number.
    """
    plan, store = str(plan), None if store is None else str(store)
    here = detect(device)
    place = _place(target)
    identity = identify(place)
    choice = choose_plan(
        plan, target=identity, device=here, store=store, workload=workload, temperature=temperature, dtype=dtype
    )
    choice = _in_dtype(choice, dtype)
    number_format = dtype or (choice.plan.dtype if choice.plan else here.native_dtype)
    torch_device = "cpu" if here.kind == "cpu" else f"cuda:{here.index}"
    model = load_model(str(place), dtype=number_format, device=torch_device)
    is_lossy = allow_lossy and choice.plan is not None and bool(choice.plan.classifiers)
    regime = decoding_regime(choice.plan.regime, here.kind) if choice.plan else plain_regime(model)
    model = in_regime(model, "eager" if is_lossy else regime)
    shelf = _Shelf(choice.plan, identity, model, drafters or {}, dtype=number_format, device=torch_device)
    choice = with_substitutes(choice, shelf.has, model.longest_context, allow_lossy=allow_lossy)
    choice = _explained(choice, shelf.missing, shelf.classifying)
    choice = _with_reach(choice, shelf.models, model.longest_context)
    if watch is None or watch.rival_share:
        choice = with_rivals(choice, model.longest_context)
    watching = Watch(
        choice,
        watch,
        subject=_subject(choice, here, number_format),
        writer=_writer(choice, plan if "://" in plan else store),
    )
    tokenizer = load_tokenizer(str(place))
    let_workers_go()  # another thread may be the one that decodes
    return Generator(
        model,
        tokenizer,
        shelf.models,
        watching.schedule,
        choice,
        watching,
        allow_lossy=allow_lossy,
        judges=shelf.classifiers,
        ends=end_tokens(place, tokenizer),
        why_longest=why_shorter(load_config(str(place)).get_text_config()),
    )


def _place(named: str | Path) -> Path:
    return named if isinstance(named, Path) else resolve_model(named)


class _Shelf:
    """The drafters and classifiers of a plan, loaded on demand; `missing` has the reasons of those that fail."""

    def __init__(
        self,
        plan: Plan | None,
        identity: ModelIdentity,
        target: CausalModel,
        given: Mapping[str, str | Path],
        *,
        dtype: str,
        device: str,
    ) -> None:
        self.models: dict[str, CausalModel] = {}
        self.classifiers: dict[str, PivotClassifier] = {}
        self.missing: dict[str, str] = {}
        self._recorded = dict(plan.drafters) if plan is not None else {}
        self.classifying = dict(plan.classifiers) if plan is not None else {}
        self._identity, self._target, self._given = identity, target, given
        self._dtype, self._device = dtype, device

    def has(self, name: str) -> bool:
        """Return whether a drafter or a classifier can be loaded with the recorded weights."""
        if not any(name in known for known in (self.models, self.classifiers, self.missing)):
            try:
                if name in self.classifying:
                    self.classifiers[name] = self._load_classifier(name, self.classifying[name])
                else:
                    self.models[name] = self._load(name, self._recorded[name])
            except Exception as error:  # a drafter only makes things faster, and so does what lets its tokens be
                self.missing[name] = told(error)
        return name not in self.missing

    def _load(self, name: str, recorded: ModelIdentity) -> CausalModel:
        folder = _place(self._given.get(name, recorded.location))
        require_recorded(name, identify(folder, name), recorded)
        require_drafter_of(folder, self._identity)
        drafter = load_drafter(str(folder), self._target, dtype=self._dtype, device=self._device)
        return in_regime(drafter, CAPTURED) if self._target.regime == CAPTURED else drafter

    def _load_classifier(self, name: str, recorded: ModelIdentity) -> PivotClassifier:
        folder = _place(self._given.get(name, recorded.location))
        require_recorded(name, identify(folder, name), recorded, kind="classifier")
        require_pivots_of(folder, self._identity)
        return load_pivots(folder, self._target)


def require_recorded(name: str, found: ModelIdentity, recorded: ModelIdentity, kind: str = "drafter") -> None:
    """Raise ModelError unless a drafter, or another kind of model, has the weights recorded in the plan."""
    if found.key != recorded.key:
        raise ModelError(
            f"{kind} {name} at {found.location} has other weights ({found.key}) than the plan's ({recorded.key}); "
            f"profile and plan again, or pass the planned {kind}"
        )


def _in_dtype(choice: Choice, dtype: str | None) -> Choice:
    """Return the choice with a note where the plan has another number format; plain where that is unknown."""
    if choice.plan is None or dtype == choice.plan.dtype:
        return choice
    if dtype is not None:
        words = f"it was made for {choice.plan.dtype} and decodes in {dtype}; its prediction may be off"
        return replace(choice, dtype=dtype, reason=f"{choice.reason}; {words}")
    if choice.plan.dtype not in DTYPES:
        return plainly(f"plain decoding, the plan is of no use: it is for the unknown dtype {choice.plan.dtype!r}")
    return choice


def _explained(choice: Choice, missing: Mapping[str, str], classifying: Collection[str]) -> Choice:
    if not missing:
        return choice
    what = "a classifier" if set(classifying) >= missing.keys() else "a drafter"
    reasons = in_short([f"{name}: {reason}" for name, reason in missing.items()])
    return replace(choice, reason=f"{choice.reason}; {what} is missing: {reasons}")


def _with_reach(choice: Choice, drafters: Mapping[str, CausalModel], longest: int) -> Choice:
    short = [
        reach_told(name, each.longest_context, longest)
        for name, each in drafters.items()
        if each.longest_context < longest
    ]
    return replace(choice, reason="; ".join([choice.reason, *short])) if short else choice


def _subject(choice: Choice, device: Device, dtype: str) -> Subject | None:
    if choice.plan_id is None:
        return None
    return Subject(
        plan_id=choice.plan_id,
        device=device.fingerprint,
        dtype=dtype,
        source=choice.source,
        spectune=version("spectune"),
    )


def _writer(choice: Choice, store: str | None) -> ObservationWriter | None:
    return None if choice.plan_id is None else ObservationWriter(keeper(store, choice.plan_id))
