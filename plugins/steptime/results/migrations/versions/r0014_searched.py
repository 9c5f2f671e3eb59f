"""What a search looks through has a narrow table of its own."""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0014"
down_revision = "0013"

_TEXTS = (
    *("label", "job_name", "workload", "gpu_type", "cluster"),
    *("dag_id", "dag_run_id", "state", "reason", "warnings"),
)
_RUNS = sa.table("runs", *map(sa.column, ("id", *_TEXTS)))
_AT_ONCE = 1000


def upgrade() -> None:
    """Make the table, and fill it from the runs."""
    searched = op.create_table(
        "searched",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_searched_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_searched")),
    )
    connection = op.get_bind()
    found = connection.execute(sa.select(_RUNS))
    while some := found.fetchmany(_AT_ONCE):
        rows = [
            {"run_id": row.id, "text": " ".join(filter(None, map(row._mapping.get, _TEXTS))).lower()}
            for row in some
        ]
        connection.execute(sa.insert(searched), rows)
