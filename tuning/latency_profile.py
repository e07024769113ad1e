"""The latency job: surfaces alone, in any role, also of models without weights or spread over several devices."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from ..db.store import Store
from ..errors import RequestError
from ..profiler.design import AdaptiveDesign
from ..profiler.device import detect
from ..profiler.domain import Domain
from ..profiler.identity import identify, identify_config
from ..profiler.latency import measure
from ..profiler.protocols import ShapeRunner
from ..profiler.records.device import AUTO_DTYPE, Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import BLOCK, DRAFT_ROLES, HEAD, READ, RESUME, SELF, require_role
from ..profiler.records.surface import LatencySurface
from ..profiler.session import TimingSettings
from ..runtime.models.drafter import load_drafter, require_computable
from ..runtime.models.formats import draft_role, own_packed, require_no_drafter
from ..runtime.models.forward import CausalModel
from ..runtime.models.loading import load_model
from ..runtime.models.parallel import leave, load_parallel, rank
from ..runtime.models.random import count_parameters, load_random
from ..runtime.models.regime import in_regime
from ..runtime.models.rehearsal import require_loadable
from ..runtime.shapes import ForwardShapes, room_of
from ..runtime.shapes.lockstep import LockstepShapes, follow
from .family import require_apart, require_formats, require_regime, settled_regime, torch_device
from .measuring.holding import device_session
from .measuring.timing import draft_tokens, resumed_domain, runner_for
from .parts import finished_surfaces
from .prompt_room import positions_of, why_shorter_at
from .prompts import require_contexts
from .request import Identities, Models
from .steps import Progress

LOOP_WIDTH = 10  # of a drafting loop: EAGLE-2's published beam
OF_DRAFTERS = ("draft", "loop", RESUME)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRequest:
    """What is to be timed: every role of the target, and every role of drafters of each drafter."""

    models: Models  # folders, or config.json files for random weights
    contexts: tuple[int, ...]
    roles: tuple[str, ...] = ("verify", "draft")
    device: str = "auto"
    dtype: str = AUTO_DTYPE  # or a name of PyTorch's
    regime: str = "auto"  # see `family.settled_regime`
    batches: tuple[int, ...] = (1, 8)
    most_tokens: int = 64  # per sequence, of the target's forwards
    budget_s: float = 30.0
    held_out: int = 30
    ranks: int = 1  # devices the target is spread over
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.contexts or min(self.contexts) < 1 or not self.batches or min(self.batches) < 1:
            raise RequestError(
                f"timing alone needs --context and --batch of at least 1, got {list(self.contexts)} and "
                f"{list(self.batches)}; for example --context 128,2048"
            )
        if not self.roles or len(set(self.roles)) < len(self.roles) or self.most_tokens < 1 or self.ranks < 1:
            raise RequestError(f"need distinct roles, and tokens and devices of at least 1, got {self}")
        if RESUME in self.roles and not any(draft_role(path) == SELF for path in self.models.drafters.values()):
            raise RequestError(f"{RESUME} is timed of exits, and none is among the drafters; leave the role out")
        for role in self.roles:
            require_role(role)
            if role == READ:
                raise RequestError(f"{role} is timed by a profile of prompts; leave the role out, or give prefill")
            if role in (BLOCK, HEAD, SELF):
                raise RequestError(f"a {role} is timed as draft, and its surface says {role}; give the role draft")
        if self.ranks > 1 and (self.models.drafters or _is_config(self.models.target)):
            raise RequestError("a target spread over several devices is timed alone, from its weights' folder")
        if self.ranks > 1 and set(self.roles) - {"verify", "draft"}:
            raise RequestError(f"a target spread over several devices is timed as verify only, not {list(self.roles)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProfile:
    """What was timed."""

    device: Device
    identities: Identities
    surfaces: tuple[LatencySurface, ...]
    seconds: float
    is_resumed: bool
    disturbances: tuple[str, ...]


def profile_latency(
    request: LatencyRequest, store: Store, *, fresh: bool = False, lock_wait_s: float = 0.0, progress: Progress
) -> LatencyProfile:
    """Time every role of every model, store the surfaces, and return them.

    SpectuneError where a model, role or device is not fit; nothing was measured then; Interrupted: Ctrl-C; what was
    timed is in the store, and the same request resumes there.
    """
    start = time.monotonic()
    device = detect(request.device)
    regime = settled_regime(request.regime, device)
    request = replace(request, dtype=device.dtype_for(request.dtype), regime=regime)
    require_regime(regime, device)
    identities = _identities(request.models)
    _require_fit(request, device)
    with device_session(device, identities, store, wait_s=lock_wait_s) as disturbed:
        journal = store.open_profile(_key(request, device, identities), fresh)
        surfaces = finished_surfaces(journal)
        if surfaces is None:
            progress("loading", 0.0)
            domains = [_domain(request, device, role) for _, role in _timed(request, identities)]
            session = TimingSettings(seed=request.seed)
            with _runners(request, identities, device, domains) as runners:
                surfaces = measure(
                    runners,
                    domains,
                    device=device,
                    budget_s=request.budget_s,
                    sink=journal,
                    design=AdaptiveDesign(domains, held_out=request.held_out),
                    progress=lambda share: progress("timing forwards", share),
                    session=replace(session, prepared=1) if request.ranks > 1 else session,
                )
        journal.finish()
        noticed = disturbed()
    return LatencyProfile(
        device=device,
        identities=identities,
        surfaces=surfaces,
        seconds=time.monotonic() - start,
        is_resumed=journal.is_resumed,
        disturbances=noticed,
    )


def follow_rank(request: LatencyRequest) -> int:
    """Run forwards in step with the process that measures, until it ends; return how many there were."""
    device = detect(request.device)
    domain, dtype = _domain(request, device, "verify"), device.dtype_for(request.dtype)
    model = load_parallel(str(request.models.target), dtype=dtype, ranks=request.ranks)
    try:
        return follow(_share(model, "", request, domain))
    finally:
        leave()


def _timed(request: LatencyRequest, identities: Identities) -> list[tuple[ModelIdentity, str]]:
    of_target = [role for role in request.roles if role.partition(":")[0] not in OF_DRAFTERS]
    of_drafters = [role for role in request.roles if role.partition(":")[0] in OF_DRAFTERS]
    timed = [(identities.target, role) for role in of_target]
    for model in identities.drafters.values():
        own = draft_role(Path(model.location))
        timed += [(model, own if role == "draft" else role) for role in of_drafters if role != RESUME or own == SELF]
    return timed


def _domain(request: LatencyRequest, device: Device, role: str) -> Domain:
    contexts, batches = tuple(sorted(set(request.contexts))), tuple(sorted(set(request.batches)))
    kind = role.partition(":")[0]
    if kind == "prefill":
        return Domain(batches=batches, contexts=(0,), least_tokens=1, most_tokens=contexts[-1])
    if kind == RESUME:
        return resumed_domain(batches, contexts, device.tile_rows(request.dtype))
    drafted = dict.fromkeys(DRAFT_ROLES, draft_tokens(device)) | {"loop": LOOP_WIDTH}
    tokens = drafted.get(kind, request.most_tokens)
    rows = device.tile_rows(request.dtype)
    return Domain(batches=batches, contexts=contexts, most_tokens=tokens, tile_rows=rows)


@contextmanager
def _runners(
    request: LatencyRequest, identities: Identities, device: Device, domains: Sequence[Domain]
) -> Iterator[list[ShapeRunner]]:
    """Yield one runner per timed model and role; a spread target's other processes end with the block."""
    if request.ranks > 1:
        model = load_parallel(str(request.models.target), dtype=request.dtype, ranks=request.ranks)
        leader = LockstepShapes(_share(model, identities.target.key, request, domains[0]))
        try:
            yield [leader]
        finally:
            leader.close()
            leave()
        return
    places = {identities.target.key: request.models.target} | {
        identities.drafters[name].key: path for name, path in request.models.drafters.items()
    }
    target = _loaded(request.models.target, request, torch_device(device))
    loaded = {
        key: target if path == request.models.target else _loaded(path, request, torch_device(device), target)
        for key, path in places.items()
    }
    running = {key: in_regime(model, request.regime) for key, model in loaded.items()}
    yield [
        _runner((loaded if role.startswith("exit") else running)[model.key], role, model.key, request, domain)
        for (model, role), domain in zip(_timed(request, identities), domains, strict=True)
    ]


