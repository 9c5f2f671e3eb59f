"""Half a year of a weekly sweep of 60 cells on three clusters, with and without planted changes.

Cells are rows of the recipe documents, so that each has a published step time, and one model's checkpoints.
The first run of a cell is made by the product's own code: planned, measured, published. The others are copies
of its rows with another level, nodes and time, made in the database, which takes a tenth of the CPU.
A suspicion is followed by two confirmation runs within its week, as a sweep starts them.
"""

import hashlib
import json
import os
import random
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import pytest
import stored
from filelock import FileLock

from steptime.clusters.base import JobState, JobStatus, StagedFiles
from steptime.durations import WEEK_S
from steptime.judging.detection import CONFIRMATION_RUNS, SeriesState, judge
from steptime.judging.incident_updates import update_incidents
from steptime.judging.judgements import accept, judge_all
from steptime.logs.training_log import CheckpointTiming, Step, TrainingLog
from steptime.measure.metrics import against_publication, measure
from steptime.measure.record import format_record
from steptime.recipes.models import Mode
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.published import published_performance
from steptime.store.run_queries import Store
from steptime.store.run_records import setup_columns, setup_sha256

WEEKS = 26
LAST = WEEKS - 1
NOISE = 0.01
"""Standard deviation from run to run, relative to the step time."""
GPUS_PER_NODE = 8
NODES = {"east": 16, "west": 256, "north": 256}
SWEEP_DAG = "steptime_sweep_weekly"

_PLANNED = {
    "east": (
        ("llama3.1-25.04", "8b", "8-128"),
        ("llama3.1-25.04", "405b-proxy", "32"),
        ("nemotron4-25.04", "15b", "16-64"),
        ("nemotron-h-25.05", "56b", "32-64"),
    ),
    "west": (
        ("nemotron4-25.04", "15b", "128-2048"),
        ("nemotron4-25.04", "340b", "256-2048"),
        ("nemotron-h-25.05", "56b", "256-512"),
    ),
    "north": (("llama3.1-25.04", "70b", "64-2048"), ("llama3.1-25.04", "405b", "512-2048")),
}
"""The workloads, sizes and scales of each cluster, in every number format that the document has."""

SCALED = ("8b", "15b", "56b", "70b", "340b", "405b")
"""The sizes that run at several scales."""

Cell = str
"""A cell's label, such as `70b·fp8·64`, which is unique."""
STEP, DRIFT, ACCEPTED, NOISY = "70b·fp8·64", "70b·bf16·256", "405b·bf16·512", "70b·fp8·1024"
"""Cells on the cluster `north`: with a step, a drift, an accepted level, and much noise."""
BELOW = "8b·fp8·32"
"""A cell that has always been slower than its publication; so is the accepted level."""
ACCEPTED_FROM = 16
"""The week from which a level is 8 % slower, which somebody accepted."""
WEST_CHANGE = "NCCL_ALGO none → Ring"
"""The change in all cells of the cluster `west`, which got slower."""
UPGRADED_FROM = 12
"""The week from which all runs have another driver, which changes nothing."""
SEEDS = (1, 3, 4)
"""Seeds of the noise; the first is that of the pages. Some err, such as 0 and 2: `reference/judging.md`."""


class Stores(NamedTuple):
    """Two stores with the same noise, by their addresses."""

    unchanged: str
    planted: str
    bad_node: str
    """The node that slows its runs by 6 % in the last week of the second store."""


@cache
def cells():
    """Return the planned run of each cell."""
    runs = {run.label: run for run in _planned_runs()}
    assert len(runs) == 60
    return runs


def _planned_runs():
    for cluster, rows in _PLANNED.items():
        for workload, name, gpus in rows:
            size, _, proxy = name.partition("-")
            for dtype in ("fp8",) if workload == "nemotron-h-25.05" else ("bf16", "fp8"):
                request = PlanRequest(
                    workload=workload, size=size, proxy=bool(proxy), dtype=dtype, gpu_type="h100", gpus=gpus,
                    cluster="local", checkpoint=(name, dtype) == ("70b", "bf16"),
                )  # fmt: skip
                planned = plan(request)
                for run in planned.all_runs:
                    if run.mode is Mode.PERFORMANCE or run.recipe.gpus == 2048:
                        yield run.model_copy(update={"cluster": cluster})


