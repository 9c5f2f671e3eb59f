"""How runs scale, with what that rests on.

Runs from before have none: `steptime results judge --all` computes it.
"""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the columns."""
    for end in ("", "_low", "_high"):
        op.add_column("runs", sa.Column(f"scaling_efficiency{end}_percent", sa.Double))
    op.add_column("runs", sa.Column("scaling_base_gpus", sa.Integer))
    op.add_column("runs", sa.Column("scaling_base_jobs", sa.Text))
