"""The engines whose servers are tuned, by name."""

from __future__ import annotations

from collections.abc import Mapping

from .base import ServerEngine
from .llama_cpp import LlamaCppServer
from .vllm import VLLMServer

ENGINES: Mapping[str, ServerEngine] = {engine.name: engine for engine in (LlamaCppServer(), VLLMServer())}
