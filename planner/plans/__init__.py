"""Plans as records: cells, schedule, provenance, and what became of their promises."""
