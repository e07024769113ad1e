"""One file per change of the schema, oldest first by `down_revision`."""
