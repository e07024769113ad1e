"""llama.cpp's server in this process, one per setting; needs the `xllamacpp` wheel.

The wheel offers the server and no decode loop, and its own calls answer text. So a server is asked over its address on
the loopback, which tells token ids and the milliseconds from a request's first token to its last one. How it drafts is
fixed when it starts (it no longer takes lengths per request), so each setting is a server of its own. Its threads spin
for a moment behind a request: whoever measures others beside it leaves them time to settle.
"""

from __future__ import annotations

import importlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import MeasurementError
from ...planner.replay.recorded import Text
from .measured import EngineCounters, EngineText, Load
from .setting import Setting

COUNTER = re.compile(r'^llamacpp:spec_decode_num_(\w+?)_total(?:\{position="(\d+)"\})? (\S+)$', re.MULTILINE)
GREEDY = {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"]}  # the cheapest greedy chain it has
NO_TOKEN = -1  # of a model that would end the text
Json = dict[str, Any]  # JSON values


class LlamaServer:
    """A server with one target and one way of drafting; `close` stops it."""

    def __init__(self, target: Path, setting: Setting | None, load: Load, *, dtype: str, threads: int) -> None:
        """Load the models and start it.

        Args:
            target: a GGUF file.
            setting: how it drafts; the path of its drafter is a GGUF file. None is plain decoding.
            load: slots and their room. Drafts of the last round need room too.
            dtype: "float32" also keeps keys and values in it, others in llama.cpp's float16.
            threads: that compute, for the drafter as for the target.

        Raises:
            MeasurementError: it does not start, or knows no such setting.
        """
        wheel = importlib.import_module("xllamacpp")
        params = wheel.CommonParams()
        params.model.path = str(target)
        params.n_ctx, params.n_parallel = load.concurrency * load.capacity, load.concurrency
        params.n_gpu_layers, params.fit_params, params.endpoint_metrics = 0, False, True
        params.cache_ram_mib, params.cache_idle_slots = 0, False  # prompts stay in their slots and nowhere else
        params.verbosity = 1  # errors
        draft = params.speculative.draft
        for cpu in (params.cpuparams, params.cpuparams_batch, draft.cpuparams, draft.cpuparams_batch):
            cpu.n_threads = threads
        if dtype == "float32":
            full = wheel.ggml_type.GGML_TYPE_F32
            params.cache_type_k = params.cache_type_v = draft.cache_type_k = draft.cache_type_v = full
        _speculate(wheel, params.speculative, setting, load.synthetic)
        try:
            self._server: Any = wheel.Server(params)  # Any: the wheel is untyped
        except Exception as error:  # whatever the wheel raises
            raise MeasurementError(f"llama.cpp does not start with {target}: {error}; look at its files") from error
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # past any proxy

    def close(self) -> None:
        """Stop it and give its memory back."""
        self._server = None

    def read(self, prompt: Sequence[int], slot: int) -> None:
        """Read a prompt into one slot's cache."""
        self._ask({"prompt": list(prompt), "id_slot": slot, "n_predict": 0})

    def encode(self, text: str) -> tuple[int, ...]:
        """Return a text's tokens, as the target's own file says."""
        return tuple(self._post("/tokenize", {"content": text, "add_special": True})["tokens"])

    def decode(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, *, stops: bool = False
    ) -> tuple[EngineText, ...]:
        """Read prompts, then continue them all at once, each in the slot that holds it.

        Args:
            prompts: one per slot.
            new_tokens: to emit for each.
            stops: whether the end-of-text token ends a text; else it is never emitted.
        """
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
        return tuple(_text(one) for one in self._ask(body))

    def next_tokens(self, texts: Sequence[Text]) -> list[tuple[int, ...]]:
        """Return the model's own next token at every place behind the continuations' first, -1 for an end.

        Args:
            texts: as many as there are slots, or fewer.
        """
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
        """Return what it tells Prometheus."""
        with self._open(f"{self._server.listening_address}/metrics") as response:
            return str(response.read().decode())

    def counters(self) -> EngineCounters:
        """Return its counters; zeros where it does not speculate and has none."""
        found = [(name, place, float(value)) for name, place, value in COUNTER.findall(self.metrics())]
        whole = {name: int(value) for name, place, value in found if not place}
        at = {int(place): int(value) for _, place, value in found if place}
        return EngineCounters(
            drafts=whole.get("drafts", 0),
            drafted=whole.get("draft_tokens", 0),
            accepted=whole.get("accepted_tokens", 0),
            by_position=tuple(at[place] for place in sorted(at)),
        )

    def _ask(self, body: Json) -> list[Json]:
        """Return what became of a request's prompts, in their order."""
        told = self._post("/completion", {"cache_prompt": True, **body})
        return sorted(told, key=lambda one: int(one["index"])) if isinstance(told, list) else [told]

    def _post(self, path: str, body: Json) -> Any:  # Any: JSON
        address = f"{self._server.listening_address}{path}"
        request = urllib.request.Request(
            address, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        try:
            with self._open(request) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip()
            raise MeasurementError(
                f"llama.cpp does not answer {path} ({error.code}: {said}); give shorter texts, or another model"
            ) from error


def _speculate(
    wheel: Any, speculative: Any, setting: Setting | None, synthetic: Sequence[float]
) -> None:  # Any: the wheel is untyped
    """Set how a server drafts."""
    method = "none" if setting is None else setting.method
    kind = f"COMMON_SPECULATIVE_TYPE_{method.replace('-', '_').upper()}"
    if not hasattr(wheel.common_speculative_type, kind):
        raise MeasurementError(f"this llama.cpp does not draft by {method!r}; install a newer xllamacpp")
    speculative.types = [getattr(wheel.common_speculative_type, kind)]
    if setting is None:
        return
    knobs = dict(setting.knobs)
    if setting.drafter is not None:
        draft = speculative.draft
        draft.mparams.path = setting.drafter.path
        draft.n_max, draft.n_min, draft.p_min, draft.n_gpu_layers = setting.length, 0, knobs.get("p_min", 0.0), 0
    elif "size_n" in knobs:
        ngram = getattr(speculative, method.replace("-", "_"))
        ngram.size_n, ngram.size_m = knobs["size_n"], setting.length
    if synthetic:
        speculative.synth_rates = list(synthetic)


def _text(told: Mapping[str, Any]) -> EngineText:  # Any: JSON
    timings = told["timings"]
    return EngineText(
        tokens=tuple(told["tokens"]),
        ms=timings["predicted_ms"],
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
    )
