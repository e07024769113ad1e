"""llama.cpp's server in this process, one per way of decoding; needs the `xllamacpp` wheel.

The wheel offers the server and no decode loop, and its own calls answer text. So a server is asked over its address on
the loopback, which tells token ids and the milliseconds from a request's first token to its last one. Draft lengths are
fixed when a server starts (llama.cpp no longer takes them per request), so each is a server of its own.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LENGTHS = (2, 4, 8, 16)  # tokens a draft model drafts
NGRAMS = ((2, 4), (3, 8))  # n-gram looked for, tokens drafted behind it
PLAIN_NAME = "llama.cpp plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way llama.cpp can decode; `kind` is its common_speculative_type."""

    name: str
    kind: str = "NONE"
    drafter: str | None = None  # name of the draft model
    ngram: int = 0
    length: int = 0  # tokens drafted at most; 0: llama.cpp's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request became, and what the server says of it."""

    tokens: tuple[int, ...]
    ms: float  # from the first token to the last one
    drafted: int
    accepted: int


def ways(drafters: Sequence[str]) -> list[Way]:
    """Return plain decoding, every draft model at every length, and llama.cpp's n-gram drafts."""
    modelled = [
        Way(name=f"llama.cpp draft {length} by {drafter}", kind="DRAFT_SIMPLE", drafter=drafter, length=length)
        for drafter in drafters
        for length in LENGTHS
    ]
    textual = [
        Way(name=f"llama.cpp ngram {ngram} draft {length}", kind="NGRAM_SIMPLE", ngram=ngram, length=length)
        for ngram, length in NGRAMS
    ]
    return [Way(name=PLAIN_NAME), *modelled, *textual, Way(name="llama.cpp ngram cache", kind="NGRAM_CACHE")]


class Server:
    """llama.cpp's server in this process, one model, a fixed number of sequences."""

    def __init__(self, way: Way, files: Mapping[str, Path], *, slots: int, capacity: int, dtype: str) -> None:
        """Load the models and start it.

        Args:
            way: how it decodes.
            files: GGUF files, "target" and every drafter.
            slots: sequences at once.
            capacity: tokens per sequence, drafts included.
            dtype: float32 also keeps keys and values in it, others in llama.cpp's float16.
        """
        import xllamacpp  # type: ignore[import-untyped]

        params = xllamacpp.CommonParams()
        params.model.path = str(files["target"])
        params.n_ctx, params.n_parallel = slots * capacity, slots
        params.n_gpu_layers, params.fit_params = 0, False
        params.cache_ram_mib, params.cache_idle_slots = 0, False  # prompts stay in their slots and nowhere else
        params.verbosity = 1  # errors
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = torch.get_num_threads()
        if dtype == "float32":
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        _speculate(params.speculative, way, files, dtype)
        self._server = xllamacpp.Server(params)
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # past any proxy

    def read(self, prompt: Sequence[int], slot: int) -> None:
        """Read a prompt into one slot's cache."""
        self._ask({"prompt": list(prompt), "id_slot": slot, "n_predict": 0})

    def decode(self, prompts: Sequence[Sequence[int]], most: int, *, stops: bool) -> list[Answer]:
        """Continue prompts that were read before, all at once; each finds the slot that holds it.

        Args:
            prompts: one per slot.
            most: tokens to emit for each.
            stops: whether the end-of-text token ends a text; else it is never emitted.
        """
        given = [list(prompt) for prompt in prompts]
        told = self._ask(
            {
                "prompt": given if len(given) > 1 else given[0],
                "n_predict": most,
                "ignore_eos": not stops,
                "return_tokens": True,
                "temperature": 0.0,
                "top_k": 1,
                "samplers": ["top_k"],
            }
        )
        return [_answer(one) for one in sorted(told, key=lambda one: int(one["index"]))]

    def _ask(self, body: dict[str, Any]) -> list[dict[str, Any]]:  # Any: JSON
        data = json.dumps({"cache_prompt": True, **body}).encode()
        address = f"{self._server.listening_address}/completion"
        asked = urllib.request.Request(address, data=data, headers={"Content-Type": "application/json"})
        with self._open(asked) as response:
            told = json.load(response)
        return told if isinstance(told, list) else [told]


def _speculate(speculative: Any, way: Way, files: Mapping[str, Path], dtype: str) -> None:  # Any: the wheel is untyped
    """Set how a server drafts."""
    import xllamacpp

    kinds = xllamacpp.common_speculative_type
    speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{way.kind}")]
    if way.drafter is not None:
        draft = speculative.draft
        draft.mparams.path = str(files[way.drafter])
        draft.n_max, draft.n_gpu_layers = way.length, 0
        if dtype == "float32":
            draft.cache_type_k = draft.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    elif way.ngram:
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = way.ngram, way.length


def _answer(told: Mapping[str, Any]) -> Answer:  # Any: JSON
    timings = told["timings"]
    return Answer(
        tokens=tuple(told["tokens"]),
        ms=timings["predicted_ms"],
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
    )
