"""All that tells people about a run and its series says the same of the same half year of 60 cells."""

import csv
import io
import json
import shutil
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sixty_cells import SEEDS, SWEEP_DAG
from typer.testing import CliRunner

from steptime.airflow.assets import extra_of_run
from steptime.cli import app
from steptime.durations import WEEK_S
from steptime.judging.comparison import compare_dag_run, compare_since, compare_sweep, finding_of_run
from steptime.judging.incident_updates import update_incidents
from steptime.judging.incidents import incidents
from steptime.judging.judgements import judge_all
from steptime.judging.verdicts import VERDICTS
from steptime.store.run_queries import Store

pytestmark = pytest.mark.slow

NEWEST = "week-25"
"""The DAG run of the newest week."""


class Told(NamedTuple):
    """What people are told about a run's series."""

    verdict: str
    series_state: str


TOLD = Told._fields


def by_job(rows):
    return {row["job_name"]: Told(*(row[name] for name in TOLD)) for row in rows}


def rows_of(table):
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def with_a_run_above_its_limit(address, path):
    """Copy a half year in which nothing changes, and slow one run to just above its own limit.

    Among sixty cells the run is no discovery at a false discovery rate of 5 %.
    """
    shutil.copy(address.removeprefix("sqlite:///"), path)
    store = Store(f"sqlite:///{path}")
    usual = next(
        one
        for one in compare_since(store, 0).findings
        if one.series_state.state == "unchanged" and one.run.row["steady_step_time_s"]
    )
    against, job = usual.series_state.against, usual.run.job_name
    seconds = against.mean * (1 + 1.002 * against.bound())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET steady_step_time_s = ? WHERE job_name = ?", (seconds, job))
    judge_all(store)
    return store, job


def command(*argv):
    done = CliRunner().invoke(app, argv, catch_exceptions=False)
    assert done.exit_code in (0, 3)
    return done.stdout


def of_commands(jobs):
    """Return what the commands say of runs."""
    found = {}
    for options in (["--since", "7d"], ["--since", "60d"], ["--sweep", "weekly"]):
        compared = ["results", "compare", *options, "--format"]
        as_json = json.loads(command(*compared, "json"))
        found[f"compare {options}"] = by_job(as_json["cells"])
        found[f"compare {options} as CSV"] = by_job(csv.DictReader(io.StringIO(command(*compared, "csv"))))
    found["results"] = by_job(json.loads(command("results", "--format", "json"))["results"])
    found["results as CSV"] = by_job(csv.DictReader(io.StringIO(command("results", "--format", "csv"))))
    shown = [json.loads(command("results", "show", job, "--format", "json"))["result"] for job in jobs]
    found["show"] = by_job(shown)
    trends = [json.loads(command("results", "trend", job, "--format", "json"))["runs"] for job in jobs]
    found["trend"] = by_job(row for rows in trends for row in rows)
    return found


class Pages:
    """The answers of the pages' server."""

    def __init__(self, pages):
        self._pages = pages

    async def get(self, path):
        transport = httpx.ASGITransport(self._pages)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            response = await client.get(path)
        assert response.status_code == 200, response.text
        return response

    async def told(self, jobs, since):
        """Return what the pages say of runs."""
        found = {}
        of_dag_run = f"dag_id={SWEEP_DAG}&dag_run_id={NEWEST}"
        answer = (await self.get(f"/api/results?{of_dag_run}")).json()
        found["page of the DAG run"] = by_job(rows_of(answer))
        for name, query in (("every run", ""), ("the DAG run", of_dag_run)):
            text = (await self.get(f"/api/results.csv?{query}")).text
            found[f"CSV file of {name}"] = by_job(csv.DictReader(io.StringIO(text)))
        trends = [(await self.get(f"/api/trend/{quote(job)}")).json() for job in jobs]
        found["page Trend"] = by_job(row for trend in trends for row in rows_of(trend))
        found["page of a run"] = by_job(
            [(await self.get(f"/api/runs/{quote(job)}")).json()["run"] for job in jobs]
        )
        found |= told_by_answers("page", {
            "api/comparison": (await self.get(f"/api/comparison?since={since}")).json(),
            "api/series": (await self.get("/api/series")).json(),
        })  # fmt: skip
        report = (await self.get(f"/api/report.html?since={since}")).text
        frozen = json.loads(report.partition('id="frozen">')[2].partition("</script>")[0])["answers"]
        found |= told_by_answers("report", frozen)
        found["report: Trend"] = by_job(
            row
            for address, answer in frozen.items()
            if address.startswith("api/trend/")
            for row in rows_of(answer)
        )
        return found


