"""The engines whose servers are tuned, by name."""

from __future__ import annotations

from collections.abc import Mapping

from .base import ServerEngine
from .llama_cpp import LlamaCppServer
from .sglang import SGLangServer
from .tensorrt_llm import TensorRTLLMServer
from .vllm import VLLMServer

ENGINES: Mapping[str, ServerEngine] = {
    engine.name: engine for engine in (LlamaCppServer(), SGLangServer(), TensorRTLLMServer(), VLLMServer())
}
