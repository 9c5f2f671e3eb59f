"""Records of their own: what ran becomes one document a run, apart from what was read of it.

Records of runs from before have neither the options nor the whole environment nor earlier attempts.
"""

import hashlib
import json
from typing import Any

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make `records` and `readings` of `provenance`."""
    records = op.create_table(
        "records",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_records_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_records"),
    )
    op.create_table(
        "readings",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("measurement", sa.JSON),
        sa.Column("log", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_readings_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_readings"),
    )
    provenance = sa.table(
        "provenance",
        *(sa.column(name) for name in ("run_id", "steptime_version", "git_commit", "git_clean", "script")),
        *(sa.column(name, sa.JSON) for name in ("run", "job", "status", "staged", "versions", "log")),
    )
    runs = sa.table(
        "runs", *(sa.column(name) for name in ("id", "dag_id", "dag_run_id", "task_id", "map_index"))
    )
    connection = op.get_bind()
    query = sa.select(provenance, runs).join(runs, runs.c.id == provenance.c.run_id)
    for row in connection.execute(query).mappings().all():
        content = json.dumps(_record(row), indent=2, ensure_ascii=False) + "\n"
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        connection.execute(records.insert().values(run_id=row["run_id"], content=content, sha256=sha256))
    op.execute("INSERT INTO readings SELECT run_id, measurement, log FROM provenance")
    op.drop_table("provenance")


def _record(row: sa.RowMapping) -> dict[str, Any]:
    """The record of a run as it would be written now, without what was not kept then."""
    # A driver gives SQLite's truth values as numbers if the column's type is not named.
    clean = None if row["git_clean"] is None else bool(row["git_clean"])
    started = row["log"].get("started") or {}
    of_provenance = ("steptime_version", "git_commit", "staged", "script")
    return {
        "schema_version": 1,
        "job": row["job"],
        "status": row["status"],
        "earlier_attempts": [],
        "nodes": started.get("node_names") or row["status"].get("nodes", []),
        "versions": row["versions"] or {},
        "run": row["run"],
        "provenance": {name: row[name] for name in of_provenance}
        | {"git_clean": clean, "options": {}, "environment": row["run"].get("environment", {})}
        | {name: row[name] for name in ("dag_id", "dag_run_id", "task_id", "map_index")},
    }