@dataclass(frozen=True)
class Made:
    """A made-up run."""

    cell: Cell
    week: int
    number: int
    """0 for the sweep's own run, from 1 on for confirmation runs."""
    level: float
    """The run's times relative to those of the cell's first run."""
    nodes: tuple[str, ...]
    changed: tuple[tuple[str, str], ...] = ()
    """Variables that are set differently in this run."""

    @property
    def job_name(self):
        """Return the run's key in the store."""
        return f"{self.cell.replace('·', '-').replace(' ', '-')}-{self.week:02}{'abc'[self.number]}"


def slowed(cell, week, nodes, bad_node):
    """Return the planted change: the time of a step relative to the cell's usual time."""
    last, cluster = week == LAST, cells()[cell].cluster
    if cell == STEP and last:
        return 1.05
    if cell == DRIFT:
        return 1 + 0.0025 * week
    if cell == ACCEPTED and week >= ACCEPTED_FROM:
        return 1.08
    if bad_node in nodes and last:
        return 1.06
    return 1.03 if cluster == "west" and last else 1.0


def changed(cell, week):
    """Return the variables that are set differently where a planted change has a reason."""
    if week < LAST:
        return ()
    of_west = (("NCCL_ALGO", "Ring"),) if cells()[cell].cluster == "west" else ()
    return (("NVTE_FUSED_ATTN", "0"),) if cell == STEP else of_west


def history(seed, cell, bad_node):
    """Yield the runs of a cell, oldest first; without a bad node nothing is planted."""
    series_state = SeriesState()
    for week in range(WEEKS):
        began_with = ()
        if bad_node is not None and (cell, week) == (ACCEPTED, ACCEPTED_FROM):
            series_state = SeriesState()
        for number in range(1 + CONFIRMATION_RUNS):
            dice = random.Random(f"{seed} {cell} {week} {number}")  # noqa: S311 - step times, not secrets
            nodes = _free_nodes(dice, cells()[cell], without=began_with)
            began_with = began_with or nodes
            level = dice.gauss(1, 5 * NOISE if cell == NOISY else NOISE)
            if bad_node is None:
                made = Made(cell, week, number, level, nodes)
            else:
                level *= slowed(cell, week, nodes, bad_node)
                made = Made(cell, week, number, level, nodes, changed(cell, week))
            series_state = judge(series_state, made.level)
            yield made
            if series_state.state != "suspected":
                break


def _free_nodes(dice, run, without):
    """Return as many nodes as the run needs, without those of the suspected run if enough others are left."""
    every = [f"{run.cluster[0]}{number:03}" for number in range(1, NODES[run.cluster] + 1)]
    wanted = run.recipe.gpus // GPUS_PER_NODE
    others = [node for node in every if node not in without]
    return tuple(sorted(dice.sample(others if len(others) >= wanted else every, wanted)))


def bad_node_of(seed):
    """Return the node of `east` on which most of its cells ran in the last week."""
    ran = [
        node
        for cell, run in cells().items()
        if run.cluster == "east"
        for made in history(seed, cell, None)
        if (made.week, made.number) == (LAST, 0)
        for node in made.nodes
    ]
    return max(sorted(set(ran)), key=ran.count)


def first_runs(make_result):
    """Yield a whole result for each cell, from which its other runs are made."""
    for cell, run in cells().items():
        published = published_performance(run.recipe)
        assert published is not None
        dice = random.Random(cell)  # noqa: S311 - step times, not secrets
        level = {BELOW: 1.07, ACCEPTED: 1.0}.get(cell, dice.uniform(0.95, 0.98))
        steps = tuple(
            Step(
                global_step=number,
                step_time_s=round((2 if number == run.first_step else 1) * level * published.step_time, 3)
                + round(dice.uniform(-0.02, 0.02) * published.step_time, 3),
                loss=round(11.9 - 0.08 * number, 3),
                global_batch_size=run.recipe.global_batch_size,
                peak_memory_bytes=70_000_000_000,
            )
            for number in range(run.first_step, run.max_steps)
        )
        log = TrainingLog(
            path=f"/lustre/experiments/{cell}/log-{run.experiment}.out",
            format="nemo2",
            bytes_read=1 << 16,
            steps=steps,
            checkpoints=_checkpoints(run),
            started={
                "schema": 1,
                "versions": {"nemo": "2.3.1", "torch": "2.7.0", "nvidia_driver": "570.86.15"},
            },
        )
        yield make_result(cell, run=run, log=log, measurement=measure(run, log), **_ran(make_result))


