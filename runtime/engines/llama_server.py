"""llama.cpp's server in a separate process, one per setting, measured over HTTP.

It starts with the options of its setting's export. Requests are like those of users: temperature 0 and the default
samplers. Answers hold token ids and the milliseconds from a request's first token to its last. Drafting is fixed at the
start, since requests take no lengths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import MeasurementError, RequestError
from ...planner.records.recording import Text
from ...profiler.cpu import available_bytes
from .gguf_header import shape_of_gguf
from .llama_build import LlamaBuild, llama_build
from .llama_cpp import LlamaCpp
from .measured import FREE_SOME, EngineCounters, EngineText, Load
from .server_process import ServerProcess
from .setting import Schedule, Serving, Setting, Stage

COUNTER = re.compile(r'^llamacpp:spec_decode_num_(\w+?)_total(?:\{position="(\d+)"\})? (\S+)$', re.MULTILINE)
GREEDY = {"temperature": 0.0}
SYNTHETIC = "--spec-synth-rates"  # of newer builds
NO_TOKEN = -1  # of a model that would end the text
OWN_BYTES = 100_000_000  # of a server without any model
ADVICE = "look at the model's files, or give a newer llama.cpp"
Json = dict[str, Any]  # JSON values


class LlamaServer:
    """A server with one target and one way of drafting; `close` stops it."""

    def __init__(self, target: Path, setting: Setting | None, load: Load, *, dtype: str, threads: int) -> None:
        """Start it and wait until its models, all GGUF files, are loaded; `setting` None is plain decoding.

        The load's room includes the last round's drafts. `dtype` "float32" also holds for keys and values; with others
        they are llama.cpp's float16.

        Raises:
            RequestError: there is no llama-server, or too little memory for the models.
            MeasurementError: it does not start, or lacks such a setting.
        """
        build = llama_build()
        require_memory(target, setting, load, dtype)
        command = [build.path, *_options(build, target, setting, load, Serving(dtype=dtype, threads=threads))]
        self._server = ServerProcess("llama.cpp", command, advice=ADVICE)
        self._drafted = self._accepted = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._server.pid

    def close(self) -> None:
        """Stop it and free its memory."""
        self._server.close()

    def read(self, prompt: Sequence[int], slot: int) -> None:
        """Read a prompt into one slot's cache."""
        self._ask({"prompt": list(prompt), "id_slot": slot, "n_predict": 0})

    def encode(self, text: str) -> tuple[int, ...]:
        """Return a text's tokens by the target's own file."""
        return tuple(self._server.post("/tokenize", {"content": text, "add_special": True})["tokens"])

    def decode(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, *, stops: bool = False
    ) -> tuple[EngineText, ...]:
        """Read prompts, then continue them all at once, one per slot; only `stops` lets end-of-text be emitted."""
        for slot, prompt in enumerate(prompts):
            self.read(prompt, slot)
        given = [list(prompt) for prompt in prompts]
        body = {
            "prompt": given if len(given) > 1 else given[0],
            "n_predict": new_tokens,
            "ignore_eos": not stops,
            "return_tokens": True,
            **GREEDY,
        }
        found = tuple(_text(one) for one in self._ask(body))
        self._drafted += sum(text.drafted for text in found)
        self._accepted += sum(text.accepted for text in found)
        return found

    def next_tokens(self, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return the model's own next token at every place behind the continuations' first; -1 for end of text."""
        found: list[list[int]] = [[] for _ in texts]
        for slot, text in enumerate(texts):
            self.read(text.prompt, slot)
        for place in range(1, max(len(text.continuation) for text in texts)):
            asked = [number for number, text in enumerate(texts) if place < len(text.continuation)]
            given = [[*texts[number].prompt, *texts[number].continuation[:place]] for number in asked]
            told = self._ask({"prompt": given, "n_predict": 1, "return_tokens": True, **GREEDY})
            for number, one in zip(asked, told, strict=True):
                found[number].append(int(one["tokens"][0]) if one["tokens"] else NO_TOKEN)
        return [tuple(one) for one in found]

    def metrics(self) -> str:
        """Return its metrics for Prometheus."""
        return self._server.get("/metrics")

    def counters(self) -> EngineCounters:
        """Return its counters; where a build does not count drafts, sums over its answers."""
        found = [(name, place, float(value)) for name, place, value in COUNTER.findall(self.metrics())]
        whole = {name: int(value) for name, place, value in found if not place}
        at = {int(place): int(value) for _, place, value in found if place}
        if "drafts" not in whole:
            return EngineCounters(drafts=None, drafted=self._drafted, accepted=self._accepted)
        return EngineCounters(
            drafts=whole["drafts"],
            drafted=whole["draft_tokens"],
            accepted=whole["accepted_tokens"],
            by_position=tuple(at[place] for place in sorted(at)),
        )

    def _ask(self, body: Json) -> list[Json]:
        told = self._server.post("/completion", {"cache_prompt": True, **body})
        return sorted(told, key=lambda one: int(one["index"])) if isinstance(told, list) else [told]


def needed_bytes(target: Path, setting: Setting | None, load: Load, dtype: str) -> int:
    """Return a server's bytes: weights, KV caches of all slots and logits, of target and drafter."""
    drafter = None if setting is None or setting.drafter is None else Path(setting.drafter.path)
    tokens, number_bytes = load.concurrency * load.capacity, 4 if dtype == "float32" else 2
    files = [target] if drafter is None else [target, drafter]
    beside = [shape_of_gguf(file).bytes_beside_weights(tokens, number_bytes) for file in files]
    return OWN_BYTES + sum(file.stat().st_size for file in files) + sum(beside)


def require_memory(target: Path, setting: Setting | None, load: Load, dtype: str) -> None:
    """Raise RequestError where the machine, or this process's control group, has too little memory."""
    needed, free = needed_bytes(target, setting, load, dtype), available_bytes()
    if free is not None and needed > free:
        who = "" if setting is None or setting.drafter is None else f" with {setting.drafter.name}"
        raise RequestError(
            f"llama.cpp needs {needed / 1e9:.1f} GB for {target}{who} and {load.concurrency} sequences of "
            f"{load.capacity} tokens, and {free / 1e9:.1f} GB of memory are free; {FREE_SOME}"
        )


def _options(build: LlamaBuild, target: Path, setting: Setting | None, load: Load, serving: Serving) -> tuple[str, ...]:
    length = 0 if setting is None else setting.length
    schedule = Schedule(
        setting=setting,
        stages=(Stage(first=1, last=None, length=length),),
        most_batch=load.concurrency,
        serving=serving,
    )
    if load.synthetic and not build.knows(SYNTHETIC):
        raise MeasurementError(f"llama.cpp {build.version} has no {SYNTHETIC}; acceptance cannot be set by hand")
    return (
        *("--model", str(target), "--ctx-size", str(load.concurrency * load.capacity), "--metrics"),
        *("--cache-ram", "0"),  # prompts stay in their slots and nowhere else
        *LlamaCpp().flags(schedule, str(target), build.recorded),
        *((SYNTHETIC, ",".join(map(str, load.synthetic))) if load.synthetic else ()),
    )


def _text(told: Mapping[str, Any]) -> EngineText:  # Any: JSON
    timings = told["timings"]
    return EngineText(
        tokens=tuple(told["tokens"]),
        ms=timings["predicted_ms"],
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
    )
