"""Counters of llama.cpp's server."""

from __future__ import annotations

from ..counters import CounterNames

COUNTERS = CounterNames.with_prefix("llamacpp:", generated="tokens_predicted", running="requests_processing")
