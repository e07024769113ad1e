"""Where draft tokens come from: a model, or the committed text itself."""
