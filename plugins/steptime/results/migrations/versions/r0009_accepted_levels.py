"""Levels that people have accepted: the runs with which baselines begin anew."""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the table: nobody could accept a level before."""
    op.create_table(
        "accepted_levels",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("accepted_by", sa.Text, nullable=False),
        sa.Column("accepted_at", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_accepted_levels_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_accepted_levels")),
    )