def told_by_answers(where, answers):
    return {
        f"{where}: This week": by_job(rows_of(answers["api/comparison"])),
        f"{where}: list of series": by_job(answers["api/series"]["series"]),
    }


def told_by_mlflow(monkeypatch):
    """Return the tags of an export; the client, which is not in this environment, is a stand-in."""
    written = {}

    class Client:
        def __init__(self, _uri):
            pass

        def get_experiment_by_name(self, _name):
            return SimpleNamespace(experiment_id="1")

        def search_runs(self, *_, **__):
            return type("Page", (list,), {"token": None})()

        def create_run(self, _experiment, _at, _tags, name):
            return SimpleNamespace(info=SimpleNamespace(run_id=name))

        def log_batch(self, run_id, *, metrics, params, tags):
            written[run_id] = dict(tags)

        def set_terminated(self, *_):
            pass

    entities = {
        "Metric": lambda *values: values,
        "Param": lambda *values: values,
        "RunTag": lambda *values: values,
    }
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(**entities))
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", SimpleNamespace(MlflowException=OSError))
    command("results", "mlflow", "--tracking-uri", "http://mlflow", "--since", "7d")
    return {job: Told(*(of_run[f"steptime.{name}"] for name in TOLD)) for job, of_run in written.items()}


def told_to_prometheus(names):
    """Return what the metrics say of each cell, by its newest job; `names` has the cells of the jobs."""
    ones = {"steptime_verdict": "verdict", "steptime_series_state": "series_state"}
    cells = {}
    for family in text_string_to_metric_families(command("results", "metrics")):
        for sample in family.samples:
            if sample.name in ones and sample.value == 1:
                label = ones[sample.name]
                cells.setdefault(sample.labels["cell"], {})[label] = sample.labels[label]
    jobs = {cell: job for job, cell in names.items()}
    return {jobs[cell]: Told(**told) for cell, told in cells.items()}


def is_open(told):
    return told.verdict == "unchanged" and told.series_state == "suspected"


def of_comparison(compared):
    return {one.run.job_name: Told(one.verdict, one.series_state.state) for one in compared.findings}


@pytest.mark.parametrize("planted", [True, False])
async def test_no_two_of_them_contradict_each_other(
    sixty_cells,
    pages,
    auth_manager,
    tmp_path,
    monkeypatch,
    planted,
):
    stores, now = sixty_cells(SEEDS[0]), time.time()
    auth_manager.readable |= {SWEEP_DAG}
    store, borderline = Store(stores.planted), None
    if not planted:
        store, borderline = with_a_run_above_its_limit(stores.unchanged, tmp_path / "borderline.db")
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    update_incidents(store, now=now)
    week = compare_since(store, now - WEEK_S)
    expected = of_comparison(week)
    assert len(expected) == 60
    # The worst, the ones not reported, and the last: each takes a command and three requests of its own.
    some = {*[*expected][:4], *[*expected][-1:], *(job for job, told in expected.items() if is_open(told))}

    found = of_commands(some)
    found |= await Pages(pages).told(some, now - WEEK_S)
    found["MLflow"] = told_by_mlflow(monkeypatch)
    found["OpenMetrics"] = told_to_prometheus(
        {one.run.job_name: name for name, one in zip(week.names, week.findings, strict=True)}
    )
    found["comparison of the DAG run"] = of_comparison(compare_dag_run(store, SWEEP_DAG, NEWEST))
    found["comparison of the sweep"] = of_comparison(compare_sweep(store, "weekly"))
    rows = [store.run(job) for job in expected]
    found["asset events"] = by_job(extra_of_run(row, finding_of_run(store, row)) for row in rows)

    every_run = found["results"]
    assert {job: every_run[job] for job in expected} == expected
    for where, told in found.items():
        assert some <= told.keys(), where
        assert told == {job: every_run[job] for job in told}, where

    states = {cell.job_name: cell.state for one in incidents(store) for cell in one.cells}
    reported = {job for job, told in expected.items() if told.verdict in ("slower", "faster")}
    assert reported <= states.keys(), "each has an incident"
    decided = {job: state for job, state in states.items() if state in ("suspected", "confirmed")}
    assert decided == {job: expected[job].series_state for job in decided}
    counts = Counter(told.verdict for told in expected.values())
    sentence = f"60 cells: {', '.join(f'{counts[word]} {word}' for word in VERDICTS[:3])}"
    assert all(text.startswith(sentence) for text in (week.sentence, command("results", "compare")))
    if borderline is not None:
        assert expected[borderline] == Told("unchanged", "suspected")
        assert borderline not in states
        assert "may be chance among the cells that ran then" in " ".join(
            command("results", "show", borderline).split()
        )
