"""TensorRT-LLM: exports, and its server."""
