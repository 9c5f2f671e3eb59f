"""GPU-hours of a job, and the published step time beside the measured one.

GPU-hours of runs from before follow from their start and end. What was published for them is not known here:
a run that is read anew gets it.
"""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns, and fill the first."""
    for name in ("gpu_hours", "published_step_time_s", "step_time_over_published"):
        op.add_column("runs", sa.Column(name, sa.Double))
    op.execute(
        "UPDATE runs SET gpu_hours = gpus * (ended_at - started_at) / 3600 WHERE ended_at >= started_at"
    )
