"""SGLang: exports, and its server."""
