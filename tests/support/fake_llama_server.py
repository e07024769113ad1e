"""A llama-server without llama.cpp: its routes and options, texts by a rule, and times by a law.

A model is its file's name: one that is called "small" is right about three tokens of four, any other is the target. It
runs with the standard library alone, so that it starts quickly. `FAKE_LLAMA` makes it fail in one of several ways, and
with `FAKE_LLAMA_ALONE` a second one does not start beside it. `FAKE_LLAMA_STARTS` names a file of a line a start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NEW = 11549  # counts rounds that draft, and lets acceptance be set
BUILD = int(os.environ.get("FAKE_LLAMA_BUILD", str(NEW)))
MODE = os.environ.get("FAKE_LLAMA", "")
ALONE = os.environ.get("FAKE_LLAMA_ALONE", "")  # a file that lies here while a server runs
STARTS = os.environ.get("FAKE_LLAMA_STARTS", "")
VOCABULARY = 97
PLAIN_MS, DRAFTING_MS, TOKEN_MS, FORWARD_MS = 10.0, 1.0, 0.5, 1.0
LONGEST = 32  # by position
OPTIONS = (
    *("--model", "--host", "--port", "--ctx-size", "--cache-ram", "--parallel", "--threads", "--n-gpu-layers"),
    *("--cache-type-k", "--cache-type-v", "--spec-draft-type-k", "--spec-draft-type-v", "--spec-draft-ngl"),
    *("--spec-type", "--spec-draft-model", "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"),
    *(f"--spec-{way}-size-{end}" for way in ("ngram-simple", "ngram-map-k") for end in "nm"),
    *(("--spec-synth-rates",) if BUILD >= NEW else ()),
)


def next_token(model: str, text: Sequence[int]) -> int:
    """Return what a model says behind a text: a function of its last three tokens."""
    number = 0
    for token in text[-3:]:
        number = (number * 131 + token + 7) % 1009
    is_wrong = "small" in model and number % 4 == 0
    return (number + is_wrong) % VOCABULARY


def copied(text: Sequence[int], size: int, length: int) -> list[int]:
    """Return what ngram-simple copies behind the latest earlier place of the text's end."""
    history, pattern = list(text[:-1]), list(text[len(text) - size :])
    if len(history) <= size + length + 1:
        return []
    for begin in range(len(history) - size - 1, 0, -1):
        if history[begin : begin + size] == pattern:
            found = history[begin + size : begin + size + length]
            return found if len(found) >= size else []
    return []


class Fake:
    """A server's options and what it counted."""

    def __init__(self, words: Sequence[str]) -> None:
        self.told: dict[str, str] = {}
        rest = list(words)
        while rest:
            name = rest.pop(0)
            if name == "--metrics":
                continue
            if name not in OPTIONS:
                sys.exit(f"error: invalid argument: {name}")
            self.told[name] = rest.pop(0)
        self.model = Path(self.told["--model"]).name
        if not Path(self.told["--model"]).read_bytes().startswith(b"GGUF"):
            sys.exit(f"error: failed to load model {self.told['--model']}: no GGUF")
        self.way = self.told.get("--spec-type", "none")
        if self.way not in ("none", "draft-simple", "ngram-simple", "ngram-map-k"):
            sys.exit(f"error: unknown speculative type: {self.way}")
        self.slots = int(self.told["--parallel"])
        self.room = int(self.told["--ctx-size"]) // self.slots
        self.drafts = self.drafted = self.accepted = 0
        self.at = [0] * LONGEST
        self.lock = threading.Lock()

    def drafts_of(self, text: list[int], most: int) -> list[int]:
        if self.way == "none" or most < 1:
            return []
        if self.way != "draft-simple":
            size, length = (int(self.told[f"--spec-{self.way}-size-{end}"]) for end in "nm")
            return copied(text, size, length)[:most]
        found, drafter = list(text), Path(self.told["--spec-draft-model"]).name
        for _ in range(min(int(self.told["--spec-draft-n-max"]), most)):
            found.append(next_token(drafter, found))
        return found[len(text) :]

    def completed(self, prompt: list[int], new_tokens: int, index: int) -> dict[str, Any]:
        if len(prompt) + new_tokens > self.room:
            raise ValueError(f"the request exceeds the available context size ({self.room} tokens)")
        text, ms, drafted, accepted = list(prompt), 0.0, 0, 0
        if new_tokens:
            text.append(next_token(self.model, text))
        while len(text) < len(prompt) + new_tokens:
            draft = self.drafts_of(text, len(prompt) + new_tokens - len(text) - 1)
            kept = 0
            while kept < len(draft) and draft[kept] == next_token(self.model, text):
                text.append(draft[kept])
                kept += 1
            text.append(next_token(self.model, text))
            forwards = len(draft) if self.way == "draft-simple" else 0
            ms += PLAIN_MS + DRAFTING_MS * bool(draft) + TOKEN_MS * len(draft) + FORWARD_MS * forwards
            drafted, accepted, self.drafts = drafted + len(draft), accepted + kept, self.drafts + bool(draft)
            for place in range(kept):
                self.at[place] += 1
        self.drafted, self.accepted = self.drafted + drafted, self.accepted + accepted
        timings = {"predicted_n": new_tokens, "predicted_ms": ms}
        counts = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
        told = {"index": index, "content": "x", "stop": True, "tokens": text[len(prompt) :]}
        return {**told, "timings": timings | counts}

    def metrics(self) -> str:
        counts = {"drafts": self.drafts, "draft_tokens": self.drafted, "accepted_tokens": self.accepted}
        lines = ["llamacpp:tokens_predicted_total 1"]
        if BUILD >= NEW and self.way != "none":
            lines += [f"llamacpp:spec_decode_num_{name}_total {value}" for name, value in counts.items()]
            name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f'{name}{{position="{place}"}} {count}' for place, count in enumerate(self.at)]
        return "\n".join(lines) + "\n"


