"""OpenVINO GenAI: exports, and runs on this CPU."""
