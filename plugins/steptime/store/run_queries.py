"""Read the metrics store: every run with its steps, checkpoint timings, checks and record.

The store is SQLite by default, PostgreSQL by `STEPTIME_STORE_URL`. `store.writing` writes it. Readers see
only runs that were published or rejected. `Store.find` and `Store.measured` also return runs that are still
being measured or checked.
"""

from __future__ import (
    annotations,  # SQLAlchemy 1.4, which Airflow 3.1 is released with, has no generic classes
)

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from sqlalchemy import case, distinct, exists, func, or_, select
from sqlalchemy.sql.expression import ColumnElement, FromClause, Select

from steptime.clusters.base import JobStatus
from steptime.errors import UserError, one_line
from steptime.recipes.models import Mode
from steptime.settings import store_url
from steptime.store.columns import CHOICES, COLUMNS, ELEMENTS, series_columns
from steptime.store.database import (
    NAMES_AT_ONCE,
    database_exists,
    dicts,
    read_connection,
    shown_address,
)
from steptime.store.run_models import Result
from steptime.store.run_records import measured_result
from steptime.store.schema import (
    is_result,
    is_valid,
    jobs,
    metadata,
    own_columns,
    readings,
    records,
    runs,
    steps,
    validations,
)

LAST = "last"
"""Name for the newest run in the metrics store by time of submission, valid or rejected."""


class RunTimes(NamedTuple):
    """Duration, mean step time and number of steps of a run."""

    job_s: float
    """Seconds from the job's start to its end."""
    step_s: float
    """Mean step time in seconds."""
    steps: int
    """Number of steps in the log."""


_PART = 10_000
"""Runs in memory at a time where many are read: about 200 MB with their verdicts."""


