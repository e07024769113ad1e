"""Why a plan decodes as it does, and what would change it."""
