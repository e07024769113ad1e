"""Texts that a target writes itself about images: what an exit of a target that sees learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ModelError, TrainingError
from ..planner.text.image_ids import IMAGE_IDS
from ..profiler.prompts import Prompt, read_prompts
from ..runtime.decoder import Decoder
from ..runtime.ends import end_tokens
from ..runtime.feed import Feed
from ..runtime.images import Image, read_image
from ..runtime.models.anatomy import text_part
from ..runtime.models.drafter import load_drafter
from ..runtime.models.forward import CausalModel
from ..runtime.models.gallery import Gallery, table_rows
from ..runtime.models.loading import load_config, load_model, load_tokenizer
from ..runtime.models.vision import Eyes, image_tokens, lens_of, sees
from ..runtime.prompt_ids import prompt_ids
from ..runtime.requests import Request
from ..runtime.setup import PLAIN, always
from .acceptance import Acceptance, chain_acceptance
from .own_text import Ids, OwnTextSettings
from .run_folder import CHECKED, OwnTextRequest, Progress

SLOTS = 32  # texts written at once
BLANK = -1  # stands behind the end of a text that is shorter than others


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPrompts:
    """Prompts with images in ids, those kept for the judgement apart."""

    learned: tuple[Request, ...]
    judged: tuple[Request, ...]


def prompts_with_images(files: Sequence[Path]) -> tuple[Prompt, ...]:
    """Return the prompts of .jsonl files where any has an image; none at all where none has."""
    prompts = [prompt for path in files if path.suffix == ".jsonl" for prompt in read_prompts(path)]
    return tuple(prompts) if any(prompt.images for prompt in prompts) else ()


def seen_prompts(prompts: Sequence[Prompt], target: Path, own: OwnTextSettings) -> SeenPrompts:
    """Return what the target is asked: every prompt in turn until there are texts enough, a few prompts kept apart.

    Raises:
        TrainingError: there are fewer than two prompts.
        RequestError: an image cannot be read, or the target sees none.
    """
    if len(prompts) < 2:
        raise TrainingError("one prompt with an image is too few to learn from and to be judged by; give more")
    config, tokenizer = load_config(str(target)), load_tokenizer(str(target))
    tokens = image_tokens(config) if sees(config) else None
    stop = end_tokens(target, tokenizer)
    asked = []
    for prompt in prompts:
        images = tuple(read_image(path) for path in prompt.images)
        ids = prompt_ids(tokenizer, prompt.text, images, tokens)
        asked.append(Request(prompt=ids, images=images, max_new_tokens=own.new_tokens, stop=stop))
    kept = max(1, min(CHECKED, len(asked) // 5))
    learned = [
        replace(
            asked[index % (len(asked) - kept)],
            temperature=own.temperature if index < own.sampled * own.texts else 0.0,
            seed=own.seed + index,
        )
        for index in range(own.texts)
    ]
    return SeenPrompts(learned=tuple(learned), judged=tuple(asked[-kept:]))


def seen_texts_of(asked: OwnTextRequest, requests: Sequence[Request], partial: Path, progress: Progress) -> Ids:
    """Return (texts, longest): what the target wrote, prompts included, BLANK behind; kept in the run's folder."""
    path, told = partial / "own-seen.npy", "the target writes of its images"
    if not path.exists():
        target, texts = _loaded(asked), list[list[int]]()
        for first in range(0, len(requests), SLOTS):
            progress(told, first / len(requests))
            texts += _written(target, requests[first : first + SLOTS])
        whole = np.full((len(texts), max(map(len, texts))), BLANK, dtype=np.int64)
        for row, text in enumerate(texts):
            whole[row, : len(text)] = text
        np.save(partial / "unfinished.npy", whole)
        (partial / "unfinished.npy").replace(path)
    found: Ids = np.load(path)
    return found


def seen_acceptance(
    asked: OwnTextRequest, requests: Sequence[Request], folder: Path, length: int, progress: Progress
) -> Acceptance:
    """Return how greedy chains of a saved drafter are accepted behind images it did not learn from."""
    progress("counting accepted drafts", 0.0)
    target = _loaded(asked)
    drafter = load_drafter(str(folder), target, dtype=asked.dtype, device=asked.device)
    gallery = _gallery(target)
    return chain_acceptance(target, drafter, [gallery.shown(request, target) for request in requests], length)


class SeenStates:
    """Vectors of texts with images, for a transformers model that reads vectors."""

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        """Share the weights of a model that sees; the folder says how pixels are read."""
        self._eyes = Eyes(model.model, lens_of(model.config, folder))
        self._embedding: Tensor = text_part(model).base.embed_tokens.weight

    def vectors(self, ids: Tensor, images: Sequence[Sequence[Image]]) -> Tensor:
        """Return (batch, columns, hidden) for ids (batch, columns), each row's with its own images."""
        counts = [len(row) for row in images]
        before = torch.tensor(np.cumsum([0, *counts[:-1]])) * self._eyes.tokens.size
        own = ids + torch.where(ids >= IMAGE_IDS, before.to(ids.device)[:, None], 0)
        shown = [image for row in images for image in row]
        table = self._embedding
        if shown:
            table = torch.cat((table, self._eyes.rows(shown).flatten(0, 1).to(table)))
        return F.embedding(table_rows(own.clamp(min=0), len(self._embedding)), table)


def is_said(tokens: Tensor) -> Tensor:
    """Return where tokens (any) are of the vocabulary: not parts of images, and not behind a text's end."""
    return (tokens >= 0) & (tokens < IMAGE_IDS)


def _loaded(asked: OwnTextRequest) -> CausalModel:
    return load_model(str(asked.target), dtype=asked.dtype, device=asked.device)


def _gallery(target: CausalModel) -> Gallery:
    gallery = target.gallery
    if gallery is None:
        raise ModelError("the prompts have images and the target sees none; leave the images out")
    return gallery


def _written(target: CausalModel, requests: Sequence[Request]) -> list[list[int]]:
    """Return prompts, in the ids of their own images, and what the target wrote behind them."""
    gallery, holder = _gallery(target), _Holder()
    asked = [gallery.shown(request, holder) for request in requests]
    longest = max(len(request.prompt) + request.max_new_tokens for request in asked)
    decoder = Decoder(target, {}, always(PLAIN), slots=len(asked), capacity=longest + 1)
    feed = Feed(decoder, asked)
    while feed.refill():
        decoder.step()
    return [[*own.prompt, *done.emitted] for own, done in zip(requests, feed.sequences, strict=True)]


class _Holder:
    """Needs images while a batch is written."""
