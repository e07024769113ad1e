"""Is a drafter what it should be beside its target: checks of files, and of what it drafts."""
