"""llama.cpp on the demo family: plain, with its draft models at several lengths, by n-grams, beside our decoder.

llama.cpp is the `llama-server` on the PATH, or the one that `SPECTUNE_LLAMA_SERVER` names (`llama_server.py`). The
server times itself: a request tells the milliseconds from its first token to its last one. Prompts are read into its
cache before, outside the clock, as our decoder's are; requests are for temperature 0, and it runs on as many
threads as torch. What it does per token beside decoding, turning tokens into text, is in its time. A build for the
machine itself (`GGML_NATIVE`) is the fastest.

The last line is one JSON object. `holds` says that llama.cpp's plain greedy text equals ours, which is asked in float32
only; speed is judged in decode.py, where the plan races too.

    needs a llama-server on the PATH, or named in SPECTUNE_LLAMA_SERVER
    python benchmarks/llamacpp.py [--tokens 96] [--prompts 8] [--batches 1] [--dtype float32]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from spectune.demo.prompts import evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.engines.llama_cpp.build import llama_build, missing
from spectune.engines.llama_cpp.model_format import GGUF_DTYPES
from spectune.errors import RequestError
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.ceilings import read_speeds
from spectune.profiler.configuration import read_architecture
from spectune.profiler.device import detect
from spectune.profiler.records.ceilings import PeakRates
from spectune.profiler.records.device import Device
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import PLAIN, StepConfig
from spectune.runtime.models.gguf import write_gguf
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.family import load_family
from spectune.tuning.measuring.race import EngineEntrant, race
from spectune.tuning.prompts import requests_of
from spectune.tuning.request import Models, ProfileRequest
from spectune.tuning.validate import entrant

from llama_server import LENGTHS, PLAIN_NAME, Answer, LlamaServer, Way, server, ways  # isort: skip
from result import print_result  # isort: skip

TURNS = 8
OURS = "ours plain"
STALL = 1.25
SETTLE_S = 0.05  # threads of a finished turn stop polling


class LlamaEntrant:
    """One way of llama.cpp in a race: decodes the requests in waves of one per slot.

    Its turns end between waves, since a server's request cannot be interrupted, and its speed counts the tokens behind
    each first one, as ours does. At batch > 1 a wave's sequences end at different times and are not refilled, so that
    the last ones run faster than in a full batch: that is in llama.cpp's favour. It tells no time of a round, so that a
    stall of the machine cannot be cut out of a request; a request as a whole is cut, and much earlier than our rounds.
    """

    def __init__(self, name: str, server: LlamaServer, requests: Sequence[Request], batch: int) -> None:
        """Take a fresh server with a slot per sequence of the batch; requests beyond the last full wave are left out.

        Raises:
            RequestError: fewer requests than slots, or they differ in more than their prompts, or are not greedy.
        """
        if len(requests) < batch:
            raise RequestError(f"{len(requests)} requests do not fill a batch of {batch}; give more")
        first, *others = (replace(request, prompt=(0,), seed=0) for request in requests)
        if first.temperature > 0 or first.penalises or any(other != first for other in others):
            raise RequestError("llama.cpp is asked for greedy texts of one length and one stop; give such requests")
        self.name = name
        self._server, self._batch, self._most, self._stops = server, batch, first.max_new_tokens, bool(first.stop)
        full = len(requests) - len(requests) % batch
        self._waves = [[r.prompt for r in requests[at : at + batch]] for at in range(0, full, batch)]
        self._answers: list[Answer] = []

    def advance(self, share: float) -> None:
        """Decode on until `share` of all waves are done."""
        if len(self._answers) >= share * len(self._waves) * self._batch:
            return
        while len(self._answers) < share * len(self._waves) * self._batch:
            prompts = self._waves[len(self._answers) // self._batch]
            self._answers += self._server.decode(prompts, self._most, stops=self._stops)
        time.sleep(SETTLE_S)

    @property
    def tokens_per_s(self) -> float:
        """Throughput of all slots together: what each did per millisecond of its own decoding, times the slots."""
        behind_first = sum(len(one.tokens) - 1 for one in self._answers)
        return 1000.0 * self._batch * behind_first / sum(without_stalls(self._answers))

    @property
    def texts(self) -> list[tuple[int, ...]]:
        """Tokens emitted per request."""
        return [one.tokens for one in self._answers]

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that was kept; None where nothing was drafted."""
        drafted = sum(one.drafted for one in self._answers)
        return sum(one.accepted for one in self._answers) / drafted if drafted else None