class Store:
    """The metrics store at `url` (a SQLAlchemy address, by default that of the settings).

    It holds no connection: engines are cached per process and address, so a Store is cheap to make and may be
    used by any thread. Every method raises SystemFailure if the database fails.

    `dags` are the DAGs whose runs the store's user may read; None for all. Runs of other DAGs are not
    returned, and do not affect what is returned; runs that belong to no DAG may always be read. `find` and
    `measured` ignore `dags`: they serve Airflow's tasks and commands, not users of the web pages.
    """

    def __init__(self, url: str | None = None, *, dags: Collection[str] | None = None) -> None:
        self.url = url or store_url()
        self.dags = None if dags is None else frozenset(dags)

    def exists(self) -> bool:
        """Return whether there is a store to read; reading would create an empty one."""
        return database_exists(self.url)

    @property
    def shown_address(self) -> str:
        """The path of the SQLite file, or the address of the PostgreSQL database without the password."""
        return shown_address(self.url)

    def newest_sweep_run(self, sweep: str) -> list[dict[str, Any]]:
        """Return the runs of a sweep's newest DAG run, rejected ones included, in reading order."""
        last = self.results(sweep=sweep, include_rejected=True, limit=1)
        of_dag_run = {name: row[name] for row in last for name in ("dag_id", "dag_run_id")}
        return self.results(**of_dag_run, include_rejected=True, in_reading_order=True) if last else []

    def results(
        self,
        *,
        include_rejected: bool = False,
        since: float | None = None,
        until: float | None = None,
        search: str | None = None,
        limit: int | None = None,
        in_reading_order: bool = False,
        only: Iterable[str] | None = None,
        **equal: str | int | bool | None,
    ) -> list[dict[str, Any]]:
        """Return runs as values by column name (`store.columns`), newest first.

        Args:
            include_rejected: include rejected runs.
            since: only runs submitted at or after this Unix time.
            until: only runs submitted before this Unix time.
            search: only runs with each word of this text in a searched column.
            limit: only the newest runs, at most this many.
            in_reading_order: sort by model, mode and number of GPUs; repeats oldest first.
            only: names of the columns to read; by default all.
            equal: only runs with these values, by column, or by the name of one element of a column that
                lists several (`node` for `nodes`); None means any.
        """
        columns = [runs.c[name] for name in only or (column.name for column in COLUMNS)]
        query = select(*([runs.c.id] if in_reading_order else columns))
        query = query.order_by(*_latest_first()).limit(limit)
        query = self._selected(query, include_rejected, since, search, equal)
        if until is not None:
            query = query.where(runs.c.submitted_at < until)
        if in_reading_order:
            query = select(*columns).where(runs.c.id.in_(query)).order_by(*_reading_order())
        with read_connection(self.url) as connection:
            return list(dicts(connection.execute(query)))

    def results_in_parts(self, **selected: Any) -> Iterator[list[dict[str, Any]]]:
        """Yield what `results` returns for these arguments in parts, one of which is in memory at a time."""
        names = [row["job_name"] for row in self.results(**selected, only=("job_name",))]
        columns = [column.name for column in COLUMNS]
        query = select(*(runs.c[name] for name in columns))
        for first in range(0, len(names), _PART):
            part = names[first : first + _PART]
            read = (dict(zip(columns, row, strict=True)) for row in self.read_each(part, query))
            rows = {row["job_name"]: row for row in read}
            yield [rows[name] for name in part if name in rows]

    def count(
        self,
        *,
        include_rejected: bool = False,
        since: float | None = None,
        search: str | None = None,
        **equal: str | int | bool | None,
    ) -> int:
        """Count the runs that `results` would return for these arguments."""
        query = self._selected(select(func.count()).select_from(runs), include_rejected, since, search, equal)
        with read_connection(self.url) as connection:
            return connection.scalar(query) or 0

    def has_run_of(self, folder: PurePath) -> bool:
        """Return whether the store has a run, valid or not, of the job in this folder, or of a copy of it.

        The last three parts of a job's folder name its experiment, time and job.
        """
        own = "/".join(("", *folder.parts[-3:], ""))
        query = select(runs.c.id).where(is_result, runs.c.log_path.contains(own, autoescape=True)).limit(1)
        with read_connection(self.url) as connection:
            return connection.scalar(query) is not None

    def measured_together(self, *, limit: int) -> list[dict[str, Any]]:
        """Return the DAG runs with valid performance runs on several GPU counts, newest first.

        Each has `together` (`dag_id/run_id`), `submitted_at` of its newest run, and the number of its `runs`.
        """
        together = runs.c.dag_id + "/" + runs.c.dag_run_id
        newest = func.max(runs.c.submitted_at).label("submitted_at")
        query = (
            select(together.label("together"), newest, func.count().label("runs"))
            .where(is_valid, runs.c.mode == Mode.PERFORMANCE, together.is_not(None))
            .group_by(together)
            .having(func.count(distinct(runs.c.gpus)) > 1)
            .order_by(newest.desc())
            .limit(limit)
        )
        with read_connection(self.url) as connection:
            return list(dicts(connection.execute(self.readable(query))))

    def trials(self, *, since: float, limit: int) -> list[dict[str, Any]]:
        """Return the DAG runs of trials with a run submitted at or after `since` (Unix time), newest first.

        Each has `trial`, `dag_id`, `dag_run_id`, and `submitted_at` of its newest run.
        """
        names = (runs.c.trial, runs.c.dag_id, runs.c.dag_run_id)
        newest = func.max(runs.c.submitted_at).label("submitted_at")
        query = (
            select(*names, newest)
            .where(runs.c.submitted_at >= since, *(name.is_not(None) for name in names))
            .group_by(*names)
            .order_by(newest.desc())
            .limit(limit)
        )
        with read_connection(self.url) as connection:
            return list(dicts(connection.execute(self.readable(query))))

    def performance_runs(self, together: str) -> list[dict[str, Any]]:
        """Return the valid performance runs of a DAG run, given as `dag_id/run_id`."""
        dag_id, _, dag_run_id = together.partition("/")
        return self.results(
            mode=Mode.PERFORMANCE, dag_id=dag_id, dag_run_id=dag_run_id, in_reading_order=True
        )

    def run_times(self, key: Mapping[str, Any], limit: int) -> list[RunTimes]:
        """Return the times of the newest `limit` valid runs that have these column values and known times."""
        count = select(func.count()).where(steps.c.run_id == runs.c.id).scalar_subquery()
        times = (runs.c.ended_at - runs.c.started_at, runs.c.step_time_mean_s)
        query = (
            select(*times, count)
            .where(is_valid, *(time.is_not(None) for time in times))
            .where(*(runs.c[name] == value for name, value in key.items()))
            .order_by(*_latest_first())
            .limit(limit)
        )
        with read_connection(self.url) as connection:
            return [RunTimes(*row) for row in connection.execute(self.readable(query))]

    def require(self, column: str, value: str, what: str) -> None:
        """Raise UserError, suggesting a similar value, if no run has `value` in `column`.

        `what` names the value in the message, as in `workload`.
        """
        equal: dict[str, Any] = {column: value}
        if not self.count(include_rejected=True, **equal):
            raise self._unknown(column, value, f"there are no results of {what}")

    def list_runs(self, dag_id: str, dag_run_id: str) -> list[dict[str, Any]]:
        """Return all runs of one DAG run, rejected ones included, in the order of their mapped tasks."""
        rows = self.results(dag_id=dag_id, dag_run_id=dag_run_id, include_rejected=True)
        return sorted(rows, key=lambda row: (row["map_index"] is None, row["map_index"], row["submitted_at"]))

    def lost_jobs(self, *, since: float | None = None, **dag_run: str) -> list[dict[str, Any]]:
        """Return the jobs that failed or were cancelled and left no run in the store, newest first.

        Each has some columns of the table `jobs` (the job ledger), and `resubmitted`: whether another job
        replaced it after a fault of the cluster.

        Args:
            since: only jobs created at or after this Unix time.
            dag_run: only jobs of a DAG run, given by `dag_id` and `dag_run_id`.
        """
        where = [
            jobs.c.attempt > 0,
            jobs.c.state.in_(("failed", "timed_out", "cancelled")),
            jobs.c.name.not_in(select(runs.c.job_name)),
            *(jobs.c[name] == value for name, value in dag_run.items()),
        ]
        if since is not None:
            where.append(jobs.c.created_at >= since)
        if self.dags is not None:
            where.append(jobs.c.dag_id.in_(sorted(self.dags)))
        other = jobs.alias()
        of_cell = (other.c[name] == jobs.c[name] for name in ("dag_id", "dag_run_id", "run_after", "cell"))
        resubmitted = exists().where(
            *of_cell,
            other.c.attempt == jobs.c.attempt + 1,
            other.c.resubmission == jobs.c.resubmission + 1,
        )
        names = (
            "run",
            "state",
            "reason",
            "created_at",
            "cluster",
            "gpus",
            "started_at",
            "ended_at",
            "provenance",
        )
        query = select(*(jobs.c[name] for name in names), resubmitted.label("resubmitted")).where(*where)
        with read_connection(self.url) as connection:
            return list(dicts(connection.execute(query.order_by(jobs.c.created_at.desc()))))

    def excluded_nodes(self, job_name: str) -> tuple[str, ...]:
        """Return the nodes that a job was not allowed to use; empty if the job ledger lacks the job.

        `dags` is ignored: check first that the user may read the job.
        """
        with read_connection(self.url) as connection:
            query = select(jobs.c.excluded_nodes).where(jobs.c.name == job_name)
            return tuple(connection.scalar(query) or ())

    def choices(self, **equal: str | int | bool | None) -> dict[str, list[Any]]:
        """Return the values of each column that people filter by, sorted, in the selected runs.

        Numbers within a value sort as numbers: driver 570.86 before 570.124. Rejected runs count. `equal`
        selects runs by column values, as for `results`.
        """
        # All columns at once: there are few combinations.
        query = select(*(runs.c[name] for name in CHOICES)).distinct()
        with read_connection(self.url) as connection:
            rows = connection.execute(self._selected(query, True, None, None, equal)).all()
        values = ({row[index] for row in rows} - {None} for index in range(len(CHOICES)))
        return {name: sorted(of, key=_by_numbers) for name, of in zip(CHOICES, values, strict=True)}

    def run(self, job_name: str) -> dict[str, Any]:
        """Return one run, valid or rejected. Raises UserError for an unknown job name."""
        rows = self.results(job_name=job_name, include_rejected=True)
        if not rows:
            raise self._unknown("job_name", job_name, "there is no run")
        return rows[0]

    def run_named(self, beginning: str) -> dict[str, Any]:
        """Return the run with this job name or a unique beginning of it; `last` is the newest run.

        Raises UserError if none or several match.
        """
        if beginning == LAST and (newest := self.results(include_rejected=True, limit=1)):
            return newest[0]
        if whole := self.results(include_rejected=True, job_name=beginning):
            return whole[0]
        begins = runs.c.job_name.startswith(beginning, autoescape=True)
        query = select(runs.c.job_name).where(begins).order_by(runs.c.job_name)
        with read_connection(self.url) as connection:
            # SQLite ignores case here.
            names = [name for name in connection.scalars(self.readable(query)) if name.startswith(beginning)]
        if len(names) > 1:
            listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise UserError(
                f"'{one_line(beginning)}' begins the names of {len(names)} runs ({listed}): write more of "
                "the name."
            )
        return self.run(names[0] if len(names) == 1 else beginning)

    def steps(self, job_name: str) -> list[dict[str, Any]]:
        """Return the steps of a run; numbers that are not finite are None.

        Raises UserError for an unknown job name.
        """
        return self._children("steps", job_name)

    def steps_of_runs(
        self, job_names: Sequence[str], columns: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return these columns of the steps of several runs, by job name; unknown runs are left out.

        Each step also has its run's `job_name`. Steps are in the order of the log.
        """
        of_runs: dict[str, list[dict[str, Any]]] = {}
        query = select(runs.c.job_name, *(steps.c[name] for name in columns)).join(runs)
        for row in self.read_each(job_names, query.order_by(runs.c.id, steps.c.position)):
            of_runs.setdefault(row[0], []).append(dict(zip(("job_name", *columns), row, strict=True)))
        return of_runs

    def step_times(self, job_names: Sequence[str]) -> dict[str, dict[int, float]]:
        """Return the step times of several runs, in seconds by global step; unknown runs are left out."""
        times: dict[str, dict[int, float]] = {}
        query = (
            select(runs.c.job_name, steps.c.global_step, steps.c.step_time_s)
            .join(runs)
            .where(steps.c.step_time_s.is_not(None))
        )
        for job_name, global_step, step_time_s in self.read_each(job_names, query):
            times.setdefault(job_name, {})[global_step] = step_time_s
        return times

    def records(self, job_names: Sequence[str]) -> dict[str, str]:
        """Return the record of each run as JSON text, by job name; unknown runs are left out."""
        return self._by_job(job_names, records.c.content, records)

    def read_each(self, job_names: Sequence[str], query: Select[*tuple[Any, ...]]) -> Iterator[Sequence[Any]]:
        """Yield the rows of a query that belong to these jobs; unknown jobs are left out.

        The query must select from `runs`.
        """
        with read_connection(self.url) as connection:
            for first in range(0, len(job_names), NAMES_AT_ONCE):
                are_next = runs.c.job_name.in_(job_names[first : first + NAMES_AT_ONCE])
                yield from connection.execute(self.readable(query.where(are_next)))

    def _by_job(
        self, job_names: Sequence[str], column: ColumnElement[Any], table: FromClause
    ) -> dict[str, Any]:
        """Return the value of each run in a column of a table beside `runs`, by job name."""
        query = select(runs.c.job_name, column).select_from(runs).join(table)
        return {row[0]: row[1] for row in self.read_each(job_names, query)}

    def trainer_records(
        self, kind: Literal["rank_times", "gpu_samples"], job_names: Sequence[str]
    ) -> dict[str, dict[str, Any] | None]:
        """Return a record that the trainer printed, as JSON, by job name; unknown runs are left out.

        None for a run whose log lacks the record.
        """
        return self._by_job(job_names, readings.c.log[kind], readings)

    def job_statuses(self, job_names: Sequence[str]) -> dict[str, JobStatus]:
        """Return how the job of each run ended, by job name; unknown runs are left out."""
        statuses = self._by_job(job_names, readings.c.status, readings)
        return {name: JobStatus.model_validate(status) for name, status in statuses.items()}

    def parsed_logs(self, job_names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what was read from the log of each run, as `parsed_log` does, by job name.

        Unknown runs are left out.
        """
        return self._by_job(job_names, readings.c.log, readings)

    def failed_checks(self, job_names: Sequence[str]) -> dict[str, list[str]]:
        """Return the messages of the checks of severity `error` that each run failed, in order, by job name.

        Unknown runs, and runs that failed none, are left out.
        """
        query = select(runs.c.job_name, validations.c.message).select_from(runs).join(validations)
        query = query.where(validations.c.passed.is_(False), validations.c.severity == "error")
        messages: dict[str, list[str]] = {}
        for job_name, message in self.read_each(job_names, query.order_by(validations.c.position)):
            messages.setdefault(job_name, []).append(message)
        return messages

    def checkpoints(self, job_name: str) -> list[dict[str, Any]]:
        """Return the checkpoint timings of a run. Raises UserError for an unknown job name."""
        return self._children("checkpoints", job_name)

    def checks(self, job_name: str) -> list[dict[str, Any]]:
        """Return every check of a run with what it found. Raises UserError for an unknown job name."""
        return self._children("validations", job_name)

    def record(self, job_name: str) -> dict[str, Any]:
        """Return the record of a run: its JSON text as `content`, and the `sha256` of that.

        Raises UserError for an unknown job name.
        """
        record = self._children("records", job_name)[0]
        return {name: record[name] for name in ("content", "sha256")}

    def parsed_log(self, job_name: str) -> dict[str, Any]:
        """Return what was read from a run's log, without its steps and checkpoints.

        `{"measurement": …, "log": …}`: the `Measurement` or None, and the rest of the `TrainingLog`, as JSON.

        Raises UserError for an unknown job name.
        """
        reading = self._children("readings", job_name)[0]
        return {name: reading[name] for name in ("measurement", "log")}

    def measured(self, job_name: str) -> Result:
        """Return a run as it was measured, whether it is published or not.

        Raises UserError for an unknown run, and if this version of steptime cannot read its record.
        """
        result = self.find(job_name)
        if result is None:
            raise unknown_run(job_name)
        return result

    def find(self, job_name: str) -> Result | None:
        """Return a measured run, whether it is published or not; None for an unknown job name.

        Raises UserError if this version of steptime cannot read its record.
        """
        with read_connection(self.url) as connection:
            reading, record, steps, checkpoints = (
                list(dicts(connection.execute(_select_rows(table, job_name))))
                for table in ("readings", "records", "steps", "checkpoints")
            )
        if not reading:
            return None
        [read], [kept] = reading, record
        for position, name, value in read["not_finite"]:
            steps[position][name] = float(value)
        log = read["log"] | {"steps": steps, "checkpoints": checkpoints}
        return measured_result(kept["content"], read["status"], read["measurement"], log)

    def _children(self, table_name: str, job_name: str) -> list[dict[str, Any]]:
        with read_connection(self.url) as connection:
            rows = list(dicts(connection.execute(self.readable(_select_rows(table_name, job_name)))))
        if not rows:
            self.run(job_name)
        return rows

    def _selected(
        self,
        query: Select[*tuple[Any, ...]],
        include_rejected: bool,
        since: float | None,
        search: str | None,
        equal: Mapping[str, str | int | bool | None],
    ) -> Select[*tuple[Any, ...]]:
        """Add the conditions of `results` to a query of runs."""
        if not include_rejected:
            query = query.where(is_valid)
        if since is not None:
            query = query.where(runs.c.submitted_at >= since)
        for word in (search or "").split():
            texts = (runs.c[column.name] for column in COLUMNS if column.searched)
            escaped = re.sub("[/%_]", r"/\g<0>", word)  # SQLAlchemy 1.4 has no icontains
            query = query.where(or_(*(text.ilike(f"%{escaped}%", escape="/") for text in texts)))
        for column, value in equal.items():
            if value is None:
                continue
            if column in ELEMENTS:
                listed = ", " + runs.c[ELEMENTS[column]] + ", "
                query = query.where(listed.contains(f", {value}, ", autoescape=True))
            else:
                query = query.where(runs.c[column] == value)
        return self.readable(query)

    def readable(self, query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
        """Restrict a query of runs to published and rejected ones that the store's user may read (`dags`)."""
        query = query.where(is_result)
        if self.dags is None:
            return query
        return query.where(or_(runs.c.dag_id.is_(None), runs.c.dag_id.in_(sorted(self.dags))))

    def _unknown(self, column: str, value: str, sentence: str) -> UserError:
        with read_connection(self.url) as connection:
            query = self.readable(select(runs.c[column]).distinct().where(runs.c[column].is_not(None)))
            nearest = difflib.get_close_matches(value, connection.scalars(query).all())
        every = f"`steptime results --all --format csv` lists all, in the column {column}."
        hint = f"did you mean '{nearest[0]}'?" if nearest else every
        return UserError(f"{sentence} '{one_line(value)}' in the metrics store: {hint}")


def unknown_run(job_name: str) -> UserError:
    """Return the error for a run that is not in the store."""
    return UserError(f"the metrics store has no run '{job_name}': clear the task 'parse', which stores it.")


def _select_rows(table_name: str, job_name: str) -> Select[*tuple[Any, ...]]:
    """Return the query for the rows of a table that belong to a run, in order."""
    table = metadata.tables[table_name]
    query = select(*own_columns(table)).join(runs).where(runs.c.job_name == job_name)
    return query.order_by(table.c.position) if "position" in table.c else query


def _latest_first() -> tuple[ColumnElement[Any], ...]:
    return runs.c.submitted_at.desc(), runs.c.id.desc()


def _reading_order() -> tuple[ColumnElement[Any], ...]:
    mode = case({mode.value: index for index, mode in enumerate(Mode)}, value=runs.c.mode)
    return (
        *(runs.c[name] for name in series_columns("model", "variant")),
        mode,
        runs.c.gpus,
        runs.c.submitted_at,
        runs.c.id,
    )


def _by_numbers(value: Any) -> list[Any]:
    """Return a sort key by which numbers within a text sort as numbers."""
    if not isinstance(value, str):
        return [value]
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", value)]
