"""Trees, and the code that grows them: one for replay and runtime."""