def handler(fake: Fake) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            is_loading = MODE == "hangs"
            pages = {"/metrics": fake.metrics(), "/v1/models": json.dumps({"data": [{"id": fake.model}]})}
            found = pages.get(self.path, json.dumps({"status": "ok"}))
            self._answer(503 if is_loading else 200, found)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                tokens = [ord(letter) % VOCABULARY for letter in body["content"]]
                self._answer(200, json.dumps({"tokens": tokens[::-1] if "stranger" in fake.model else tokens}))
                return
            if self.path == "/apply-template":
                said = [f"<{turn['role']}>{turn['content']}" for turn in body["messages"]]
                refused = json.dumps({"error": {"message": "no such role"}})
                self._answer(
                    *(
                        (500, refused)
                        if "<tool>" in "".join(said)
                        else (200, json.dumps({"prompt": "".join([*said, "<assistant>"])}))
                    )
                )
                return
            if self.path == "/detokenize":
                self._answer(200, json.dumps({"content": "".join(chr(token) for token in body["tokens"])}))
                return
            if MODE == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
            try:
                with fake.lock:
                    new_tokens = body.get("n_predict", body.get("max_tokens"))
                    found = [fake.completed(one, new_tokens, place) for place, one in enumerate(prompts)]
            except ValueError as error:
                self._answer(400, json.dumps({"error": {"message": str(error)}}))
                return
            self._answer(200, json.dumps(found if isinstance(body["prompt"][0], list) else found[0]))

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if text[:1] in "[{" else "text/plain")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *told: object) -> None:
            print("asked", self.path, flush=True)

    return Handler


def end(*_: object) -> None:
    if ALONE:
        os.remove(ALONE)
    os._exit(0)


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"version: {BUILD} (0000000)\nbuilt with a fake for tests", file=sys.stderr)
        return
    if sys.argv[1:] == ["--help"]:
        print("\n".join(f"{name} N  an option" for name in OPTIONS))
        return
    fake = Fake(sys.argv[1:])
    if MODE == "ends":
        sys.exit("error: a certain reason")
    if MODE == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if ALONE:
        open(ALONE, "x").close()  # fails where another runs
    if STARTS:
        with open(STARTS, "a") as file:
            file.write(f"{sys.argv[1:]}\n")
    server = ThreadingHTTPServer((fake.told["--host"], int(fake.told["--port"])), handler(fake))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if MODE != "stays":
        signal.signal(signal.SIGTERM, end)
    while True:
        time.sleep(3600.0)


if __name__ == "__main__":
    main()
