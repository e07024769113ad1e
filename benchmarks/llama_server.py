"""The ways llama.cpp is raced in, and a server for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from spectune.engines.llama_cpp.running import OwnLlamaCpp
from spectune.engines.measured import EngineLoad, EngineText
from spectune.engines.setting import EngineDrafter, Setting

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


class LlamaServer:
    """A server with one way of decoding, which also tells texts up to their ends; `close` stops it."""

    def __init__(self, target: Path, setting: Setting | None, load: EngineLoad, *, dtype: str, threads: int) -> None:
        """Start it; errors as of `OwnLlamaCpp.started`."""
        engine = OwnLlamaCpp(target, {}, dtype=dtype, threads=threads, folder=target.parent)
        self._stack = ExitStack()
        self._server = self._stack.enter_context(engine.serving(target, setting, load))
        self.close = self._stack.close

    def decode(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, *, stops: bool = False
    ) -> tuple[EngineText, ...]:
        """Read prompts, then continue them all at once, one per slot; only `stops` lets end-of-text be emitted."""
        for slot, prompt in enumerate(prompts):
            self._server.post("/completion", {"prompt": list(prompt), "id_slot": slot, "n_predict": 0})
        body = {"prompt": [list(prompt) for prompt in prompts], "n_predict": new_tokens, "ignore_eos": not stops}
        told = self._server.post("/completion", {**body, "return_tokens": True, "temperature": 0.0})
        answers = sorted(told, key=lambda one: int(one["index"])) if isinstance(told, list) else [told]
        return tuple(
            EngineText(
                tokens=tuple(one["tokens"]),
                ms=one["timings"]["predicted_ms"],
                drafted=one["timings"].get("draft_n", 0),
                accepted=one["timings"].get("draft_n_accepted", 0),
            )
            for one in answers
        )


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
    load = EngineLoad(concurrency=slots, capacity=capacity)
    return LlamaServer(files["target"], way.setting(files), load, dtype=dtype, threads=torch.get_num_threads())
