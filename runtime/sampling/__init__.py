"""Which token a place of a text gets: filters of logits, and draws by noise of (seed, place, token)."""
