"""The sweep of each cell, and its DAG run.

Runs from before have none: the store never knew which sweep had started them.
"""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns, and find runs by the second."""
    for name in ("sweep", "sweep_run"):
        op.add_column("runs", sa.Column(name, sa.Text))
    op.create_index(op.f("ix_runs_sweep_run"), "runs", ["sweep_run"])
