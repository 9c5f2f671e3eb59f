"""Whether a run passes its publication stands beside the run, and people select runs by their sweep.

Runs from before pass, or do not, by what they have relative to the published step time.
"""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the column, and fill it; put sweeps into the index that has what people select by."""
    op.add_column("runs", sa.Column("against_publication", sa.Text))
    op.execute(
        "UPDATE runs SET against_publication = "
        "CASE WHEN 1 / step_time_over_published >= 0.95 THEN 'passes' ELSE 'below' END "
        "WHERE mode = 'performance' AND step_time_over_published > 0"
    )
    recipe = ["workload", "size", "dtype", "gpu_type", "mode", "gpus", "cluster", "scaling", "proxy"]
    ways = ["tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel", "expert_parallel"]
    op.drop_index("ix_runs_series", "runs")
    op.create_index("ix_runs_series", "runs", [*recipe, *ways, "state", "dag_id", "sweep", "id"])
