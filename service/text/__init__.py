"""A target's text over HTTP, as clients of OpenAI's API ask for it."""
