"""Pages of counters by the rounds that a fleet decoded, and a server that shows pages and keeps who asked for what."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

START = "spec_decode_num_"


class Rounds:
    """Rounds that chains decoded: drawn one by one, counted as vLLM or llama.cpp do."""

    def __init__(self, seed: int = 0, engine: str = "vllm") -> None:
        self.rng, self.is_vllm = np.random.default_rng(seed), engine == "vllm"
        self.drafts = self.drafted = self.accepted = self.tokens = self.answers = 0
        self.at = np.zeros(8, dtype=int)
        self.longest = 0

    def decode(self, count: int, acceptance: Sequence[float], *, answer_rounds: int = 20) -> None:
        """Decode so many rounds of chains, whose k-th token is accepted with the given unconditional chance."""
        length = len(acceptance)
        kept = (self.rng.random(count)[:, None] < np.array(acceptance)).sum(axis=1) if length else np.zeros(count, int)
        self.longest = max(self.longest, length)
        self.drafts += count if length else 0
        self.drafted += count * length
        self.accepted += int(kept.sum())
        for place in range(length):
            self.at[place] += int((kept > place).sum())
        answers = count // answer_rounds
        self.answers += answers
        self.tokens += count + int(kept.sum()) + answers  # prefill yields the first of each

    def page(self, running: float = 0.0, labels: str = 'engine="0",model_name="m"') -> str:
        """Return the page."""
        prefix = "vllm:" if self.is_vllm else "llamacpp:"
        told = {f"{START}drafts": self.drafts, f"{START}draft_tokens": self.drafted}
        told |= {f"{START}accepted_tokens": self.accepted}
        told |= {"generation_tokens": self.tokens, "request_success": self.answers} if self.is_vllm else {}
        told |= {} if self.is_vllm else {"tokens_predicted": self.tokens}
        lines = [f"{prefix}{name}_total{{{labels}}} {float(value)} 1760000000000" for name, value in told.items()]
        lines += [f"{prefix}{name}_created{{{labels}}} 1.7e9" for name in told]
        lines += [
            f'{prefix}{START}accepted_tokens_per_pos_total{{{labels},position="{place}"}} {float(self.at[place])}'
            for place in range(self.longest)
        ]
        gauge = "num_requests_running" if self.is_vllm else "requests_processing"
        return "\n".join([*lines, f"{prefix}{gauge}{{{labels}}} {running}"]) + "\n"

    def sglang_page(self, running: float, *, counts_rounds: bool) -> str:
        """Return the page of SGLang, which counts no accepted tokens, and in older versions no rounds."""
        told = {"generation_tokens_total": self.tokens, "num_requests_total": self.answers, "num_running_reqs": running}
        if counts_rounds:
            told["spec_verify_calls_total"] = self.drafts
        if self.drafts:
            told["spec_accept_length"] = 1.0 + self.accepted / self.drafts
            told["spec_accept_rate"] = self.accepted / self.drafted
        return "".join(f'sglang:{name}{{model_name="m"}} {float(value)}\n' for name, value in told.items())


def as_prometheus(*pages: str) -> str:
    """Return the answer of Prometheus' HTTP API to a query of all that these instances show."""
    found = []
    for instance, page in enumerate(pages):
        for line in page.splitlines():
            series, value = line.split(" ")[:2]
            name, _, inside = series.partition("{")
            labels = dict(part.split("=", 1) for part in inside.rstrip("}").split(","))
            metric = {"__name__": name, "instance": f"host{instance}", **{k: v.strip('"') for k, v in labels.items()}}
            found.append({"metric": metric, "value": [1.76e9, value]})
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}})


@contextmanager
def shown(page: Callable[[], str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a server that answers every GET with a page, and what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"GET {self.path}")
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            asked.append(f"POST {self.path}")
            self.send_error(405)

        def log_message(self, *told: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
