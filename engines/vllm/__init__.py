"""vLLM: exports, its server, and runs on this CPU."""
