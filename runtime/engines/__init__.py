"""Production engines: what each can run of a plan, and the plan as its settings."""
