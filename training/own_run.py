"""A run that trains a drafter on its target's own text: its prompts, its texts, and its judgement."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ..errors import ModelError, TrainingError
from ..profiler.identity import identify
from ..profiler.prompt_files import is_data
from ..profiler.prompts import Prompt, read_prompts
from ..profiler.records.model import ModelIdentity
from ..runtime.batch.images import read_image
from ..runtime.batch.sequence import Request, require_positions
from ..runtime.engine.prompts import beginning, encode_prompt, prompt_ids
from ..runtime.engine.stop_tokens import end_tokens
from ..runtime.models.drafter import load_drafter
from ..runtime.models.image_cache import IMAGES
from ..runtime.models.lean import LeanModel
from ..runtime.models.loading import load_config, load_model, load_tokenizer
from ..runtime.models.tapped import require_lean
from ..runtime.models.vision import image_tokens, sees
from .acceptance import ChainAcceptance, chain_acceptance
from .cards import Card, save_card
from .corpus import Corpus, parted, read_corpus
from .frozen import positions_of
from .language_model import Checkpoint, Loss, Tokens, TrainingSettings, train
from .own_text import BLANK, Ids, OwnTextSettings, write_own_texts
from .run_folder import RUN, Progress, Sources, digest_of, run_folder

FORM = 2  # of what is written; another one is not gone on with

Losses = tuple[float, ...]
Made = TypeVar("Made", bound=Card)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRequest(OwnTextRequest):
    """A drafter to train on it."""

    settings: TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """A run whose texts (texts, longest), BLANK behind their ends, are written; `partial` holds its files."""

    request: LearningRequest
    target: ModelIdentity
    asked: OwnPrompts
    texts: Ids
    partial: Path
    progress: Progress

    def fit(self, name: str, network: nn.Module, loss: Loss, numbers: Tokens, settings: TrainingSettings) -> Losses:
        """Train a network called `name` for people in place, or go on with that; return the loss of every step."""
        checkpoint = Checkpoint(self.partial / RUN)
        for _ in train(network, loss, numbers, settings, checkpoint):
            self.progress(f"training the {name}", len(checkpoint.losses) / settings.steps)
        return tuple(checkpoint.losses)

    def facts(self, parameters: Iterable[Tensor], losses: Losses) -> dict[str, Any]:  # Any: each field has its own type
        """Return what every card says of a training, before accepted drafts are counted."""
        settings = self.request.settings
        return {
            "target": self.target.name,
            "target_hash": self.target.weights_hash,
            "parameters": sum(tensor.numel() for tensor in parameters),
            "files": tuple(path.name for path in self.request.data),
            "own_texts": self.request.own.texts,
            "own_tokens": int((self.texts != BLANK).sum()),
            "steps": settings.steps,
            "batch": settings.batch,
            "seed": settings.seed,
            "losses": losses,
            **dict.fromkeys(("tokens_per_round", "seconds"), 0.0),
            "acceptance": (),
            "rounds": 0,
        }


def trained(
    request: LearningRequest,
    folder: Path,
    learned: Callable[[OwnRun], Made],
    length: int,
    *,
    fresh: bool,
    progress: Progress,
) -> Made:
    """Return the card of a drafter that `learned` trains and saves, with its acceptance in chains of a length.

    The same request with the same folder resumes a stopped run; `fresh` drops it instead.

    Raises:
        ModelError: the target cannot be loaded, or its hidden states cannot be read.
        RequestError: a line of a file is malformed, or the target has too few positions for its texts.
        TrainingError: there is too little text, the folder holds another run or another model, or cannot be written.
    """
    start = time.monotonic()
    run = own_run(request, folder, fresh=fresh, progress=progress)
    card = learned(run)  # on its return the memory of the training is free
    accepted = judged(request, run.asked.judged, folder, length, progress)
    card = replace(
        card,
        acceptance=accepted.by_depth,
        tokens_per_round=accepted.tokens_per_round,
        rounds=accepted.rounds,
        seconds=time.monotonic() - start,
    )
    save_card(folder, card)
    shutil.rmtree(run.partial)
    return card


def own_run(request: LearningRequest, folder: Path, *, fresh: bool, progress: Progress) -> OwnRun:
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
    return OwnRun(request=request, target=identity, asked=asked, texts=texts, partial=partial, progress=progress)


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
) -> ChainAcceptance:
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


HELD_OUT = 0.05  # share of text that a drafter does not learn behind: its acceptance is counted there
CHECKED = 24  # texts whose drafts are counted when a drafter is done
TALK_TOKENS = 256  # of a conversation's end that are read, as of a piece of text `OwnTextSettings.prompt_tokens`


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrompts:
    """Requests to the target: texts to learn from, and greedy ones, behind other text, to judge by."""

    begins: tuple[int, ...]
    learned: tuple[Request, ...]
    judged: tuple[Request, ...]


def own_prompts(target: Path, files: Sequence[Path], settings: OwnTextSettings) -> OwnPrompts:
    """Return requests for pieces from anywhere in files, ends of conversations, or prompts with images.

    Raises:
        ModelError: the target's hidden states cannot be read.
        TrainingError: there is too little, a file is not text, or is given with prompts with images.
        RequestError: a line is malformed, an image cannot be read, or the target sees none or has too few positions.
    """
    longest, tokenizer = positions_of(target), load_tokenizer(str(target))
    stop, pictured = end_tokens(target, tokenizer), _with_images(files)
    if pictured:
        found = _pictured(pictured, target, tokenizer, settings, stop)
    else:
        read = [read_corpus(path, tokenizer).ended(TALK_TOKENS, tokenizer) for path in files]
        learned, judged = _parted(read, settings)
        judging = replace(settings, texts=CHECKED, sampled=0.0, seed=settings.seed + 1)
        found = OwnPrompts(
            begins=learned.begins,
            learned=tuple(own_requests(learned, settings, stop)),
            judged=tuple(own_requests(judged, judging, stop)),
        )
    require_positions((*found.learned, *found.judged), longest, "lower --new-tokens, or give shorter prompts")
    return found


def own_requests(corpus: Corpus, settings: OwnTextSettings, stop: frozenset[int] = frozenset()) -> list[Request]:
    """Return requests behind pieces and conversations, drawn by their tokens; TrainingError for too little text."""
    if len(corpus.tokens) <= 2 * settings.prompt_tokens and not corpus.conversations:
        raise TrainingError(
            f"{len(corpus.tokens)} tokens are too few to draw prompts of {settings.prompt_tokens}; give more"
        )
    piece = max(settings.prompt_tokens - len(corpus.begins), 1)
    talks = corpus.conversations
    ends = max(len(corpus.tokens) - piece, 0) + np.cumsum([0, *map(len, talks)])
    drawn = np.random.default_rng(settings.seed).integers(0, ends[-1], settings.texts)
    return [
        Request(
            prompt=talks[int(np.searchsorted(ends, place, side="right")) - 1]
            if place >= ends[0]
            else (*corpus.begins, *corpus.tokens[place : place + piece].tolist()),
            max_new_tokens=settings.new_tokens,
            temperature=settings.temperature if index < settings.sampled * settings.texts else 0.0,
            seed=index,
            stop=stop,
        )
        for index, place in enumerate(drawn.tolist())
    ]


def _parted(files: Sequence[Corpus], settings: OwnTextSettings) -> tuple[Corpus, Corpus]:
    """Return the corpora to learn from and to judge by, the latter with enough text for a few pieces."""
    tokens, talks = sum(len(file.tokens) for file in files), sum(len(file.conversations) for file in files)
    needed = 2 * settings.prompt_tokens + 1
    if tokens < 2 * needed + len(files) and talks < 2:
        raise TrainingError(
            f"{tokens} tokens are too few to draw prompts of {settings.prompt_tokens} to learn from, and others to be "
            "judged by; give more text"
        )
    return parted(files, max(HELD_OUT, needed / tokens) if talks < 2 else HELD_OUT)


def _with_images(files: Sequence[Path]) -> tuple[Prompt, ...]:
    """Return the prompts of data files if any has an image, else none."""
    prompts = [prompt for path in files if is_data(path) for prompt in read_prompts(path)]
    if not any(prompt.images for prompt in prompts):
        return ()
    others = [str(path) for path in files if not is_data(path)]
    if others:
        raise TrainingError(
            f"prompts with images are learned from alone, and beside them lies {', '.join(others)}; leave it out"
        )
    return tuple(prompts)


def _pictured(
    prompts: Sequence[Prompt],
    target: Path,
    tokenizer: PreTrainedTokenizerBase,
    settings: OwnTextSettings,
    stop: frozenset[int],
) -> OwnPrompts:
    """Return every prompt in turn until there are enough texts, without the last prompts, which judge."""
    if len(prompts) < 2:
        raise TrainingError("one prompt with an image is too few to learn from and to be judged by; give more")
    config = load_config(str(target))
    tokens = image_tokens(config) if sees(config) else None
    asked = []
    for prompt in prompts:
        images = tuple(read_image(path) for path in prompt.images)
        ids = (
            encode_prompt(prompt, tokenizer) if prompt.messages else prompt_ids(tokenizer, prompt.text, images, tokens)
        )
        asked.append(Request(prompt=ids, images=images, max_new_tokens=settings.new_tokens, stop=stop))
    most = max(len(each.images) for each in asked)
    kept = max(1, min(CHECKED, len(asked) // 5, IMAGES // most))  # a target keeps the images of all of them at once
    learned = [
        replace(
            asked[index % (len(asked) - kept)],
            temperature=settings.temperature if index < settings.sampled * settings.texts else 0.0,
            seed=settings.seed + index,
        )
        for index in range(settings.texts)
    ]
    return OwnPrompts(begins=beginning(tokenizer), learned=tuple(learned), judged=tuple(asked[-kept:]))
