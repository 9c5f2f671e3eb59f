"""What jobs took of their clusters, and what is committed, for budgets of GPU-hours.

Of runs from before there is the last job, under the account of its cluster's file.
"""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table, and fill it from the runs that are there."""
    op.create_table(
        "charges",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("job_name", sa.Text),
        sa.Column("dag_run", sa.Text),
        sa.Column("held_by", sa.Text),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("account", sa.Text),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("time_limit_s", sa.Integer),
        sa.Column("counts_until", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_charges")),
        sa.UniqueConstraint("job_name", name=op.f("uq_charges_job_name")),
    )
    op.create_index(op.f("ix_charges_cluster_ended_at"), "charges", ["cluster", "ended_at"])
    op.execute(
        "INSERT INTO charges (job_name, dag_run, label, cluster, gpus, counts_until, started_at, ended_at) "
        "SELECT job_name, dag_id || '/' || dag_run_id, label, cluster, gpus, ended_at, started_at, ended_at "
        "FROM runs WHERE ended_at IS NOT NULL"
    )