def _runner(model: CausalModel, role: str, identity: str, request: LatencyRequest, domain: Domain) -> ShapeRunner:
    return runner_for(model, role, identity, request, domain, domain.contexts[-1])


def _share(model: CausalModel, identity: str, request: LatencyRequest, domain: Domain) -> ForwardShapes:
    capacity = room_of("verify", domain.contexts[-1], domain.most_tokens)
    slots = max(request.batches)
    return ForwardShapes(model, identity=identity, dtype=request.dtype, role="verify", slots=slots, capacity=capacity)


def _loaded(path: Path, request: LatencyRequest, device: str, target: CausalModel | None = None) -> CausalModel:
    if target is not None and draft_role(path) != "draft":
        return load_drafter(str(path), target, dtype=request.dtype, device=device)
    if _is_config(path):
        return load_random(path, dtype=request.dtype, device=device, seed=request.seed)
    dtype = request.dtype if target is None else own_packed(path, request.dtype)
    return load_model(str(path), dtype=dtype, device=device)


def _identities(models: Models) -> Identities:
    drafters = {name: _identity(path, name) for name, path in models.drafters.items()}
    require_apart(drafters)
    for path in models.drafters.values():
        require_computable(path, str(models.target))
    return Identities(target=_identity(models.target, None), drafters=drafters)


def _require_fit(request: LatencyRequest, device: Device) -> None:
    """Raise SpectuneError where a model cannot be loaded, or no token fits behind a context; no weight is read."""
    target, drafters = request.models.target, request.models.drafters.values()
    for path in (target, *(path for path in drafters if draft_role(path) == "draft")):
        if _is_config(path):
            require_no_drafter(path)
        else:
            require_loadable(str(path))
    require_formats(request.models, request.dtype, device)
    if any(role.partition(":")[0] != "prefill" for role in request.roles):
        require_contexts(request.contexts, positions_of(target), why_shorter_at(target))


def _identity(path: Path, name: str | None) -> ModelIdentity:
    return identify_config(path, count_parameters(path), name) if _is_config(path) else identify(path, name)


def _is_config(path: Path) -> bool:
    """Return whether a model is only a configuration, with random weights; a GGUF file holds its own."""
    return path.suffix == ".json" and path.is_file()


def _key(request: LatencyRequest, device: Device, identities: Identities) -> str:
    models = [identities.target.key, *(f"{name} {model.key}" for name, model in identities.drafters.items())]
    asked = (request.roles, request.regime, request.dtype, request.batches, request.contexts, request.most_tokens)
    facts = (version("spectune"), device.fingerprint, models, asked, request.held_out, request.ranks, request.seed)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def is_leader() -> bool:
    """Whether this process measures: the only one, or the first of those torchrun started."""
    return rank() == 0