def _checkpoints(run):
    if run.mode is Mode.CHECKPOINT_SAVE:
        return (
            CheckpointTiming(kind="save", iteration=49, started_at=None, duration_s=41.5, blocked_s=41.5),
        )
    if run.mode is Mode.CHECKPOINT_LOAD:
        return (
            CheckpointTiming(kind="load", iteration=None, started_at=None, duration_s=63.2, blocked_s=63.2),
        )
    return ()


def _ran(make_result):
    """Return what the first run of each cell ran with, and which sweep it was of."""
    provenance = make_result().submitted.provenance
    of_sweep = {
        "sweep": "weekly",
        "dag_id": SWEEP_DAG,
        "dag_run_id": "first",
        "environment": {"NVTE_FUSED_ATTN": "1", "NCCL_DEBUG": "WARN"},
        "staged": StagedFiles(
            image="nvcr.io/nvidia/nemo:25.04.01",
            image_digest="sha256:" + "6" * 64,
            python=None,
            venv_lock_sha256=None,
            trainer_path="/lustre/staged/trainer",
            trainer_sha256="b" * 64,
        ),
    }
    ended = JobStatus(state=JobState.SUCCEEDED, exit_code=0, started_at=1.79e9, ended_at=1.79e9 + 600)
    return {"provenance": provenance.model_copy(update=of_sweep), "status": ended}


_SLOWER = {
    *("step_time_mean_s", "step_time_std_s", "step_time_median_s", "step_time_over_published", "step_time_s"),
    *("steady_step_time_s", "steady_step_time_iqr_s", "days_per_1t_tokens", "duration_s", "blocked_s"),
    *("checkpoint_save_s", "checkpoint_blocked_s", "checkpoint_load_s"),
}
"""Columns that are proportional to the level of a run."""
_FASTER = {"tokens_per_s", "tokens_per_s_per_gpu", "mfu_percent"}


def write(path, runs, now):
    """Add runs to a store in this file that has the first run of each cell."""
    from steptime.store import schema

    with closing(sqlite3.connect(path)) as connection, connection:
        connection.row_factory = sqlite3.Row
        rows = list(_rows(connection, runs, now))
        for table in (
            schema.runs,
            schema.steps,
            schema.checkpoints,
            schema.validations,
            schema.readings,
            schema.records,
        ):
            _copy(connection, table, rows)


def _copy(connection, table, rows):
    """Copy each row of a cell's first run for another run, with the values that `rows` has."""
    given = {"id": ":run_id", "text": "replace(text, :like_job, :job_name)"}
    names = [column.name for column in table.columns]
    taken = [
        f":{name}" if name in rows[0]
        else f"{name} * :level" if name in _SLOWER
        else f"{name} / :level" if name in _FASTER
        else given.get(name, name)
        for name in names
    ]  # fmt: skip
    key = "id" if "id" in names else "run_id"
    connection.executemany(
        f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(taken)} FROM {table.name} "  # noqa: S608
        f"WHERE {key} = :like",
        rows,
    )


