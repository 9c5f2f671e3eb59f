"""Tables of the metrics store; the table `runs` has the columns of `store.columns`.

Times are Unix times in seconds, durations are in seconds. Numbers that are not finite are stored as NULL. An
empty database gets these tables. From the first release on, a change needs a migration for older stores.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    and_,
)

from steptime.store.columns import COLUMNS

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Double = Float(53)
"""Double precision under a name that SQLAlchemy 1.4 has, too, which Airflow 3.1 may use."""
_TYPES: dict[str, Any] = {
    "text": Text,
    "integer": Integer,
    "number": Double,
    "time": Double,
    "boolean": Boolean,
}

version = Table("steptime_store_version", metadata, Column("version_num", String(32), primary_key=True))
"""The revision of the tables, `database.REVISION`. A column that is added later is nullable.

Named so that the store may share a database with Airflow's tables.
"""

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    *(
        Column(
            column.name, _TYPES[column.kind], nullable=not column.required, unique=column.name == "job_name"
        )
        for column in COLUMNS
    ),
    Column("content_sha256", Text, nullable=False),
    Index(None, "dag_id", "dag_run_id"),
    Index(None, "submitted_at"),
    # Of one series, and of few others: a trend takes no longer the more runs the store has.
    Index(None, "cluster", "workload", "size", "gpus", "submitted_at"),
)

is_result = runs.c.published_at.is_not(None)
"""Whether readers see a run: it is published or rejected, not still being measured or checked."""
is_valid = and_(is_result, runs.c.state == "valid")

steps = Table(
    "steps",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    # A rejected run may list a step twice: the number alone does not name a row.
    Column("position", Integer, primary_key=True),
    Column("global_step", Integer, nullable=False),
    Column("step_time_s", Double),
    Column("loss", Double),
    Column("learning_rate", Double),
    Column("global_batch_size", Integer),
    Column("consumed_samples", BigInteger),
    Column("tflops_per_gpu", Double),
    Column("tokens_per_s_per_gpu", Double),
    Column("peak_memory_bytes", BigInteger),
    Column("wall_time_s", Double),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("iteration", BigInteger),
    Column("started_at", Double),
    Column("duration_s", Double),
    Column("asynchronous", Boolean, nullable=False),
    Column("blocked_s", Double),
)

validations = Table(
    "validations",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("passed", Boolean, nullable=False),
    Column("severity", Text, nullable=False),
    Column("message", Text, nullable=False),
)

records = Table(
    "records",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    # Text and not JSON: it is kept byte for byte, as the file beside the log.
    Column("content", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    # Of the software and settings of the run, see `run_records.read_setup`.
    Column("setup_sha256", Text),
)
"""Records of runs: the only table whose rows are written once and never replaced."""

readings = Table(
    "readings",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("status", JSON, nullable=False),
    Column("measurement", JSON(none_as_null=True)),
    Column("log", JSON, nullable=False),
    # Of `steps`, what is NULL there: position, column, and `nan`, `inf` or `-inf`.
    Column("not_finite", JSON, nullable=False),
)

judgements = Table(
    "judgements",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    # A column of `runs`, `step_time_s` for the one of the steps.
    Column("metric", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("series_state", Text, nullable=False),
    Column("direction", Text),
    Column("judged_on", Text, nullable=False),
    Column("judged_s", Double, nullable=False),
    Column("ratio", Double),
    Column("limit_ratio", Double),
    Column("baseline_mean_s", Double),
    Column("baseline_median_s", Double),
    Column("baseline_deviation", Double),
    Column("baseline_runs", Integer),
    Column("minimum_detectable_change", Double),
    Column("p_value", Double),
    Column("rests_on", JSON, nullable=False),
    Column("changes", JSON, nullable=False),
)
"""How runs were judged, and which runs that is based on; written by `judging.judgements`."""

accepted_levels = Table(
    "accepted_levels",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("note", Text, nullable=False),
    Column("accepted_by", Text, nullable=False),
    Column("accepted_at", Double, nullable=False),
)
"""Runs at which a new baseline begins because a person accepted their level."""

incidents = Table(
    "incidents",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("direction", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("state", Text, nullable=False),
    # The state that people were last notified of; NULL before the first notification.
    Column("notified", Text),
    Column("opened_at", Double, nullable=False),
    Column("confirmed_at", Double),
    Column("closed_at", Double),
    Column("since", Double, nullable=False),
    Column("earliest", Double, nullable=False),
    Column("latest", Double, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("nodes", JSON, nullable=False),
    Column("cells", JSON, nullable=False),
    Column("change", Double, nullable=False),
    Column("judged_cells", Integer, nullable=False),
    Column("note", Text, nullable=False),
    Column("noted_by", Text),
    Column("noted_at", Double),
    # Until then the incident counts apart and nobody is notified of it; NULL if it is not silenced.
    Column("silenced_until", Double),
    Column("silenced_by", Text),
    Index(None, "state"),
)
"""Cells that got slower or faster together, until their times are usual again; see `judging.incidents`."""

jobs = Table(
    "jobs",
    metadata,
    Column("name", Text, primary_key=True),
    Column("installation_id", Text, nullable=False),
    Column("installation_address", Text),
    Column("dag_id", Text, nullable=False),
    Column("dag_run_id", Text, nullable=False),
    # Unix time from which Airflow allows the DAG run to start.
    Column("run_after", Double),
    Column("task_group", Text),
    Column("map_index", Integer),
    Column("cell", Text, nullable=False),
    # 0 of what is only reserved, see `store.budgets`: then the columns that it does not need are NULL.
    Column("attempt", Integer, nullable=False),
    Column("resubmission", Integer),
    # Airflow's max_tries of the task that submits, when the attempt began.
    Column("max_tries", Integer),
    Column("cluster", Text, nullable=False),
    Column("account", Text),
    Column("gpus", Integer, nullable=False),
    Column("time_limit_s", Integer, nullable=False),
    Column("excluded_nodes", JSON),
    Column("run", JSON),
    Column("request", JSON),
    Column("provenance", JSON),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("abandoned", Boolean),
    # NULL until the cluster has answered: then nobody knows whether the job was submitted.
    Column("job_id", Text),
    Column("directory", Text),
    Column("log_path", Text),
    Column("created_at", Double, nullable=False),
    # Whether it waits for GPUs that its cluster's file limits; false once it may be submitted.
    Column("waits_for_gpus", Boolean),
    # When it last asked for them.
    Column("asked_at", Double),
    Column("submitted_at", Double),
    Column("started_at", Double),
    # NULL as long as the job may run.
    Column("ended_at", Double),
    Index(None, "dag_id", "dag_run_id"),
    Index(None, "cluster", "ended_at"),
)
"""The job ledger: one row per job, inserted before the cluster is contacted; see `store.ledger`."""


def own_columns(table: Table) -> tuple[Column[object], ...]:
    """Return the columns of a table without `run_id` and `position`: the run and the place of a row."""
    return tuple(column for column in table.columns if column.name not in ("run_id", "position"))
