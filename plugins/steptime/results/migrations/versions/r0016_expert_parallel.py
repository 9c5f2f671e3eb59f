"""Expert parallelism, which makes a series as the other ways do.

Runs from before had no experts to spread: their series are those that they were.
"""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the column, and put it into the index of series."""
    op.add_column("runs", sa.Column("expert_parallel", sa.Integer, nullable=False, server_default="1"))
    recipe = ["workload", "size", "dtype", "gpu_type", "mode", "gpus", "cluster", "scaling", "proxy"]
    ways = ["tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel", "expert_parallel"]
    op.drop_index("ix_runs_series", "runs")
    op.create_index("ix_runs_series", "runs", [*recipe, *ways, "state", "dag_id", "id"])
