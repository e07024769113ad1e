"""The round, and what leads to it: requests, slots, prompts, drafts, verification, acceptance, texts."""
