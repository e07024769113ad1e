"""A server of OpenAI's API without a model: texts by a rule, rounds by a law, counters in an engine's own way.

vLLM's and llama.cpp's ways are here, SGLang's and TensorRT-LLM's in `fake_dialects.py`.

It runs with the standard library alone, so that it starts quickly. `FAKE_FAULT` makes it fail in one of several ways.
What every answer really took goes to the file that `FAKE_TRUTH` names.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULT = os.environ.get("FAKE_FAULT", "")
TRUTH = os.environ.get("FAKE_TRUTH", "")
PLAIN_MS, DRAFTING_MS, TOKEN_MS, FORWARD_MS, PREFILL_MS = 5.0, 0.5, 0.1, 0.4, 8.0
READ_MS, FREE_WORDS = 0.03, 64  # of a prompt's word, and as many are read in no time
BESIDE = ("warm-up", "pace:")  # in texts that are no part of a load
RIGHT = 0.75  # share of places at which the drafter is right
PLACES = 16
VOCABULARY = 97
KEY = "--api-key"


def is_right(text: str, place: int, share: float = RIGHT) -> bool:
    """Return whether the drafter says the target's token at a place of an answer."""
    return zlib.crc32(f"{text}|{place}".encode()) % 1000 < 1000 * share


def is_loaded(text: str | list[int]) -> bool:
    """Return whether a prompt is part of a load."""
    return not any(mark in text for mark in BESIDE)


def read_ms(text: str | list[int]) -> float:
    """Return what the prefill of a prompt takes."""
    words = len(text.split()) if isinstance(text, str) else 0
    return PREFILL_MS + READ_MS * max(0, words - FREE_WORDS)


def token_behind(tokens: list[int], *, small: bool = False) -> int:
    """Return what the target says behind tokens, or a small model, which is right about three of four."""
    number = zlib.crc32(str(tokens[-3:]).encode())
    return (number + (small and number % 4 == 0)) % VOCABULARY


def said_behind(prompt: list[int], most: int) -> list[int]:
    """Return the target's tokens behind a prompt."""
    found = list(prompt)
    while len(found) < len(prompt) + most:
        found.append(token_behind(found))
    return found[len(prompt) :]


class Fake:
    """A server's options and what it counted."""

    health_s = 0.0  # that its health takes to answer

    def __init__(self, words: list[str]) -> None:
        self.words = dict(zip(words, [*words[1:], ""], strict=True))
        self.is_vllm = "--llama" not in words
        config = json.loads(self.words.get("--speculative-config", "{}"))
        self.length = int(self.words.get("--spec-draft-n-max", config.get("num_speculative_tokens", 0)))
        self.rows = config.get("num_speculative_tokens_per_batch_size", [])
        self.right = RIGHT
        if self.words.get("--spec-type") == "ngram-simple" or config.get("method") == "ngram":
            self.right, self.length = 0.2, self.length or int(self.words.get("--spec-ngram-simple-size-m", "0"))
        self.model = self.words.get("-m") or self.words.get("--model", "target")
        self.lock = threading.Lock()
        self.prompted = 0
        self.flying = self.drafts = self.drafted = self.accepted = self.tokens = self.answers = 0
        self.at = [0] * PLACES

    def length_now(self) -> int:
        """Return what is drafted at the batch that runs."""
        for first, last, length in self.rows:
            if first <= self.flying <= last:
                return int(length)
        return self.length

    def pages(self) -> dict[str, str]:
        """Return what is shown at paths."""
        return {
            "/metrics": self.metrics(),
            "/v1/models": json.dumps({"data": [{"id": self.model}]}),
            "/version": json.dumps({"version": "0.32.0"}),
            "/props": json.dumps({"build_info": "b11549-fake"}),
            "/truth": json.dumps([self.drafts, self.drafted, self.accepted, self.at, self.tokens, self.answers]),
        }

    def drained(self) -> str:
        """Return JSON of requests that was not told yet."""
        return "[]"

    def told(self, body: Any, walked: list[tuple[int, int]], done: int) -> Any:
        """Return what an answer tells of itself: `walked` are drafted and accepted tokens of its rounds."""
        return {}

    def rounds(self, right: Callable[[int], bool], most: int) -> Any:
        """Yield drafted and accepted tokens of every round of an answer, right at some places, and what it takes."""
        place = 1
        while place < most:
            length = self.length_now()
            drafted = min(length, most - place - 1)
            accepted = 0
            while accepted < drafted and right(place + accepted):
                accepted += 1
            ms = PLAIN_MS + bool(length) * DRAFTING_MS + length * (FORWARD_MS + TOKEN_MS * self.flying)
            with self.lock:
                self.drafts += drafted > 0
                self.drafted += drafted
                self.accepted += accepted
                for position in range(accepted):
                    self.at[position] += 1
            place += accepted + 1
            yield drafted, accepted, ms

    def metrics(self) -> str:
        """Return the page of counters."""
        prefix, labels = ("vllm:", f'model_name="{self.model}"') if self.is_vllm else ("llamacpp:", "")
        told = {"generation_tokens" if self.is_vllm else "tokens_predicted": self.tokens}
        if self.is_vllm:
            told |= {"request_success": self.answers, "prefix_cache_queries": self.prompted}
        if self.length:
            told |= {
                "spec_decode_num_drafts": self.drafts,
                "spec_decode_num_draft_tokens": self.drafted,
                "spec_decode_num_accepted_tokens": self.accepted,
            }
        lines = [f"{prefix}{name}_total{{{labels}}} {value}" for name, value in told.items()]
        if self.length:
            name = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
            lines += [
                f'{name}{{{labels}{"," if labels else ""}position="{place}"}} {count}'
                for place, count in enumerate(self.at[: self.length])
            ]
        return "\n".join(lines) + "\n"