def without_stalls(answers: Sequence[Answer]) -> list[float]:
    """Return the answers' milliseconds, each cut to `STALL` times what its rounds take in the median answer."""
    rounds = [max(1, len(one.tokens) - 1 - one.accepted) for one in answers]
    typical_ms = statistics.median(one.ms / count for one, count in zip(answers, rounds, strict=True))
    return [min(one.ms, STALL * typical_ms * count) for one, count in zip(answers, rounds, strict=True)]


class LlamaCpp:
    """A family's GGUF files in a temporary folder, and the entrants on them.

    >>> with LlamaCpp(models, dtype="float32") as engine:
    ...     race([*ours, *engine.entrants(requests, batch=1)], turns=8)
    """

    def __init__(self, models: Models, *, dtype: str) -> None:
        """Write the files.

        Raises:
            ModelError: a model cannot be written as GGUF.
        """
        self._folder, self._dtype = tempfile.TemporaryDirectory(), dtype
        self._servers: list[LlamaServer] = []
        self._drafters = tuple(models.drafters)
        folders = {"target": models.target, **models.drafters}
        root = Path(self._folder.name)
        self._files = {
            name: write_gguf(folder, root / f"{name}.gguf", dtype=GGUF_DTYPES[dtype])
            for name, folder in folders.items()
        }

    def entrants(self, requests: Sequence[Request], batch: int, among: Sequence[Way] = ()) -> list[LlamaEntrant]:
        """Return a fresh server per way, ready to race; all of `ways` where none is named, plain decoding first."""
        capacity = max(len(r.prompt) + r.max_new_tokens for r in requests) + 2 * max(LENGTHS)
        among = among or ways(self._drafters)
        started = [server(way, self._files, slots=batch, capacity=capacity, dtype=self._dtype) for way in among]
        self._servers += started
        return [LlamaEntrant(way.name, one, requests, batch) for way, one in zip(among, started, strict=True)]

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one in self._servers:
            one.close()
        self._folder.cleanup()


def read_bytes_per_step(target: Path, dtype: str, batch: int, context: int) -> float:
    """Return what one plain step reads at least: every weight once, and the context's keys and values."""
    return read_architecture(target / "config.json").work(dtype, batch, context, 1).least_read_bytes


def read_bytes_per_s(device: Device, footprint_bytes: float) -> float:
    """Return how fast a device reads so many bytes again and again at best, measured now; takes two seconds.

    What fits into the caches counts as read from there, as a decoder's weights are.
    """
    measured = PeakRates(device=device.fingerprint, reads=read_speeds(device), products=())
    return 1000.0 * footprint_bytes / measured.limits(device).read_ms(footprint_bytes)


def bandwidth_limit_tokens_per_s(bytes_per_step: float, bytes_per_s: float, batch: int = 1) -> float:
    """Return the tokens/s of plain decoding if a step did nothing but read."""
    return batch * bytes_per_s / bytes_per_step


def engine_facts() -> dict[str, Any]:  # Any: JSON
    """Return which llama.cpp runs, and how it was built."""
    build = llama_build()
    return {"llama.cpp": build.version, "built": build.built, "gguf": importlib.metadata.version("gguf")}


