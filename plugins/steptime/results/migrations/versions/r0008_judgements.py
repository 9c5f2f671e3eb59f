"""What each run is judged by (median and spread of its steady steps, its nodes), and how it was judged.

Runs from before get their steady steps from those in the store and their nodes from their records. They are
judged by `steptime results judge --all`.
"""

import json
import statistics

import sqlalchemy as sa  # noqa: TID253 - only Alembic imports this module
from alembic import op  # noqa: TID253

revision = "0008"
down_revision = "0007"

_STEADY_STEPS = 20  # of `results.metrics` then
_RUNS = sa.table(
    "runs",
    *map(
        sa.column,
        ("id", "window", "steady_steps", "steady_step_time_s", "steady_step_time_iqr_s", "nodes"),
    ),
)
_STEPS = sa.table("steps", *map(sa.column, ("run_id", "global_step", "step_time_s")))
_RECORDS = sa.table("records", *map(sa.column, ("run_id", "content")))


def upgrade() -> None:
    """Add the columns, fill them, and make the table."""
    for name in ("steady_steps", "nodes"):
        op.add_column("runs", sa.Column(name, sa.Text))
    for name in ("steady_step_time_s", "steady_step_time_iqr_s"):
        op.add_column("runs", sa.Column(name, sa.Double))
    op.create_table(
        "judgements",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("figure", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("rules", sa.Integer, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("direction", sa.Text),
        sa.Column("judged_on", sa.Text, nullable=False),
        sa.Column("judged_s", sa.Double, nullable=False),
        sa.Column("ratio", sa.Double),
        sa.Column("limit_ratio", sa.Double),
        sa.Column("baseline_mean_s", sa.Double),
        sa.Column("baseline_median_s", sa.Double),
        sa.Column("baseline_deviation", sa.Double),
        sa.Column("baseline_runs", sa.Integer),
        sa.Column("minimum_detectable_change", sa.Double),
        sa.Column("p_value", sa.Double),
        sa.Column("rests_on", sa.JSON, nullable=False),
        sa.Column("changes", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_judgements_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "figure", "kind", name=op.f("pk_judgements")),
    )
    connection = op.get_bind()
    nodes = {row.run_id: row.content for row in connection.execute(sa.select(_RECORDS))}
    for run_id, window in connection.execute(sa.select(_RUNS.c.id, _RUNS.c.window)).all():
        steps = sa.select(_STEPS.c.global_step, _STEPS.c.step_time_s).where(
            _STEPS.c.run_id == run_id, _STEPS.c.step_time_s > 0
        )
        step_times = {row.global_step: row.step_time_s for row in connection.execute(steps)}
        of_run = _steady(step_times, window)
        of_run["nodes"] = ", ".join(json.loads(nodes[run_id])["nodes"]) or None if run_id in nodes else None
        connection.execute(_RUNS.update().where(_RUNS.c.id == run_id).values(of_run))


def _steady(step_times: dict[int, float], window: str) -> dict[str, str | float | None]:
    first, last = map(int, window.split(":"))
    steps = sorted(step_times)
    if last - first + 1 > _STEADY_STEPS:
        steps = [step for step in steps if first <= step <= last]
    else:
        steps = steps[-_STEADY_STEPS:]
    times = [step_times[step] for step in steps]
    spread = None
    if len(times) > 1:
        lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
        spread = upper - lower
    return {
        "steady_steps": f"{steps[0]}:{steps[-1]}" if steps else None,
        "steady_step_time_s": statistics.median(times) if times else None,
        "steady_step_time_iqr_s": spread,
    }
