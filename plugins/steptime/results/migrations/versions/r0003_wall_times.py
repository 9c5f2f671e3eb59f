"""Wall times: from the end of a step to the end of the next, beside the step time that the trainer logged."""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns; runs of before have none."""
    op.add_column("runs", sa.Column("wall_time_median_s", sa.Double))
    op.add_column("steps", sa.Column("wall_time_s", sa.Double))
