"""SGLang's and TensorRT-LLM's rules for the scripted server: their options, counters and per-request JSON.

Written after their public documentation and source; the servers themselves did not run here. `FAKE_TELLS` makes an
older SGLang: "counters" tells no drafts of an answer, "gauge" counts no verifications either. `FAKE_HEALTH_S` are the
seconds of the token that SGLang decodes before it says that it is up.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fake_openai_server import Fake
else:  # it runs as a script, beside the server
    from fake_openai_server import Fake

TELLS = os.environ.get("FAKE_TELLS", "details")
MANY = 1 << 20


class SGLangFake(Fake):
    """`sglang.launch_server`: chains of `--speculative-num-steps`, or steps by first batch of a file."""

    health_s = float(os.environ.get("FAKE_HEALTH_S", "0"))

    def __init__(self, words: list[str]) -> None:
        super().__init__(words)
        self.model = self.words["--model-path"]
        algorithm = self.words.get("--speculative-algorithm")
        self.length = int(self.words.get("--speculative-num-draft-tokens", "1")) - 1 if algorithm else 0
        self.right = 0.2 if algorithm == "NGRAM" else self.right
        self.verified = 0
        config = self.words.get("--speculative-adaptive-config")
        if config:
            steps = {
                int(first): one["candidate_steps"][0] for first, one in json.loads(Path(config).read_text()).items()
            }
            firsts = sorted(steps)
            lasts = [*(first - 1 for first in firsts[1:]), MANY]
            self.rows = [(first, last, steps[first]) for first, last in zip(firsts, lasts, strict=True)]

    def pages(self) -> dict[str, str]:
        tokens = self.length + 1 if self.length else None
        info = {"version": "2026-08", "speculative_num_draft_tokens": tokens, "api_key": "hidden-key"}
        return {
            **super().pages(),
            "/metrics": self.metrics() if "--enable-metrics" in self.words else "",
            "/server_info": json.dumps(info),
        }

    def metrics(self) -> str:
        told: dict[str, float] = {"generation_tokens_total": self.tokens, "num_requests_total": self.answers}
        if self.length and TELLS != "gauge":
            told["spec_verify_calls_total"] = self.verified
        if self.length and self.verified:
            told["spec_accept_length"] = self.tokens / self.verified
        return "".join(f'sglang:{name}{{model_name="{self.model}"}} {value}\n' for name, value in told.items())

    def told(self, body: Any, walked: list[tuple[int, int]], done: int) -> Any:
        with self.lock:
            self.verified += len(walked)
        if not self.length or not body.get("return_spec_tokens_details") or TELLS != "details":
            return {}
        exactly = [sum(accepted == kept for _, accepted in walked) for kept in range(self.length + 1)]
        details = {
            "spec_verify_ct": len(walked),
            "spec_num_correct_drafts": sum(accepted for _, accepted in walked),
            "spec_num_proposed_drafts": sum(drafted for drafted, _ in walked),
            "spec_correct_drafts_histogram": exactly,
            "spec_accept_length": done / len(walked),
        }
        return {"sglext": {"spec_tokens_details": details}}


class TensorRTFake(Fake):
    """`trtllm-serve`: a YAML file, and JSON of every request that is told once."""

    def __init__(self, words: list[str]) -> None:
        super().__init__(words)
        text = Path(self.words["--config"]).read_text()
        length = re.search(r"max_draft_len: (\d+)", text)
        self.length = int(length[1]) if length else 0
        self.right = 0.2 if "NGram" in text else self.right
        lasts = re.findall(r"^    (\d+): (\d+)$", text, re.MULTILINE)
        firsts = [1, *(int(last) + 1 for last, _ in lasts)]
        self.rows = [(first, int(last), int(own)) for first, (last, own) in zip(firsts, lasts, strict=False)]
        self.rows += [(firsts[-1], MANY, 0)] if lasts else []
        self.tells = "return_perf_metrics: true" in text and "perf_metrics_max_requests" in text
        self.records: list[Any] = []

    def pages(self) -> dict[str, str]:
        return {**super().pages(), "/metrics": "[]", "/version": json.dumps({"version": "1.4.0rc1"})}

    def drained(self) -> str:
        """Return what was not told yet."""
        with self.lock:
            told, self.records = self.records, []
        return json.dumps(told)

    def told(self, body: Any, walked: list[tuple[int, int]], done: int) -> Any:
        drafted, accepted = (sum(column) for column in zip(*walked, strict=True))
        speculative = {
            "acceptance_rate": accepted / max(drafted, 1),
            "total_accepted_draft_tokens": accepted,
            "total_draft_tokens": drafted,
        }
        metrics: Any = {"first_iter": 7, "last_iter": 7 + len(walked), "timing_metrics": {}}
        record = {
            "request_id": self.answers,
            "perf_metrics": metrics | ({"speculative_decoding": speculative} if drafted else {}),
        }
        with self.lock:
            self.records += [record] if self.tells else []
        return {}


DIALECTS = {"sglang": SGLangFake, "tensorrt-llm": TensorRTFake}
