"""The store's schema over time, as alembic sees it."""
