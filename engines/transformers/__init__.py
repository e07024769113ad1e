"""transformers' `generate`: exports, and runs on this CPU."""
