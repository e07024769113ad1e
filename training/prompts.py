"""Prompts for a target from people's files: to learn behind, and others to be judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..errors import TrainingError
from ..profiler.prompt_files import is_data
from ..profiler.prompts import Prompt, read_prompts
from ..runtime.batch.images import read_image
from ..runtime.batch.sequence import Request, require_positions
from ..runtime.engine.prompts import beginning, encode_prompt, last_tokens, prompt_ids
from ..runtime.engine.stop_tokens import end_tokens
from ..runtime.models.image_cache import IMAGES
from ..runtime.models.loading import load_config, load_tokenizer
from ..runtime.models.vision import image_tokens, sees
from .frozen import positions_of
from .own_text import Ids, OwnTextSettings

HELD_OUT = 0.05  # share of text that a drafter does not learn behind: its acceptance is counted there
CHECKED = 24  # texts whose drafts are counted when a drafter is done
MOST_PROMPTS = 20_000  # drawn from a data file that holds more
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
        read = [read_corpus(path, tokenizer, sample=MOST_PROMPTS).ended(TALK_TOKENS, tokenizer) for path in files]
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
    prompts = [prompt for path in files if is_data(path) for prompt in read_prompts(path, sample=MOST_PROMPTS)]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text to cut into pieces, and conversations, which can only be continued at their end."""

    begins: tuple[int, ...] = ()  # tokens before every text that the target reads
    tokens: Ids  # all texts, concatenated, each with the tokenizer's end
    conversations: tuple[tuple[int, ...], ...] = ()  # in the target's own template, up to where its turn begins

    @property
    def whole(self) -> Ids:
        """All tokens, concatenated."""
        said = [np.array(each, dtype=np.int64) for each in self.conversations]
        return np.concatenate([self.tokens, *said])

    def ended(self, most: int, tokenizer: PreTrainedTokenizerBase) -> Corpus:
        """Return it with only the last tokens of every conversation, after its begin-of-text."""
        return replace(self, conversations=tuple(last_tokens(each, most, tokenizer) for each in self.conversations))


def read_corpus(path: Path, tokenizer: PreTrainedTokenizerBase, *, sample: int | None = None) -> Corpus:
    """Return a file's corpus: entries of a data file are texts or conversations; any other file is one text.

    `sample` draws so many of more entries.

    TrainingError where the file cannot be read as UTF-8 text; RequestError where an entry of a data file is malformed,
    or a conversation is refused by the target's template.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    prompts = read_prompts(path, sample=sample) if is_data(path) else ()
    has_template = bool(tokenizer.chat_template)
    talks = [prompt for prompt in prompts if prompt.messages and has_template]
    texts = [prompt.text for prompt in prompts if not (prompt.messages and has_template)] if prompts else [_text(path)]
    each: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return Corpus(
        begins=beginning(tokenizer),
        tokens=np.array([token for ids in each for token in (*ids, *end)], dtype=np.int64),
        conversations=tuple(encode_prompt(prompt, tokenizer) for prompt in talks),
    )


def parted(files: Sequence[Corpus], share: float) -> tuple[Corpus, Corpus]:
    """Split files into all but a share, and that share: each text's end, and at least one of several conversations."""
    ends = [len(file.tokens) - math.ceil(share * len(file.tokens)) for file in files]
    talks = [talk for file in files for talk in file.conversations]
    every = min(round(1 / share), len(talks)) if len(talks) > 1 else 2
    kept = [number % every == every - 1 for number in range(len(talks))]

    def of(texts: Sequence[Ids], *, is_kept: bool) -> Corpus:
        own = tuple(talk for talk, keeps in zip(talks, kept, strict=True) if keeps == is_kept)
        return Corpus(begins=files[0].begins, tokens=np.concatenate(texts), conversations=own)

    both = list(zip(files, ends, strict=True))
    return (
        of([file.tokens[:end] for file, end in both], is_kept=False),
        of([file.tokens[end:] for file, end in both], is_kept=True),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"cannot read {path} as UTF-8 text ({error}); leave it out or give a text file") from error
