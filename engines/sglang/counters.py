"""Counters of SGLang's server: the older ones are gauges."""

from __future__ import annotations

from ..counters import CounterNames

COUNTERS = CounterNames(
    drafts="sglang:spec_verify_calls",
    drafted="",
    accepted="",
    by_position="",
    generated="sglang:generation_tokens",
    prompted="sglang:prompt_tokens",
    cached="sglang:cached_tokens",
    running="sglang:num_running_reqs",
    answers=("sglang:num_requests",),
    has_model=True,
    tokens_per_round="sglang:spec_accept_length",
    accepted_share="sglang:spec_accept_rate",
    verified="sglang:spec_num_draft_tokens",
)
