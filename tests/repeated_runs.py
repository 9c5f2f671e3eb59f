"""A store with many runs, quickly: the rows of one, over and over."""

import sqlalchemy

from steptime.results import schema
from steptime.results.database import write_transaction


def repeat_run(url: str, count: int) -> None:
    """Write the row of a store's first run anew until there are `count`, five to a DAG run."""
    runs = schema.runs
    with write_transaction(url) as connection:
        row = dict(connection.execute(sqlalchemy.select(runs).order_by(runs.c.id).limit(1)).mappings().one())
        there = connection.scalar(sqlalchemy.select(sqlalchemy.func.max(runs.c.id)))
        rows = [
            {**row, "id": number, "job_name": f"job{number}", "dag_run_id": f"run{number // 5}"}
            for number in range(there + 1, count + 1)
        ]
        connection.execute(runs.insert(), rows)
