"""What is to be notified, kept until it was: what a task that dies leaves, its retry sends."""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Make the table: what was published before was sent then."""
    keys = [
        sa.ForeignKeyConstraint([name], ["runs.id"], name=op.f(f"fk_untold_{name}_runs"), ondelete="CASCADE")
        for name in ("raised_by", "about")
    ]
    op.create_table(
        "untold",
        sa.Column("raised_by", sa.Integer, nullable=False),
        sa.Column("about", sa.Integer, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        *keys,
        sa.PrimaryKeyConstraint("raised_by", "about", name=op.f("pk_untold")),
    )
