"""A run that trains a drafter on its target's own text: what it is asked, its texts, and its judgement."""

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
    """What is to be trained on a target's own text."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """A run whose texts are written.

    Attributes:
        target: whose.
        asked: what the texts stand behind.
        texts: (texts, longest), BLANK behind their ends.
        partial: folder of what is kept until the run is done.
    """

    target: ModelIdentity
    asked: OwnPrompts
    texts: Ids
    partial: Path


def own_run(request: OwnTextRequest, folder: Path, *, fresh: bool, progress: Progress) -> OwnRun:
    """Return a run whose texts are those that lie in its folder, and what the target has written besides.

    Args:
        request: what is to be trained.
        folder: the drafter's own; made if it is not there.
        fresh: forget what an earlier run left unfinished.
        progress: told the share of texts that are written.

    Raises:
        ModelError: the target cannot be loaded, or is of a kind whose hidden states cannot be read.
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
    """Return what the target of a request is asked, see `own_prompts`."""
    return own_prompts(request.target, request.data, request.own)


def require_text_target(target: Path) -> None:
    """Raise ModelError for a target that images can be shown to."""
    if sees(load_config(str(target))):
        raise ModelError(
            f"{target} is a model that sees, and this drafter is trained on models of text alone; train an exit of it: "
            "spectune train exit"
        )


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


def _sources(request: OwnTextRequest, target: ModelIdentity, asked: OwnPrompts) -> Sources:
    """Return what texts follow from; what was asked says all that files mean, whatever these are called."""
    images = sha256("".join(image.digest for each in asked.learned for image in each.images).encode()).hexdigest()
    return {
        "form": FORM,
        "target": target.weights_hash,
        "number format": request.dtype,
        "size of texts": asdict(request.own),
        "images": images,
        "tokens of prompts": digest_of(asked.learned),
    }
