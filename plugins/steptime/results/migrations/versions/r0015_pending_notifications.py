"""What is to be notified has a table of that name: it was called `untold`."""

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Move the rows: SQLite does not rename constraints, so the table is made anew."""
    name = "pending_notifications"
    keys = [
        sa.ForeignKeyConstraint([key], ["runs.id"], name=op.f(f"fk_{name}_{key}_runs"), ondelete="CASCADE")
        for key in ("raised_by", "about")
    ]
    table = op.create_table(
        name,
        sa.Column("raised_by", sa.Integer, nullable=False),
        sa.Column("about", sa.Integer, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        *keys,
        sa.PrimaryKeyConstraint("raised_by", "about", name=op.f(f"pk_{name}")),
    )
    columns = [column.name for column in table.columns]
    before = sa.table("untold", *map(sa.column, columns))
    op.execute(sa.insert(table).from_select(columns, sa.select(*before.columns)))
    op.drop_table("untold")
