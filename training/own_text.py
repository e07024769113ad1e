"""Text that a target writes itself: what drafters for it learn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from ..errors import TrainingError
from ..profiler.prompts import read_prompts
from ..runtime.decoder import Decoder
from ..runtime.feed import Feed
from ..runtime.models.forward import CausalModel
from ..runtime.requests import Request
from ..runtime.setup import PLAIN, always

Ids = NDArray[np.int64]
SLOTS = 64  # sequences decoded at once


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTextSettings:
    """How much the target writes; part of it is greedy, the rest sampled."""

    texts: int = 1024
    prompt_tokens: int = 32
    new_tokens: int = 224
    sampled: float = 0.5  # share of the texts that is sampled
    temperature: float = 0.8  # of these
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.texts, self.prompt_tokens, self.new_tokens) < 1:
            raise TrainingError(f"{self}: texts, prompt_tokens and new_tokens must be at least 1")
        if not 0.0 <= self.sampled <= 1.0 or not self.temperature > 0.0:
            raise TrainingError(f"{self}: sampled must be in [0, 1] and the temperature above 0")


def corpus_of(files: Sequence[Path], tokenizer: PreTrainedTokenizerBase) -> Ids:
    """Return the tokens of all files, one behind the other, each text ended as the tokenizer ends texts.

    Args:
        files: UTF-8 text, each one text; of a .jsonl file every line is one, see `profiler.prompts`.
        tokenizer: the target's.

    Raises:
        TrainingError: a file cannot be read as text.
        RequestError: a line of a .jsonl file is malformed.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    found: list[Ids] = []
    for path in files:
        each: list[list[int]] = tokenizer(_texts(path), add_special_tokens=False)["input_ids"]
        found += [np.array([*ids, *end], dtype=np.int64) for ids in each]
    return np.concatenate(found)


def own_requests(corpus: Ids, settings: OwnTextSettings) -> list[Request]:
    """Return what the target is asked to continue: pieces from anywhere in a corpus.

    Raises:
        TrainingError: the corpus is shorter than two pieces.
    """
    if len(corpus) <= 2 * settings.prompt_tokens:
        raise TrainingError(f"{len(corpus)} tokens are too few to draw prompts of {settings.prompt_tokens}; give more")
    starts = np.random.default_rng(settings.seed).integers(0, len(corpus) - settings.prompt_tokens, settings.texts)
    return [
        Request(
            prompt=tuple(corpus[start : start + settings.prompt_tokens].tolist()),
            max_new_tokens=settings.new_tokens,
            temperature=settings.temperature if index < settings.sampled * settings.texts else 0.0,
            seed=index,
        )
        for index, start in enumerate(starts.tolist())
    ]


def own_texts(target: CausalModel, requests: Sequence[Request]) -> Ids:
    """Return (texts, prompt + new tokens): the target's own continuations, prompts included."""
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    decoder = Decoder(target, {}, always(PLAIN), slots=min(SLOTS, len(requests)), capacity=longest + 1)
    feed = Feed(decoder, requests)
    while feed.refill():
        decoder.step()
    return np.array([sequence.tokens for sequence in feed.sequences], dtype=np.int64)


def write_own_texts(
    load: Callable[[], CausalModel], requests: Sequence[Request], folder: Path, progress: Callable[[float], None]
) -> Ids:
    """Return what `own_texts` does, mixed up; every batch of texts is a file at once, and none is written twice.

    Args:
        load: loads the target; called where something is left to write.
        requests: as `own_requests` gives them.
        folder: of the files.
        progress: told the share of texts that are written.
    """
    target: CausalModel | None = None
    found: list[Ids] = []
    for first in range(0, len(requests), SLOTS):
        path = folder / f"own-{first}.npy"
        if not path.exists():
            target = target or load()
            np.save(folder / "unfinished.npy", own_texts(target, requests[first : first + SLOTS]))
            (folder / "unfinished.npy").replace(path)
        found.append(np.load(path))
        progress(min(first + SLOTS, len(requests)) / len(requests))
    mixed: Ids = np.random.default_rng(len(requests)).permutation(np.concatenate(found))
    return mixed


def _texts(path: Path) -> list[str]:
    if path.suffix == ".jsonl":
        return [prompt.text for prompt in read_prompts(path)]
    try:
        return [path.read_text(encoding="utf-8")]
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"cannot read {path} as UTF-8 text ({error}); leave it out or give a text file") from error
