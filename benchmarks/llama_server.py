"""The ways llama.cpp is raced in, and a server for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from spectune.runtime.engines.llama_server import LlamaServer
from spectune.runtime.engines.measured import EngineText, Load
from spectune.runtime.engines.setting import EngineDrafter, Setting

Answer = EngineText
LENGTHS = (2, 4, 8, 16)  # tokens a draft model drafts
NGRAMS = ((2, 4), (3, 8))  # n-gram looked for, tokens drafted behind it
PLAIN_NAME = "llama.cpp plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way llama.cpp can decode; `method` is its own name of how it drafts."""

    name: str
    method: str = "none"
    drafter: str | None = None  # name of the draft model
    ngram: int = 0
    length: int = 0  # tokens drafted at most; 0: llama.cpp's own default

    def setting(self, files: Mapping[str, Path]) -> Setting | None:
        """Return what the server is started with; None for plain decoding."""
        if self.method == "none":
            return None
        drafter = None
        if self.drafter is not None:
            drafter = EngineDrafter(name=self.drafter, path=str(files[self.drafter]), form="model")
        knobs = (("size_n", self.ngram),) if self.ngram else (("p_min", 0.0),) if drafter is not None else ()
        return Setting(method=self.method, drafter=drafter, knobs=knobs, length=max(self.length, 1))


def ways(drafters: Sequence[str]) -> list[Way]:
    """Return plain decoding, every draft model at every length, and llama.cpp's n-gram drafts."""
    modelled = [
        Way(name=f"llama.cpp draft {length} by {drafter}", method="draft-simple", drafter=drafter, length=length)
        for drafter in drafters
        for length in LENGTHS
    ]
    textual = [
        Way(name=f"llama.cpp ngram {ngram} draft {length}", method="ngram-simple", ngram=ngram, length=length)
        for ngram, length in NGRAMS
    ]
    return [Way(name=PLAIN_NAME), *modelled, *textual, Way(name="llama.cpp ngram cache", method="ngram-cache")]


def server(way: Way, files: Mapping[str, Path], *, slots: int, capacity: int, dtype: str) -> LlamaServer:
    """Return a server that decodes one way, on as many threads as torch.

    Args:
        way: how it decodes.
        files: GGUF files, "target" and every drafter.
        slots: sequences at once.
        capacity: tokens per sequence, drafts included.
        dtype: float32 also keeps keys and values in it, others in llama.cpp's float16.
    """
    load = Load(concurrency=slots, capacity=capacity)
    threads = torch.get_num_threads()
    return LlamaServer(files["target"], way.setting(files), load, dtype=dtype, threads=threads)
