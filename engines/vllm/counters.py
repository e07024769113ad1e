"""Counters of vLLM's server."""

from __future__ import annotations

from ..counters import CounterNames

COUNTERS = CounterNames.with_prefix(
    "vllm:",
    generated="generation_tokens",
    running="num_requests_running",
    answers=(
        "time_to_first_token_seconds_count",
        "request_success",
        "e2e_request_latency_seconds_count",
        "request_generation_tokens_count",
        "request_prompt_tokens_count",
        "request_decode_time_seconds_count",
    ),
    has_model=True,
)
