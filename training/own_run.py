"""A run that trains a drafter on its target's own text: its prompts, its texts, and its judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from ..errors import ModelError
from ..profiler.identity import identify
from ..profiler.records.model import ModelIdentity
from ..runtime.models.drafter import load_drafter
from ..runtime.models.lean import LeanModel
from ..runtime.models.loading import load_config, load_model
from ..runtime.models.tapped import require_lean
from ..runtime.models.vision import sees
from ..runtime.requests import Request
from .acceptance import Acceptance, chain_acceptance
from .own_prompts import OwnPrompts, own_prompts
from .own_text import Ids, OwnTextSettings, write_own_texts
from .run_folder import Asked, Progress, Sources, digest_of, run_folder

FORM = 2  # of what is written; another one is not gone on with


class OwnTextRequest(Asked, Protocol):
    """A request to train on a target's own text."""

    @property
    def target(self) -> Path:
        """The target's folder."""
        ...

    @property
    def data(self) -> tuple[Path, ...]:
        """Files of prompts for the target."""
        ...

    @property
    def own(self) -> OwnTextSettings:
        """How much the target writes."""
        ...

    @property
    def dtype(self) -> str:
        """Number format in which the target writes."""
        ...

    @property
    def device(self) -> str:
        """A torch device."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """A run whose texts (texts, longest), BLANK behind their ends, are written; `partial` holds its files."""

    target: ModelIdentity
    asked: OwnPrompts
    texts: Ids
    partial: Path


def own_run(request: OwnTextRequest, folder: Path, *, fresh: bool, progress: Progress) -> OwnRun:
    """Return a run with its texts: those in the drafter's folder, and the rest newly written; `fresh` restarts it.

    Raises:
        ModelError: the target cannot be loaded, or its hidden states cannot be read.
        RequestError: see `own_prompts`.
        TrainingError: there is too little text, or the folder holds another run or another model.
    """
    identity = identify(request.target)
    asked = prompts_for(request)
    partial = run_folder(request, identity, folder, _sources(request, identity, asked), fresh=fresh)

    def load() -> LeanModel:
        return require_lean(load_model(str(request.target), dtype=request.dtype, device=request.device))

    told = "the target writes its own text"
    progress(told, 0.0)
    texts = write_own_texts(load, asked.learned, partial, lambda share: progress(told, share))
    return OwnRun(target=identity, asked=asked, texts=texts, partial=partial)


def prompts_for(request: OwnTextRequest) -> OwnPrompts:
    """Return the prompts of a request; see `own_prompts`."""
    return own_prompts(request.target, request.data, request.own)


def require_text_target(target: Path) -> None:
    """Raise ModelError for a target that sees images."""
    if sees(load_config(str(target))):
        raise ModelError(
            f"{target} is a model that sees, and this drafter is trained on models of text alone; train an exit of it: "
            "spectune train exit"
        )


def judged(
    request: OwnTextRequest, requests: Sequence[Request], folder: Path, length: int, progress: Progress
) -> Acceptance:
    """Return the acceptance of a saved drafter's greedy chains along the target's texts behind other prompts."""
    progress("counting accepted drafts", 0.0)
    target = load_model(str(request.target), dtype=request.dtype, device=request.device)
    drafter = load_drafter(str(folder), target, dtype=request.dtype, device=request.device)
    gallery = target.gallery
    asked = requests if gallery is None else [gallery.shown(each, target) for each in requests]
    return chain_acceptance(target, drafter, asked, length)


def _sources(request: OwnTextRequest, target: ModelIdentity, asked: OwnPrompts) -> Sources:
    """Return all values that the texts depend on; file names do not count."""
    images = sha256("".join(image.digest for each in asked.learned for image in each.images).encode()).hexdigest()
    return {
        "form": FORM,
        "target": target.weights_hash,
        "number format": request.dtype,
        "size of texts": asdict(request.own),
        "images": images,
        "tokens of prompts": digest_of(asked.learned),
    }