def _rows(connection, runs, now):
    first = {
        row["label"]: row
        for row in connection.execute(
            "SELECT runs.*, records.content FROM runs JOIN records ON run_id = id WHERE dag_run_id = 'first'"
        )
    }
    records = {cell: json.loads(row["content"]) for cell, row in first.items()}
    newest = connection.execute("SELECT max(id) FROM runs").fetchone()[0]
    places = {cell: index for index, cell in enumerate(cells())}
    for run_id, made in enumerate(runs, start=newest + 1):
        like = first[made.cell]
        at = now - (LAST - made.week) * WEEK_S - 8 * 3600 + 60 * places[made.cell] + 3600 * made.number
        queued = 30.0 + 0.4 * like["gpus"] * made.level
        took = 240.0 + 50 * made.level * (like["step_time_mean_s"] or 0)
        dag_run_id = f"week-{made.week:02}"
        ran = {"job_name": made.job_name, "submitted_at": at, "dag_run_id": dag_run_id}
        ends = {"started_at": at + queued, "ended_at": at + queued + took}
        content = _record(records[made.cell], made, ends, {"dag_run_id": dag_run_id})
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        yield ran | ends | {
            "run_id": run_id,
            "like": like["id"],
            "like_job": like["job_name"],
            "level": made.level,
            "against_publication": like["against_publication"]
            and against_publication(like["step_time_over_published"] * made.level),
            "queue_wait_s": queued,
            "gpu_hours": like["gpus"] * took / 3600,
            **setup_columns(content),
            "log_path": f"/lustre/experiments/{made.job_name}/{like['log_path'].rpartition('/')[2]}",
            "published_at": ends["ended_at"],
            "content_sha256": hashlib.sha256(made.job_name.encode()).hexdigest(),
            "content": content,
            "sha256": sha256,
            "setup_sha256": setup_sha256(content),
        }  # fmt: skip


def _record(like, made, ends, ids):
    """Return the record of a run, made from that of its cell's first run."""
    upgraded = {"nvidia_driver": "570.124.06"} if made.week >= UPGRADED_FROM else {}
    provenance = like["provenance"]
    environment = provenance["environment"] | dict(made.changed)
    return format_record(
        like
        | {
            "job": like["job"] | {"name": made.job_name, "job_id": made.job_name},
            "status": like["status"] | ends | {"nodes": list(made.nodes)},
            "nodes": list(made.nodes),
            "versions": like["versions"] | upgraded,
            "provenance": provenance | ids | {"environment": environment},
        }
    )


def remove_first_runs(path):
    """Delete the first runs, of which all others were made."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM runs WHERE dag_run_id = 'first'")


def planted(stores):
    """Return what a comparison of the second store has to name, and nothing else."""
    return {STEP, DRIFT, f"node {stores.bad_node}", WEST_CHANGE}


def named(rows):
    """Return the causes in rows of a comparison, and the cells that drift or moved without a cause."""
    names = set()
    for row in rows:
        moved = row["verdict"] in ("slower", "faster") and not row["cause"]
        names |= set(filter(None, (row["cause"] or "").split("; ")))
        names |= {row["cell"]} if moved or row["drift_percent"] else set()
    return names


@pytest.fixture(scope="session")
def sixty_cells(tmp_path_factory, make_result):
    """Return a function that returns the stores of a seed, a copy of this process's own.

    Of the processes of pytest-xdist, the first that is asked makes them for all.
    """
    folder, now = tmp_path_factory.mktemp("sixty-cells"), time.time()
    shared = folder if "PYTEST_XDIST_WORKER" not in os.environ else folder.parents[1]

    @cache
    def first():
        store = Store(f"sqlite:///{folder / 'first.db'}")
        for result in first_runs(make_result):
            stored.write(store, result)
        return folder / "first.db"

    @cache
    def stores_of(seed):
        made, copied = shared / f"made-{seed}", folder / str(seed)
        with FileLock(f"{made}.lock"):
            if not made.exists():
                (new := folder / f"new-{seed}").mkdir()
                make_stores(first(), new, seed, now)
                new.rename(made)
        shutil.copytree(made, copied)
        unchanged, planted = (f"sqlite:///{copied / name}.db" for name in ("unchanged", "planted"))
        return Stores(unchanged, planted, bad_node_of(seed))

    return stores_of


def make_stores(first, into, seed, now):
    """Make a seed's stores `unchanged.db` and `planted.db` in a folder, from one with the first runs."""
    bad_node = bad_node_of(seed)
    for name, planted in (("unchanged", None), ("planted", bad_node)):
        path = into / f"{name}.db"
        shutil.copy(first, path)
        write(path, [made for cell in cells() for made in history(seed, cell, planted)], now)
        remove_first_runs(path)
        store = Store(f"sqlite:///{path}")
        if planted:
            level = Made(ACCEPTED, ACCEPTED_FROM, 0, 1.0, ()).job_name
            accept(store, level, note="gradients are checked now", accepted_by="ada", now=now - 9 * WEEK_S)
        judge_all(store)
        update_incidents(store, now=now)
