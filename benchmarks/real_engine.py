"""Memory and plain speed of `spectune profile --engine llama.cpp`, beside a llama-server started by hand."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch

from spectune.engines.llama_cpp.build import llama_build
from spectune.engines.load import Address
from spectune.engines.measured import EngineLoad
from spectune.engines.process import ServerProcess
from spectune.profiler.gguf_file import read_gguf
from spectune.runtime.batch.sequence import Request

from llama_server import LlamaServer  # isort: skip
from real_sets import DRAFTER, FILES, SETS, Json, Options, requests_for  # isort: skip

PROFILED = 24  # prompts, as in the first report of 22.6 GB
ADVICE = "run the command by hand"
EVERY_S = 0.5  # between two looks at a process's memory
TURNS = 3  # of every prompt
RECORDED = 128  # tokens of a text, the command's default


def engine_cell(options: Options) -> Json:
    """Profile llama.cpp by its command and look at its memory; then race its plain server beside one by hand."""
    models = SETS["pair-q4"].models(options)
    (drafter,) = models.drafters.values()
    prompts = options.models / FILES["humaneval"]
    count = min(PROFILED, options.prompts)
    everything = requests_for(SETS["pair-q4"], options, count=options.prompts, tokens=options.rule_tokens)
    requests = everything[: options.rule_prompts]
    capacity = max(len(request.prompt) for request in everything) + RECORDED + 32  # as a profile's server has
    by_hand = [llama_build().path, "-m", str(models.target), "-c", str(capacity), "-t", str(torch.get_num_threads())]
    hand = ServerProcess("llama.cpp", [*by_hand, "-md", str(drafter)], advice=ADVICE)
    with Memory(hand.pid) as instance:
        for request in requests[:2]:
            _decode(hand, request)
    hand.close()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "spectune", "profile", "--engine", "llama.cpp", "--batch", "1"),
            *("--target", str(models.target), "--drafter", f"{DRAFTER}={drafter}", "--prompts", str(prompts)),
            *("--sample", str(count), "--store", f"{folder}/engine.db"),
        ]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        with Memory(process.pid) as profiled:
            output, _ = process.communicate()
        seconds = time.monotonic() - started
        if process.returncode:
            raise RuntimeError(f"profile --engine ended with {process.returncode}: {output[-500:]}")
    ours, theirs = _plain_ms(models.target, by_hand, requests, capacity)
    return {
        "command_profiled": "spectune " + " ".join(command[3:]).replace(f"{options.models}/", "").replace(folder, "."),
        "profile_s": seconds,
        "profile_peak_bytes": profiled.peak_bytes,
        "instance_peak_bytes": instance.peak_bytes,
        "memory_ratio": profiled.peak_bytes / instance.peak_bytes,
        "plain_ms": ours,
        "by_hand_ms": theirs,
        "plain_ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "prompts": count,
    }


class Memory:
    """Looks at what a process and its descendants take together; pages that they share count once (PSS)."""

    def __init__(self, pid: int) -> None:
        """Take the first process."""
        self.peak_bytes = 0
        self._process, self._done = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends while it is read
                every = [self._process, *self._process.children(recursive=True)]
                self.peak_bytes = max(self.peak_bytes, sum(one.memory_full_info().pss for one in every))
            if self._done.wait(EVERY_S):
                return


def _plain_ms(
    target: Path, by_hand: Sequence[str], requests: Sequence[Request], capacity: int
) -> tuple[list[float], list[float]]:
    """Return milliseconds a token of every prompt in both servers, one right behind the other, medians of `TURNS`."""
    load = EngineLoad(concurrency=1, capacity=capacity)
    dtype = read_gguf(target).format.lower()
    measured = LlamaServer(target, None, load, dtype=dtype, threads=torch.get_num_threads())
    hand = ServerProcess("llama.cpp", by_hand, advice=ADVICE)
    ours: list[list[float]] = [[] for _ in requests]
    theirs: list[list[float]] = [[] for _ in requests]
    try:
        for turn in range(TURNS):
            for number, request in enumerate(requests):
                for who in (0, 1) if (turn + number) % 2 else (1, 0):
                    if who:
                        theirs[number].append(_decode(hand, request))
                    else:
                        (text,) = measured.decode([request.prompt], request.max_new_tokens)
                        ours[number].append(text.ms / (len(text.tokens) - 1))
    finally:
        measured.close()
        hand.close()
    return [statistics.median(each) for each in ours], [statistics.median(each) for each in theirs]


def _decode(server: ServerProcess, request: Request) -> float:
    """Return the milliseconds a token that a server says it took."""
    asked = {"prompt": list(request.prompt), "n_predict": request.max_new_tokens, "temperature": 0.0}
    body = {**asked, "ignore_eos": True, "cache_prompt": True}
    timings: dict[str, Any] = Address(url=server.url).post("/completion", body)["timings"]
    return float(timings["predicted_ms"]) / (float(timings["predicted_n"]) - 1.0)
