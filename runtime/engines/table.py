"""The engines by name; a new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from .engine import Engine
from .llama_cpp import LlamaCpp
from .openvino import OpenVINO
from .sglang import SGLang
from .tensorrt_llm import TensorRTLLM
from .transformers_ import Transformers
from .vllm import VLLM

ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (SGLang(), VLLM(), TensorRTLLM(), Transformers(), LlamaCpp(), OpenVINO())
}