def main() -> None:
    """Race llama.cpp's ways and two of ours, and print a table per batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=96, help="decoded per prompt")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--batches", default="1", help="with commas between")
    parser.add_argument("--dtype", choices=sorted(GGUF_DTYPES), default="float32")
    asked = parser.parse_args()
    if reason := missing():
        print(reason)
        print_result({"bench": "llamacpp", "rows": [], "holds": None, "not_run": [reason]})
        return
    batches = [int(batch) for batch in asked.batches.split(",")]
    rows = [row for batch in batches for row in raced(asked, batch)]
    exact = asked.dtype == "float32"
    plain = [row for row in rows if row["decoder"] == PLAIN_NAME]
    result = {
        "bench": "llamacpp",
        "device": detect("cpu").label,
        "threads": torch.get_num_threads(),
        "dtype": asked.dtype,
        "engine": engine_facts(),
        "rows": rows,
        "holds": all(row["same_texts"] == row["texts"] for row in plain) if exact else None,
        "not_run": [] if exact else ["texts are compared in float32 only"],
    }
    print_result(result)


def raced(asked: argparse.Namespace, batch: int) -> list[dict[str, Any]]:  # Any: JSON
    """Return a row per way of decoding, ours first; print them."""
    models = family_models(family_folder())
    requests = _requests(models, asked.prompts, asked.tokens, batch)
    family = load_family(models, dtype=asked.dtype, device="cpu")
    drafter = next(iter(models.drafters))
    chain = StepConfig(policy=ChainPolicy(length=4), drafter=drafter)
    ours = [
        entrant(OURS, PLAIN, family, requests, batch),
        entrant(f"ours chain 4 by {drafter}", chain, family, requests, batch),
    ]
    with LlamaCpp(models, dtype=asked.dtype) as engine:
        theirs = engine.entrants(requests, batch)
        race([*ours, *theirs], turns=TURNS)
    context = int(statistics.median(len(r.prompt) + r.max_new_tokens // 2 for r in requests))
    size = read_bytes_per_step(models.target, asked.dtype, batch, context)
    limit = bandwidth_limit_tokens_per_s(size, read_bytes_per_s(detect("cpu"), size), batch)
    rows = _rows(ours, theirs, batch, limit)
    _show(rows, limit)
    return rows


def _rows(
    ours: Sequence[EngineEntrant], theirs: Sequence[LlamaEntrant], batch: int, limit: float
) -> list[dict[str, Any]]:  # Any: JSON
    plain = ours[0].run.texts
    best = max(one.tokens_per_s for one in theirs)
    rows: list[dict[str, Any]] = []  # Any: JSON
    field: list[EngineEntrant | LlamaEntrant] = [*ours, *theirs]
    for one in field:
        texts = one.texts if isinstance(one, LlamaEntrant) else one.run.texts
        row = {
            "batch": batch,
            "decoder": one.name,
            "tokens_per_s": one.tokens_per_s,
            "share_of_bandwidth_limit": one.tokens_per_s / limit,
            "texts": len(texts),
            "same_texts": sum(text == known for text, known in zip(texts, plain, strict=False)),
        }
        if isinstance(one, LlamaEntrant):
            row["acceptance"] = one.acceptance
        else:
            row["ratio_to_llamacpp"] = one.tokens_per_s / theirs[0].tokens_per_s
            row["ratio_to_best_llamacpp"] = one.tokens_per_s / best
        rows.append(row)
    return rows


def _show(rows: Sequence[Mapping[str, Any]], limit: float) -> None:  # Any: JSON
    print(f"batch {rows[0]['batch']}: reading the weights alone allows {limit:.0f} tokens/s of plain decoding")
    for row in rows:
        kept = row.get("acceptance")
        told = "" if kept is None else f"  kept {kept:.0%} of the drafts"
        told += f"  {row['ratio_to_llamacpp']:.2f} of llama.cpp plain" if "ratio_to_llamacpp" in row else ""
        same = f"{row['same_texts']}/{row['texts']} texts as ours"
        print(f"  {row['decoder']:<32} {row['tokens_per_s']:8.1f} tokens/s  {same}{told}", flush=True)


def _requests(models: Models, prompts: int, tokens: int, batch: int) -> list[Request]:
    pieces = evaluation_prompts()[:prompts]
    asked = ProfileRequest(models=models, prompts=pieces, max_new_tokens=tokens, batches=(batch,))
    return requests_of(asked, load_tokenizer(str(models.target)))


if __name__ == "__main__":
    main()
