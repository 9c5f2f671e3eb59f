"""Indexes have what pages ask for: the latest runs of each series and sweep, and what all took by time."""

from alembic import op  # noqa: TID253 - only Alembic imports this module

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Replace two by longer ones, and add that of sweeps."""
    recipe = ["proxy", "workload", "size", "dtype", "gpu_type", "scaling", "cluster", "mode", "gpus"]
    ways = ["tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel", "expert_parallel"]
    op.drop_index("ix_runs_series", "runs")
    op.create_index("ix_runs_series", "runs", [*recipe, *ways, "state", "submitted_at", "id", "dag_id"])
    op.create_index("ix_runs_sweep", "runs", ["sweep", "submitted_at", "id", "dag_id"])
    op.drop_index("ix_runs_submitted_at", "runs")
    taken = ["gpu_hours", "queue_wait_s"]
    op.create_index("ix_runs_time", "runs", ["submitted_at", "id", "state", "dag_id", *taken])
