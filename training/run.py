"""A drafter from its request to its card: the target writes, a head learns, and its accepted drafts are counted."""

from __future__ import annotations

import json
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import ModelError, TrainingError
from ..profiler.identity import identify
from ..profiler.records.model import ModelIdentity
from ..runtime.batch.sequence import Request
from ..runtime.models.drafter import load_drafter
from ..runtime.models.lean import LeanModel
from ..runtime.models.loading import load_config, load_model
from ..runtime.models.tapped import require_lean
from ..runtime.models.vision import sees
from .acceptance import ChainAcceptance, chain_acceptance
from .cards import TrainedCard, save_card
from .own_text import BLANK, Ids, OwnTextSettings, write_own_texts
from .prompts import OwnPrompts, own_prompts
from .run_folder import LESS_TEXT, RUN, Progress, Sources, digest_of, run_folder, tells_of_room
from .trainer import Checkpoint, Loss, Tokens, TrainingSettings, train

FORM = 2  # of what is written; another one is not gone on with

Facts = dict[str, Any]  # Any: each field of a card has its own type


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTextRequest:
    """A drafter to make of a target's own text."""

    NEEDS: ClassVar = "a drafter needs text to learn from"

    target: Path
    data: tuple[Path, ...]  # files of text or conversations, which the target goes on with
    own: OwnTextSettings = field(default_factory=OwnTextSettings)
    device: str = "cpu"
    dtype: str = "bfloat16"  # in which the target writes

    def __post_init__(self) -> None:
        if not self.data:
            raise TrainingError(f"{self.NEEDS}; give one file or more")

    @property
    def prompts(self) -> OwnPrompts:
        """The prompts; see `own_prompts`."""
        return own_prompts(self.target, self.data, self.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRequest(OwnTextRequest, ABC):
    """A drafter to train on it; each kind of head has its own request."""

    settings: TrainingSettings
    cache: Path | None = None  # where texts and states stay for other trainings; None: they go with the run
    hours: float = math.inf  # most time, texts included; then the training ends early

    @property
    @abstractmethod
    def length(self) -> int:
        """The tokens of the chains whose acceptance is counted."""

    def require_target(self) -> None:
        """Raise ModelError for a target that this head cannot learn from, before it writes."""
        if sees(load_config(str(self.target))):
            raise ModelError(
                f"{self.target} is a model that sees, and this drafter is trained on models of text alone; train an "
                "exit of it: spectune train exit"
            )

    @abstractmethod
    def head(self, run: Run) -> Head:
        """Return the head to train."""


class Head(ABC):
    """A drafter in training: a network, its loss, what it reads from the target, and its folder."""

    NOUN: ClassVar = "drafter"  # for people

    network: nn.Module
    numbers: Tokens  # of what is learned from, of which `together` neighbours are drawn at a time
    together: int = 1

    @abstractmethod
    def loss(self, picked: Tensor) -> Tensor:
        """Return the loss of numbers (batch, together + 1), the last column of which is not learned from."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the drafter's weights and configuration."""

    @abstractmethod
    def card(self, facts: Facts) -> TrainedCard:
        """Return the card; `facts` are the fields of every card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run whose texts (texts, longest), BLANK behind their ends, are written.

    `partial` holds its checkpoint, `kept` its texts and the target's states; `began` is the clock's time in seconds.
    """

    request: LearningRequest
    target: ModelIdentity
    asked: OwnPrompts
    texts: Ids
    partial: Path
    kept: Path
    began: float
    progress: Progress

    def facts(self, head: Head, course: Checkpoint) -> Facts:
        """Return what every card says of a training, before accepted drafts are counted."""
        settings = self.request.settings
        return {
            "target": self.target.name,
            "target_hash": self.target.weights_hash,
            "parameters": sum(tensor.numel() for tensor in head.network.parameters()),
            "files": tuple(path.name for path in self.request.data),
            "own_texts": self.request.own.texts,
            "own_tokens": int((self.texts != BLANK).sum()),
            "steps": len(course.losses),
            "batch": settings.batch,
            "seed": settings.seed,
            "losses": tuple(course.losses),
            **dict.fromkeys(("tokens_per_round", "seconds"), 0.0),
            "acceptance": (),
            "rounds": 0,
        }


@tells_of_room(LESS_TEXT)
def train_drafter(request: LearningRequest, folder: Path, *, fresh: bool = False, progress: Progress) -> TrainedCard:
    """Train a drafter, save it with its card in a folder, and return the card, with its acceptance in chains.

    The same request with the same folder resumes a stopped run; `fresh` drops it instead.

    Raises:
        ModelError: the target cannot be loaded, or its hidden states cannot be read.
        RequestError: a line of a file is malformed, or the target has too few positions for its texts.
        TrainingError: there is too little text, the folder holds another run or another model, or cannot be written.
    """
    request.require_target()
    run = own_run(request, folder, fresh=fresh, progress=progress)
    card, course = _learned(run, folder)  # on its return the memory of the training is free
    accepted = judged(request, run.asked.judged, folder, request.length, progress)
    card = replace(
        card,
        acceptance=accepted.by_depth,
        tokens_per_round=accepted.tokens_per_round,
        rounds=accepted.rounds,
        seconds=course.seconds,
    )
    save_card(folder, card)
    shutil.rmtree(run.partial)
    return card


def own_run(request: LearningRequest, folder: Path, *, fresh: bool, progress: Progress) -> Run:
    """Return a run with its texts: those of earlier runs, and the rest newly written; `fresh` restarts the training.

    Raises:
        ModelError: the target cannot be loaded, or its hidden states cannot be read.
        RequestError: see `own_prompts`.
        TrainingError: there is too little text, or the folder holds another run or another model.
    """
    began, identity, asked = time.monotonic(), identify(request.target), request.prompts
    sources = _sources(request, identity, asked)
    partial = run_folder(request, identity, folder, sources, fresh=fresh)
    kept = partial if request.cache is None else request.cache / _fingerprint(sources)
    kept.mkdir(parents=True, exist_ok=True)

    def load() -> LeanModel:
        return require_lean(load_model(str(request.target), dtype=request.dtype, device=request.device))

    told = "the target writes its own text"
    progress(told, 0.0)
    texts = write_own_texts(load, asked.learned, kept, lambda share: progress(told, share))
    return Run(
        request=request, target=identity, asked=asked, texts=texts, partial=partial, kept=kept, began=began,
        progress=progress,
    )  # fmt: skip


def fit(
    noun: str, network: nn.Module, loss: Loss, numbers: Tokens, settings: TrainingSettings, course: Checkpoint,
    progress: Progress,
) -> None:  # fmt: skip
    """Train a network called `noun` for people in place, or go on with that; TrainingError where no time is left."""
    for _ in train(network, loss, numbers, settings, course):
        progress(f"training the {noun}", max(len(course.losses) / settings.steps, course.spent))
    if not course.losses:
        raise TrainingError(
            f"no time was left to train the {noun} after {course.seconds / 3600.0:.2f} hours of reading; the texts are "
            "kept: give the same command again, or raise --hours"
        )


def judged(
    request: OwnTextRequest, requests: Sequence[Request], folder: Path, length: int, progress: Progress
) -> ChainAcceptance:
    """Return the acceptance of a saved drafter's greedy chains along the target's texts behind other prompts."""
    progress("counting accepted drafts", 0.0)
    target = load_model(str(request.target), dtype=request.dtype, device=request.device)
    drafter = load_drafter(str(folder), target, dtype=request.dtype, device=request.device)
    gallery = target.gallery
    asked = requests if gallery is None else [gallery.shown(each, target) for each in requests]
    return chain_acceptance(target, drafter, asked, length)


def _learned(run: Run, folder: Path) -> tuple[TrainedCard, Checkpoint]:
    """Train and save a head."""
    settings, course = run.request.settings, Checkpoint(run.partial / RUN)
    course.began, course.limit_s = run.began, 3600.0 * run.request.hours
    torch.manual_seed(settings.seed)
    head = run.request.head(run)
    settings = replace(settings, sequence_tokens=head.together)
    fit(head.NOUN, head.network, head.loss, head.numbers, settings, course, run.progress)
    head.save(folder)
    return head.card(run.facts(head, course)), course


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


def _fingerprint(sources: Sources) -> str:
    """Return the name of a folder for what follows from these sources."""
    return sha256(json.dumps(sources, sort_keys=True, default=str).encode()).hexdigest()[:16]
