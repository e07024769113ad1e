"""A run that trains a drafter on its target's own text: its unfinished part on disk, its texts, and its judgement."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ..errors import ModelError, TrainingError
from ..profiler.records.model import ModelIdentity
from ..runtime.models.drafter import load_drafter
from ..runtime.models.lean import LeanModel
from ..runtime.models.loading import load_config, load_model
from ..runtime.models.tapped import require_lean
from ..runtime.models.vision import sees
from ..runtime.requests import Request
from .acceptance import Acceptance, chain_acceptance
from .kept_folder import PARTIAL, require_own
from .own_prompts import OwnPrompts, own_prompts
from .own_text import Ids, OwnTextSettings, write_own_texts

DATA = "data_sha256"  # of every file of a request, beside what was asked

Progress = Callable[[str, float], None]


class Asked(Protocol):
    """A dataclass that says what is to be trained."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # what makes it one; Any: typeshed's own type of it


class OwnTextRequest(Asked, Protocol):
    """One of a drafter that learns from its target's own text."""

    @property
    def target(self) -> Path:
        """The target's folder."""
        ...

    @property
    def data(self) -> tuple[Path, ...]:
        """Files of what the target goes on with."""
        ...

    @property
    def own(self) -> OwnTextSettings:
        """How much the target writes."""
        ...

    @property
    def dtype(self) -> str:
        """In which the target writes."""
        ...

    @property
    def device(self) -> str:
        """A torch device."""
        ...


def run_folder(request: Asked, identity: ModelIdentity, folder: Path, *, fresh: bool) -> Path:
    """Return the folder of the unfinished run, new or of the same request.

    Args:
        request: what is asked; it must be the same for a run to go on, and so must what lies in its files.
        identity: of the target.
        folder: the drafter's own.
        fresh: forget what an earlier run left unfinished.

    Raises:
        TrainingError: the folder holds another unfinished run, or a model that was not trained here.
    """
    require_own(folder, Path(identity.location))
    partial = folder / PARTIAL
    if fresh and partial.exists():
        shutil.rmtree(partial)
    asked = json.loads(json.dumps({**asdict(request), "target": identity.weights_hash}, default=str))
    data = {str(path): sha256(path.read_bytes()).hexdigest() for path in getattr(request, "data", ())}
    note = partial / "request.json"
    if note.exists():
        _require_same(folder, note.read_text(), asked, data)
    partial.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({**asked, DATA: data}, sort_keys=True))
    return partial


def _require_same(folder: Path, written: str, asked: dict[str, Any], data: dict[str, str]) -> None:
    """Raise TrainingError unless an unfinished run is of this request; older ones do not say what lay in its files."""
    try:
        known: dict[str, Any] = json.loads(written)
    except ValueError:
        known = {}
    lay = known.pop(DATA, data)
    if known != asked:
        raise TrainingError(f"{folder} holds another unfinished run; finish it, or forget it with --fresh")
    changed = [path for path, digest in data.items() if lay.get(path) != digest]
    if changed:
        raise TrainingError(
            f"{folder} holds an unfinished run of other data: {', '.join(changed)} changed since it began; put back "
            "what lay there, or forget the run with --fresh"
        )


def prompts_for(request: OwnTextRequest) -> OwnPrompts:
    """Return what the target of a request is asked, see `own_prompts`."""
    return own_prompts(request.target, request.data, request.own)


def require_text_target(target: Path) -> None:
    """Raise ModelError for a target that images can be shown to."""
    if sees(load_config(str(target))):
        raise ModelError(
            f"{target} is a model that sees, and this drafter is trained on models of text alone; train an exit of it: "
            "spectune train exit"
        )


def own_texts_of(request: OwnTextRequest, requests: Sequence[Request], partial: Path, progress: Progress) -> Ids:
    """Return (texts, longest): what the target wrote, as `write_own_texts` keeps it in the run's folder."""

    def load() -> LeanModel:
        return require_lean(load_model(str(request.target), dtype=request.dtype, device=request.device))

    told = "the target writes its own text"
    progress(told, 0.0)
    return write_own_texts(load, requests, partial, lambda share: progress(told, share))


def judged(
    request: OwnTextRequest, requests: Sequence[Request], folder: Path, length: int, progress: Progress
) -> Acceptance:
    """Return how greedy chains of a saved drafter are accepted along the target's texts behind other prompts."""
    progress("counting accepted drafts", 0.0)
    target = load_model(str(request.target), dtype=request.dtype, device=request.device)
    drafter = load_drafter(str(folder), target, dtype=request.dtype, device=request.device)
    gallery = target.gallery
    asked = requests if gallery is None else [gallery.shown(each, target) for each in requests]
    return chain_acceptance(target, drafter, asked, length)
