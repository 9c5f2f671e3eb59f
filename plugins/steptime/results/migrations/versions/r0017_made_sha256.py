"""Whether two runs were made alike is seen without reading their records.

Those from before do not: they are read whole where runs are compared.
"""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the column."""
    op.add_column("records", sa.Column("made_sha256", sa.Text))
