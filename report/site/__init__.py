"""The pages of a store: the same for a browser at the service and for one file."""
