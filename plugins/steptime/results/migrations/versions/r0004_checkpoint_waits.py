"""What training waited for a save gets a column of its own, beside how long the save took.

Until now `duration_s` of an asynchronous save, and `checkpoint_save_s` of its run, were the wait alone. How
long such a save took is in the trainer's own record, if the run has one; else it is not known.
"""

from typing import Any

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns and fill them, in the measurements as well."""
    op.add_column("runs", sa.Column("checkpoint_blocked_s", sa.Double))
    op.add_column("checkpoints", sa.Column("blocked_s", sa.Double))
    op.execute("UPDATE checkpoints SET blocked_s = duration_s")
    runs = sa.table("runs", *map(sa.column, ("id", "checkpoint_save_s", "checkpoint_blocked_s")))
    checkpoints = sa.table(
        "checkpoints",
        *map(sa.column, ("run_id", "position", "kind", "duration_s", "blocked_s")),
        sa.column("asynchronous", sa.Boolean),
    )
    readings = sa.table(
        "readings", sa.column("run_id"), sa.column("measurement", sa.JSON), sa.column("log", sa.JSON)
    )
    connection = op.get_bind()
    for reading in connection.execute(sa.select(readings)).mappings().all():
        of_run = checkpoints.c.run_id == reading["run_id"]
        query = sa.select(checkpoints).where(of_run, checkpoints.c.kind == "save")
        saves = connection.execute(query.order_by(checkpoints.c.position)).mappings().all()
        known = _durations(reading["log"], len(saves))
        for save, duration_s in zip(saves, known, strict=True):
            if save["asynchronous"]:
                row = checkpoints.update().where(of_run, checkpoints.c.position == save["position"])
                connection.execute(row.values(duration_s=duration_s))
        measurement = reading["measurement"]
        if measurement is None:
            continue
        columns = {"checkpoint_blocked_s": saves[-1]["blocked_s"] if saves else None}
        if saves and saves[-1]["asynchronous"]:
            columns["checkpoint_save_s"] = known[-1]
        connection.execute(runs.update().where(runs.c.id == reading["run_id"]).values(columns))
        of_reading = readings.update().where(readings.c.run_id == reading["run_id"])
        connection.execute(of_reading.values(measurement=measurement | columns))


def _durations(log: dict[str, Any], saves: int) -> list[float | None]:
    """Of each save, as the trainer's record has it; None if it has not as many."""
    transfers = (log.get("ended") or {}).get("checkpoints") or []
    durations = [transfer["duration_s"] for transfer in transfers if transfer["kind"] == "save"]
    return durations if len(durations) == saves else [None] * saves
