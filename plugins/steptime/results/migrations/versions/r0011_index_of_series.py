"""One index has all that makes a series: the newest run of each is found without reading the table."""

from alembic import op  # noqa: TID253 - only Alembic imports this module

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Replace the index of a recipe by a longer one."""
    recipe = ["workload", "size", "dtype", "gpu_type", "mode", "gpus"]
    ways = ["tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel"]
    op.drop_index("_".join(["ix_runs", *recipe]), "runs")
    rest = ["cluster", "scaling", "proxy", *ways, "state", "dag_id", "id"]
    op.create_index("ix_runs_series", "runs", [*recipe, *rest])
