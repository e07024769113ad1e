"""What passes between planner and drafters: trees, drafts, recordings and their results."""
