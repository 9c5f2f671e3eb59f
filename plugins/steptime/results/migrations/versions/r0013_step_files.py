"""The files that steps of old runs were moved to."""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Make the table: nothing was moved before."""
    name = op.f("fk_step_files_run_id_runs")
    op.create_table(
        "step_files",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=name, ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_step_files")),
    )
