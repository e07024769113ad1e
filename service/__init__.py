"""The planner service: a store over HTTP, with jobs, access and metrics; `create_app` makes it."""
