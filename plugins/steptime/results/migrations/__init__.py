"""Alembic's migrations of the metrics store; `results.database` runs them on first use."""
