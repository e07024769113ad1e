"""A store in a database: SQLite for one machine, PostgreSQL for a team."""