def handler(fake: Fake) -> type[BaseHTTPRequestHandler]:
    """Return what answers requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # it would keep an answer's first token back

        def do_GET(self) -> None:
            if self.path != "/health" and not self._is_allowed():
                return
            if self.path == "/perf_metrics":
                self._whole(200, fake.drained())
                return
            time.sleep(fake.health_s if self.path == "/health" else 0.0)
            page = fake.pages().get(self.path, "{}" if self.path in ("/health", "/") else "")
            self._whole(503 if FAULT == "loads forever" else 200 if page else 404, page)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self._is_allowed():
                return
            is_chat = "messages" in body
            text = body["messages"][-1]["content"] if is_chat else body["prompt"]
            if "prompt_logprobs" in body:
                told = [token_behind(text[:place], small="small" in fake.model) for place in range(1, len(text))]
                rows = [None, *({str(one): {"logprob": -0.1}, "0": {"logprob": -2.0}} for one in told)]
                self._whole(200, json.dumps({"choices": [{"text": "x", "prompt_logprobs": rows}]}))
                return
            if FAULT == "500" and is_loaded(text):
                self._whole(500, json.dumps({"error": f"an internal error behind {self.headers['Authorization']}"}))
                return
            if FAULT == "dies" and is_loaded(text):
                print("fatal: CUDA error: out of memory" if "--oom" in sys.argv else "fatal: a bad state", flush=True)
                os._exit(1)
            if FAULT == "hangs" and is_loaded(text):
                time.sleep(3600.0)
            self._stream(text, body, is_chat=is_chat)

        def _stream(self, text: str | list[int], body: Any, *, is_chat: bool) -> None:
            most = int(body["max_tokens"])
            said = said_behind(text, most) if isinstance(text, list) else []

            def right(place: int) -> bool:
                if not isinstance(text, list) or fake.right < RIGHT:
                    return is_right(str(text), place, fake.right)
                return said[place] == token_behind([*text, *said[:place]], small=True)

            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with fake.lock:
                fake.flying += 1
            began = time.perf_counter()
            due = began + read_ms(text) / 1000.0
            self._wait(due)
            self._event(self._choice("x", said[:1], is_chat=is_chat))
            first = time.perf_counter()
            done, walked = 1, []
            for drafted, accepted, ms in fake.rounds(right, most):
                due += ms / 1000.0
                number = accepted + 1
                walked.append((drafted, accepted))
                self._wait(due)
                if FAULT == "breaks off" and done > most // 2 and is_loaded(text):
                    break
                self._event(self._choice("x" * number, said[done : done + number], is_chat=is_chat))
                done += number
            last = time.perf_counter()
            with fake.lock:
                fake.flying -= 1
                fake.tokens += done
                fake.answers += 1
                fake.prompted += len(text.split()) if isinstance(text, str) else len(text)
                if TRUTH and is_loaded(text):
                    with open(TRUTH, "a") as file:
                        file.write(json.dumps([done, 1000.0 * (first - began), 1000.0 * (last - began)]) + "\n")
            told = fake.told(body, walked, done)
            if FAULT != "breaks off":
                self._event({"choices": [{"finish_reason": "length", "text": ""}]})
                self._event({"choices": [], "usage": {"completion_tokens": done}, **told})
                self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _choice(self, text: str, ids: list[int], *, is_chat: bool) -> Any:
            told = {"token_ids": ids} if ids else {}
            return {"choices": [{"delta": {"content": text}} if is_chat else {"text": text, **told}]}

        def _event(self, event: Any) -> None:
            self._chunk(f"data: {json.dumps(event)}\n\n".encode())

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _wait(self, due: float) -> None:
            time.sleep(max(0.0, due - time.perf_counter()))

        def _is_allowed(self) -> bool:
            wanted = fake.words.get(KEY)
            is_it = wanted is None or self.headers["Authorization"] == f"Bearer {wanted}"
            if not is_it:
                self._whole(401, json.dumps({"error": "no such key"}))
            return is_it

        def _whole(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *told: object) -> None:
            print(self.path, flush=True)

    return Handler


class Server(ThreadingHTTPServer):
    """With room for many at once."""

    daemon_threads = True
    request_queue_size = 128


def fake_of(words: list[str]) -> Fake:
    """Return the server that some options start."""
    if "--dialect" not in words:
        return Fake(words)
    dialects = importlib.import_module("fake_dialects").DIALECTS
    found: Fake = dialects[words[words.index("--dialect") + 1]](words)
    return found


def main() -> None:
    if FAULT == "ends at start":
        sys.exit(f"error: a certain reason, {sys.argv[1:]}")
    if FAULT == "no room at start":
        sys.exit("ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory")
    sys.modules["fake_openai_server"] = sys.modules[__name__]
    fake = fake_of(sys.argv[1:])
    server = Server((fake.words.get("--host", "127.0.0.1"), int(fake.words["--port"])), handler(fake))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        time.sleep(3600.0)


if __name__ == "__main__":
    main()
