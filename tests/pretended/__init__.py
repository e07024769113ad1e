"""A GPU that is not there, for tests: what a real one forbids is an error, and what it computes the host computes."""
