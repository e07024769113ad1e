"""Growing the trees of the planner's policies as tensors, on the device of the drafter."""
