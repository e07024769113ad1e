"""The jobs for other engines: profile, plan, validate, and what their counters say."""
