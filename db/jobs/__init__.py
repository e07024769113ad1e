"""What a planner service keeps beside the store: jobs, uploads, receipts of writes, tokens."""
