"""What the pages' server gives to whom: nothing without a login, nothing of DAGs that a user may not read."""

import csv
import io
import json
import re
import shutil
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import stored
from airflow.api_fastapi.core_api.security import get_user
from fastapi.routing import APIRoute

from steptime.airflow.plugin import PREFIX, SteptimePlugin, _serve
from steptime.airflow_addresses import RUN_ROUTE
from steptime.judging.incident_updates import update_incidents
from steptime.judging.incidents import find_incident
from steptime.judging.run_findings import RUN_VERDICT_COLUMNS
from steptime.judging.series import Series
from steptime.judging.trend import trend
from steptime.pages.server import endpoints
from steptime.recipes.models import Mode
from steptime.store import incident_queries
from steptime.store.database import write_transaction
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store
from steptime.wording import date

JOB = "pretrain_llama3.1_tiny_fp32_2-1a2b3c4d"


@pytest.fixture
def secret(make_result):
    """Return the provenance of a run of a DAG that the user may not read."""
    return make_result("x").submitted.provenance.model_copy(update={"dag_id": "secret"})


async def get(app, path, **options):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://airflow") as client:
        return await client.get(path, **options)


async def post(app, path, **options):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://airflow") as client:
        return await client.post(path, **options)


async def rows(app, **query):
    response = await get(app, "/api/results", params=query)
    assert response.status_code == 200
    table = response.json()
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


async def test_every_route_refuses_anonymous_requests(pages, publish):
    publish(JOB)
    del pages.dependency_overrides[get_user]
    paths = [route.path for route in pages.routes if isinstance(route, APIRoute)]
    assert len(paths) == len(pages.routes), "a mount or a plain route, as /docs, knows no dependencies"
    assert set(paths) == {
        "/",
        "/static/{path:path}",
        "/api/accept",
        "/api/columns",
        "/api/compare",
        "/api/comparison",
        "/api/differences",
        "/api/incidents",
        "/api/incidents/{incident_id}",
        "/api/metrics",
        "/api/node",
        "/api/nodes",
        "/api/pairs",
        "/api/plan",
        "/api/report.html",
        "/api/results",
        "/api/results.csv",
        "/api/runs/{job_name:path}",
        "/api/scaling",
        "/api/series",
        "/api/trend/{job_name:path}",
        "/api/trial",
        "/api/trial.csv",
        "/api/trials",
    }
    for path in paths:
        for value in ("main.js", "vendor/chart.umd.min.js", JOB, "nothing"):
            ask = post if path in ("/api/accept", "/api/incidents/{incident_id}") else get
            named = value if ":path" in path else value.replace("/", "-")
            response = await ask(pages, re.sub("{.*}", named, path))
            assert response.status_code == 401, path
            assert JOB not in response.text


@pytest.mark.parametrize("credentials", [{"Authorization": "Bearer forged"}, {"Cookie": "_token=forged"}])
async def test_forged_tokens_are_refused(pages, credentials, monkeypatch):
    from airflow.api_fastapi.app import create_auth_manager, get_auth_manager, purge_cached_app
    from airflow.api_fastapi.core_api import security

    del pages.dependency_overrides[get_user]
    create_auth_manager()  # the real one checks tokens
    monkeypatch.setattr(security, "get_auth_manager", get_auth_manager)
    try:
        response = await get(pages, "/api/results", headers=credentials)
    finally:
        purge_cached_app()
    assert response.status_code in (401, 403)


async def test_the_plugin_serves_the_same_refusal():
    assert (await get(_serve, "/static/main.js")).status_code == 401


async def test_runs_of_dags_that_a_user_may_not_read_are_left_out(pages, publish, secret, auth_manager):
    outside = secret.model_copy(update={"dag_id": None, "dag_run_id": None, "task_id": None})
    publish("of-this-dag")
    publish("of-another-dag", provenance=secret)
    publish("of-no-dag", provenance=outside)
    assert {row["job_name"] for row in await rows(pages)} == {"of-this-dag", "of-no-dag"}
    assert await rows(pages, dag_id="secret") == []
    # Users who may not see a run learn nothing of it, not even that it exists.
    hidden, missing = [await get(pages, f"/api/runs/{name}") for name in ("of-another-dag", "no-such-run")]
    assert (hidden.status_code, missing.status_code) == (404, 404)
    assert hidden.text.replace("of-another-dag", "no-such-run") == missing.text
    auth_manager.readable = {"secret"}
    assert {row["job_name"] for row in await rows(pages)} == {"of-another-dag", "of-no-dag"}


async def test_the_tab_of_a_dag_run_has_its_runs_alone(
    pages,
    store,
    publish,
    make_result,
    auth_manager,
):
    of_sweep = {"dag_id": "steptime_sweep", "dag_run_id": "manual__1"}
    auth_manager.readable |= {"steptime_sweep"}
    cell = make_result("x").submitted.provenance.model_copy(update=of_sweep)
    publish("a-cell", provenance=cell)
    publish("another-run", gpus=4)
    (row,) = await rows(pages, **of_sweep)
    assert row.items() >= store.run("a-cell").items()
    answer = (await get(pages, "/api/results", params=of_sweep)).json()
    assert answer["choices"]["gpus"] == [2], "what would select nothing is not offered"
    assert (answer["matching"], answer["all"]) == (1, 1)
    auth_manager.readable = set()
    assert await rows(pages, **of_sweep) == []


@pytest.mark.long
async def test_the_runs_of_a_dag_run_have_the_verdicts_of_their_cells_then(pages, store, make_result):
    for week in range(8):
        times = [1.3 if week == 6 else 1.0] * 20
        for gpus in (1, 2):
            stored.publish(
                store,
                make_result(
                    f"{gpus}-{week}",
                    gpus=gpus,
                    step_times=times if gpus == 2 else None,
                    submitted_at=1.78e9 + week,
                    dag_run_id=f"week-{week}",
                ),
            )
    bad = Verdict(checks=(Check(name="x", passed=False, message="It did not."),))
    stored.publish(store, make_result("bad", verdict=bad, submitted_at=1.78e9, dag_run_id="week-6"))

    answer = (
        await get(pages, "/api/results", params={"dag_id": "steptime_llama3.1-25.04", "dag_run_id": "week-6"})
    ).json()

    shown = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
    assert {row["job_name"]: (row["verdict"], row["series_state"]) for row in shown} == {
        "1-6": ("unchanged", "unchanged"),
        "2-6": ("slower", "suspected"),
        "bad": (None, None),
    }, "the run a week later changed nothing of what was found then"
    compared = answer["comparison"]
    assert compared["sentence"].startswith("2 cells: 1 slower, 0 faster, 1 unchanged; worst tiny·fp32·2 +30")
    assert compared["took"].startswith("2 cells · 3 runs, 1 rejected · ")
    (remark,) = compared["remarks"]
    assert re.match("tiny·fp32·2: slower by 30.0 % since [-0-9]{10}, suspected; ", remark)
    assert (answer["matching"], answer["all"]) == (3, 3), "rejected ones count"
    assert answer["columns"][-6:] == [column.name for column in RUN_VERDICT_COLUMNS]
    for names_none in ({}, {"dag_id": "steptime_llama3.1-25.04"}, {"dag_run_id": "week-6"}):
        assert "comparison" not in (await get(pages, "/api/results", params=names_none)).json()
    may_accept = {
        name: (await get(pages, f"/api/runs/{name}")).json()["may_accept"] for name in ("2-6", "bad")
    }
    assert may_accept == {"2-6": True, "bad": False}


async def test_the_columns_are_those_of_the_rows(pages, publish):
    publish("one", gpus=1)
    answer = (await get(pages, "/api/columns")).json()
    for table, path in (("comparison", "/api/comparison?since=0"), ("trend", "/api/trend/one")):
        names = [column["name"] for column in answer[table]]
        found = (await get(pages, path)).json()
        assert [*found["columns"], *found.get("series", ())] == names
    declared = answer["columns"]
    (row,) = await rows(pages)
    assert [column["name"] for column in declared] == list(row)
    assert {"name": "gpu_hours", "heading": "GPU-hours", "kind": "number"}.items() <= next(
        column.items() for column in declared if column["name"] == "gpu_hours"
    )


@pytest.mark.long
async def test_filters_go_over_all_runs_and_the_newest_are_given(pages, publish):
    for number in range(3):
        of_row = {"gpus": 2} if number else {"gpus": 1, "size": "small"}
        publish(f"run-{number}", submitted_at=1.79e9 + number, **of_row)
    (newest,) = await rows(pages, limit="1")
    assert newest["job_name"] == "run-2"
    answer = (await get(pages, "/api/results", params={"limit": "1", "gpus": "2"})).json()
    assert (answer["matching"], answer["all"]) == (2, 3)
    assert answer["choices"]["gpus"] == [1, 2]
    answers = [(await get(pages, f"/api/results?limit={limit}")).json() for limit in (1, 3)]
    assert [(len(one["rows"]), one["matching"], one["all"]) for one in answers] == [(1, 3, 3), (3, 3, 3)]
    searched = (await get(pages, "/api/results", params={"limit": "1", "search": "run-"})).json()
    assert searched["matching"] == 3
    since = (await get(pages, "/api/results", params={"limit": "1", "since": str(1.79e9 + 1)})).json()
    assert since["matching"] == 2
    (oldest,) = await rows(pages, limit="1", gpus="1", size="small")
    assert oldest["job_name"] == "run-0"
    assert {row["job_name"] for row in await rows(pages, search="LLAMA3.1 un-1")} == {"run-1"}
    assert await rows(pages, search="steptime_llama3.1-25.04 100%") == []
    assert await rows(pages, node="nowhere") == await rows(pages, variable="NCCL_ALGO=Ring") == []


async def test_a_filter_that_no_column_can_have_is_refused(pages):
    for text in ("many", "9" * 23):
        response = await get(pages, "/api/results", params={"gpus": text})
        told = f"'{text}' is not a value of gpus: write a number of at most 9 digits"
        assert (response.status_code, response.json()["detail"]) == (422, told)
    response = await get(pages, "/api/results", params={"search": "a " * 3000})
    assert response.status_code == 422


@pytest.mark.long
@pytest.mark.usefixtures("sweep")
async def test_the_runs_of_one_dag_run_scale(pages):
    answer = (await get(pages, "/api/scaling")).json()
    names = answer["columns"]
    assert [dict(zip(names, row, strict=True))["job_name"] for row in answer["rows"]] == [
        "run-1",
        "run-2",
        "run-4",
    ]
    assert answer["together"] == answer["known"][0]["together"]
    other = (await get(pages, "/api/scaling", params={"together": "steptime_llama3.1-25.04/old"})).json()
    assert (other["together"], other["known"]) == ("steptime_llama3.1-25.04/old", answer["known"])
    assert [dict(zip(names, row, strict=True))["job_name"] for row in other["rows"]] == ["older"]


async def test_nothing_scales_in_an_empty_store(pages):
    answer = (await get(pages, "/api/scaling")).json()
    assert (answer["known"], answer["together"], answer["rows"]) == ([], None, [])
    assert answer["columns"]


async def csv_rows(app, **query):
    response = await get(app, "/api/results.csv", params=query)
    assert response.status_code == 200
    return list(csv.DictReader(io.StringIO(response.text, newline="")))


async def test_a_file_of_results_has_what_the_page_shows_of_them(pages, publish, secret, auth_manager):
    publish("hidden", provenance=secret)
    bad = Verdict(checks=(Check(name="x", passed=False, message='Expected "20, 21",\nbut found 3.'),))
    publish("bad", verdict=bad)
    publish("large", gpus=4)
    publish("small", gpus=1)

    for query in (
        {},
        {"gpus": "4"},
        {"search": "bad"},
        {"dag_id": "steptime_llama3.1-25.04", "dag_run_id": "manual__2026-11-21"},
    ):
        shown = await rows(pages, **query)
        found = await csv_rows(pages, **query)
        assert [row["job_name"] for row in found] == [row["job_name"] for row in shown]
        for row, other in zip(found, shown, strict=True):
            assert row["reason"] == (other["reason"] or "")
            assert row["tokens_per_s"] == (
                "" if other["tokens_per_s"] is None else str(other["tokens_per_s"])
            )
            submitted = datetime.fromisoformat(row["submitted_at"]).timestamp()
            assert submitted == pytest.approx(other["submitted_at"], abs=1e-3)
    response = await get(pages, "/api/results.csv")
    assert response.headers["Content-Disposition"] == 'attachment; filename="steptime-results.csv"'
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    auth_manager.readable = {"secret"}
    assert [row["job_name"] for row in await csv_rows(pages)] == ["hidden"]
    assert await csv_rows(pages, gpus="4") == []


async def test_what_a_user_may_not_read_counts_nowhere(pages, publish, secret):
    publish("hidden", gpus=64, provenance=secret, submitted_at=time.time() - 9)
    publish("seen", gpus=2, submitted_at=time.time() - 9)
    answer = (await get(pages, "/api/results")).json()
    assert (answer["matching"], answer["all"], answer["choices"]["gpus"]) == (1, 1, [2])
    answer = (await get(pages, "/api/comparison", params={"since": "0"})).json()
    assert answer["took"].startswith("1 cell · 1 run · ")
    assert answer["sentence"].startswith("1 cell: ")
    (known,) = (await get(pages, "/api/series")).json()["series"]
    assert known["job_name"] == "seen"
    hidden, missing = [await get(pages, f"/api/trend/{name}") for name in ("hidden", "no-such")]
    assert (hidden.status_code, missing.status_code) == (404, 404)
    assert hidden.text.replace("hidden", "no-such") == missing.text
    assert len((await get(pages, "/api/trend/seen")).json()["rows"]) == 1
    saved = await get(pages, "/api/report.html", params={"since": "0"})
    assert saved.headers["Content-Disposition"] == 'attachment; filename="steptime-report.html"'
    assert ('"seen"' in saved.text, '"hidden"' in saved.text) == (True, False)
    metrics = await get(pages, "/api/metrics")
    assert metrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert set(re.findall(r'cell="(.*?)"', metrics.text)) == {"tiny·fp32·2"}


async def test_a_profile_has_no_trend_and_no_level_to_accept(pages, publish):
    publish("profile", mode=Mode.PROFILE)
    response = await get(pages, "/api/trend/profile")
    assert (response.status_code, response.json()["detail"]) == (
        422,
        "runs in mode profile are not judged, so there is no trend to show",
    )
    assert (await get(pages, "/api/series")).json()["series"] == []
    answer = (await get(pages, "/api/runs/profile")).json()
    assert (answer["has_trend"], answer["may_accept"]) == (False, False)
    response = await post(pages, "/api/accept", json={"job_name": "profile", "note": "why"})
    assert (response.status_code, response.json()["detail"]) == (
        422,
        "run profile is not judged, so it cannot begin a new baseline: name a valid, judged run.",
    )


async def test_a_plan_has_its_runs_and_its_cost(pages, publish):
    asked = {"workload": "llama3.1", "cluster": "local", "size": "tiny", "gpus": "1,2", "repeats": "2"}
    answer = (await get(pages, "/api/plan", params=asked)).json()
    assert [one["gpus"] for one in answer["runs"]] == [1, 1, 2, 2]
    assert answer["sentence"].startswith("4 jobs, at most ")
    assert answer["sentence"].endswith(" GPU-hours on cluster 'local'. Nothing was submitted.")
    assert answer["refused"] is None
    elsewhere = (await get(pages, "/api/plan", params=asked | {"size": "70b", "gpus": "64"})).json()
    assert elsewhere["refused"].startswith("cluster 'local' has cpu, not h100")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus": "3"}, "3"),
        ({"color": "red"}, "color"),
        ({"environment": "A"}, "environment"),
    ],
)
async def test_a_plan_that_cannot_be_is_refused_in_the_planners_words(pages, store, options, sentence):
    asked = {"workload": "llama3.1", "cluster": "local", "size": "tiny"} | options
    response = await get(pages, "/api/plan", params=asked)
    assert response.status_code == 422
    assert sentence in response.json()["detail"]


async def test_a_trend_has_what_its_chart_is_drawn_with(pages, store, slower):
    answer = (await get(pages, f"/api/trend/{slower}")).json()
    assert (answer["label"], answer["may_accept"]) == ("tiny·fp32·2", True)
    began = date(store.run(slower)["submitted_at"])
    assert answer["since"] == f"Its level began with the run of {began}."
    assert answer["series"] == Series.from_row(store.run(slower)).key
    low, high, shows_published = answer["range"]
    assert 0.8 < low < 1.0
    assert 1.2 < high < 1.4
    assert shows_published is False
    assert answer["passes_until_s"] is None, "nothing is published for it"
    known = (await get(pages, "/api/series")).json()["series"]
    told = dict(zip(answer["columns"], answer["rows"][-1], strict=True))
    told = {column.name: told[column.name] for column in RUN_VERDICT_COLUMNS} | {"direction": "slower"}
    assert known == [answer["series"] | {"label": "tiny·fp32·2", "job_name": slower} | told]


def test_what_json_cannot_have_is_a_fault():
    with pytest.raises(ValueError, match="JSON"):
        endpoints.json_response({"seconds": float("nan")})


async def test_runs_that_a_user_may_not_read_are_no_history_of_those_that_he_may(
    pages, publish, secret, auth_manager
):
    for number in range(8):
        publish(f"hidden-{number}", provenance=secret, step_times=[1.0] * 20, submitted_at=1.79e9 + number)
    publish("seen", step_times=[2.0] * 20, submitted_at=1.79e9 + 10)
    answer = (await get(pages, "/api/comparison", params={"since": str(1.79e9)})).json()
    (row,) = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
    assert (row["verdict"], row["baseline_runs"]) == ("insufficient history", 0)
    auth_manager.readable.add("secret")
    answer = (await get(pages, "/api/comparison", params={"since": str(1.79e9)})).json()
    assert "1 slower" in answer["sentence"]


async def test_a_run_is_given_whole(pages, store, publish):
    publish(JOB, mode=Mode.CHECKPOINT_SAVE)
    response = await get(pages, f"/api/runs/{JOB}")
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    whole = response.json()
    assert whole["run"].items() >= store.run(JOB).items()
    assert whole["steps"] == store.steps(JOB)
    assert whole["checkpoints"] == store.checkpoints(JOB)
    assert whole["checks"] == store.checks(JOB)
    assert whole.items() >= store.parsed_log(JOB).items()
    assert {"content": whole["record"], "sha256": whole["record_sha256"]} == store.record(JOB)


async def test_two_runs_are_laid_beside_each_other(pages, publish, secret):
    publish("one", step_times=[1.0] * 20, environment={"OMP_NUM_THREADS": "2"})
    publish("another", step_times=[2.0] * 20)
    publish("hidden", provenance=secret)
    answer = (await get(pages, "/api/differences", params={"run": "one", "other": "ano"})).json()
    assert [answer[name]["job_name"] for name in ("run", "other")] == ["one", "another"]
    assert answer["step_times"] == [[[step, seconds] for step in range(20)] for seconds in (1.0, 2.0)]
    assert answer["made"] == [["OMP_NUM_THREADS", "2", "1"]]
    assert answer["apart"] == []
    for run, other in (("one", "hidden"), ("hidden", "one"), ("one", "no-such")):
        response = await get(pages, "/api/differences", params={"run": run, "other": other})
        assert response.status_code == 404
        assert response.json()["detail"].startswith("there is no run '")
        assert "secret" not in response.text


async def test_a_planned_run_can_be_repeated_by_the_command_given(pages, publish, make_result):
    from steptime.measure.repeating import make_request
    from steptime.recipes.planning import plan
    from steptime.recipes.request import PlanRequest

    (run,) = plan(PlanRequest(workload="llama3.1", gpus="2", checkpoint=False)).runs
    publish(JOB, run=run, request=make_request(run, {"gpus": "2"}))
    publish("no-recipe-plans-this", max_steps=17)
    first, second = [
        (await get(pages, f"/api/runs/{name}")).json()["repeat"] for name in (JOB, "no-recipe-plans-this")
    ]
    assert first["command"].startswith("steptime run llama3.1-25.04 --size tiny")
    assert second["command"] is None
    provenance = make_result("x").submitted.provenance
    assert first["made_with"]["commit"] == provenance.git_commit
    assert any(one.startswith(f"commit {provenance.git_commit} → ") for one in first["differs"])


async def test_the_source_of_a_runs_peak_is_answered_with_it(pages, publish, make_result):
    """The source is left out if the configuration now has another peak than the run was measured by."""
    from steptime.recipes.planning import plan
    from steptime.recipes.request import PlanRequest

    (run,) = plan(PlanRequest(workload="nemotron4-340b", gpu_type="gb300", gpus="128")).runs
    on_cpu = make_result("x").measurement
    assert on_cpu is not None
    measured = on_cpu.model_copy(update={"peak_tflops_per_gpu": 4900.0})
    publish(JOB, run=run, measurement=measured)
    publish("cpu")
    answer = (await get(pages, f"/api/runs/{JOB}")).json()
    assert answer["run"]["peak_tflops_per_gpu"] == 4900
    assert "NVL72 data sheet" in answer["peak_source"]
    assert (await get(pages, "/api/runs/cpu")).json()["peak_source"] is None


async def test_job_names_are_free_text(pages, publish):
    name = 'a/b?c="<script>" %2F#ü'
    publish(name)
    response = await get(pages, f"/api/runs/{quote(name, safe='')}")
    assert response.json()["run"]["job_name"] == name


async def test_failures_of_the_store_are_told(pages, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", "mysql://somewhere")
    for path in ("/api/results", "/api/results.csv"):
        response = await get(pages, path)
        assert response.status_code == 503
        assert "STEPTIME_STORE_URL" in response.json()["detail"]
        assert response.headers["Cache-Control"] == "no-store"
        assert "Content-Disposition" not in response.headers
    monkeypatch.setenv("STEPTIME_STORE_URL", "sqlite:////proc/no/such/folder/store.db")
    response = await get(pages, "/api/runs/some-run")
    assert response.status_code == 503
    assert "metrics store" in response.json()["detail"]


async def test_pages_allow_nothing_from_elsewhere(pages):
    for path in ("/", "/static/main.js", "/static/vendor/chart.umd.min.js", "/static/results.css"):
        response = await get(pages, path)
        assert response.status_code == 200
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        for rule in ("base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'"):
            assert rule in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-cache", "else a new release would not be seen"


def test_airflow_links_to_the_pages_from_its_menu_and_from_each_dag_run():
    menu, dag_run = SteptimePlugin.external_views
    icon = {"name": "Step times", "icon": "steptime/static/icon.svg"}
    assert menu == {**icon, "href": "steptime/", "destination": "nav", "url_route": "step-times"}
    address = "steptime/?dag_id={DAG_ID}&dag_run_id={RUN_ID}"
    assert dag_run == {**icon, "href": address, "destination": "dag_run", "url_route": RUN_ROUTE}


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "vendor/..%2f..%2fapp.py", "%2fetc%2fpasswd", "none.js"]
)
async def test_only_the_pages_own_files_are_served(pages, path):
    assert (await get(pages, f"/static/{path}")).status_code == 404


def test_the_views_are_below_the_address_that_airflow_has():
    (mounted,) = SteptimePlugin.fastapi_apps
    assert mounted["url_prefix"] == PREFIX
    assert {view["destination"] for view in SteptimePlugin.external_views} == {"nav", "dag_run"}
    for view in SteptimePlugin.external_views:
        # Relative, as Airflow may be served below a path.
        assert view["href"].startswith(f"{PREFIX.strip('/')}/")
        assert json.dumps(view)


@pytest.fixture(scope="module")
def nine_weeks(tmp_path_factory, make_result):
    path = tmp_path_factory.mktemp("nine-weeks") / "steptime.db"
    for week in range(9):
        steps = [1.2 if week > 6 else 1.0] * 20
        result = make_result(f"week-{week}", step_times=steps, submitted_at=1e9 + week)
        stored.write(Store(f"sqlite:///{path}"), result)
    return path


@pytest.fixture
def slower(nine_weeks, store):
    """Return the newest run of a series; it and the run before it are slower than the seven before."""
    path = Path(store.url.removeprefix("sqlite:///"))
    path.parent.mkdir(exist_ok=True)
    shutil.copy(nine_weeks, path)
    return "week-8"


def accepted(store, job_name):
    """Return why the level that begins with a run was accepted."""
    return {row["job_name"]: row["accepted"] for row in trend(store, Series.from_row(store.run(job_name)))}[
        job_name
    ]


async def test_a_level_is_accepted_by_who_may_edit_runs(pages, store, slower):
    update_incidents(store, now=1e9 + 9)
    answer = await post(
        pages,
        "/api/accept",
        content=json.dumps({"job_name": slower, "note": " a new driver "}).encode(),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )

    assert answer.json()["job_name"] == "week-7", "the first of the new level"
    assert accepted(store, "week-7") == "a new driver (somebody)"
    [closed] = (await get(pages, "/api/incidents?since=0")).json()["incidents"]
    assert closed["state"] == "accepted"


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"json": {"job_name": "week-8", "note": "  "}}, (422, "note")),
        ({"json": {"job_name": "week-8", "note": "x" * 501}}, (422, "note")),
        ({"json": {"job_name": "none", "note": "why"}}, (404, "there is no run 'none'")),
        ({"content": b'{"job_name": "week-8", "note": "why"}'}, (415, "send JSON")),
        (
            {
                "content": b'{"job_name": "week-8", "note": "why"}',
                "headers": {"Content-Type": "text/plain;application/json"},
            },
            (415, "send JSON"),
        ),
        (
            {
                "json": {"job_name": "week-8", "note": "why"},
                "headers": {"Sec-Fetch-Site": "cross-site"},
            },
            (403, "only pages of this Airflow"),
        ),
    ],
)
async def test_what_is_refused_changes_nothing(pages, store, slower, asked, refusal):
    answer = await post(pages, "/api/accept", **asked)

    status, why = refusal
    assert (answer.status_code, why in answer.text) == (status, True), answer.text
    assert accepted(store, slower) == accepted(store, "week-7") == ""


@pytest.mark.long
async def test_who_may_only_read_accepts_nothing(pages, store, slower, auth_manager):
    auth_manager.editable.clear()

    answer = await post(pages, "/api/accept", json={"job_name": slower, "note": "why"})

    assert answer.status_code == 403
    assert answer.json()["detail"] == "you may not edit runs of the DAG steptime_llama3.1-25.04"
    for answer in [await get(pages, f"/api/{of}/{slower}") for of in ("trend", "runs")]:
        assert answer.json()["may_accept"] is False
    auth_manager.readable.clear()
    assert (await post(pages, "/api/accept", json={"job_name": slower, "note": "why"})).status_code == 404
    assert accepted(store, "week-7") == ""


@pytest.fixture
def incident_id(slower, store):
    """Return the incident of that series."""
    [found] = update_incidents(store, now=1e9 + 9)
    assert found.id is not None
    assert found.affected[0].job_name == slower
    return found.id


async def test_incidents_are_shown_with_their_cells_and_accept_a_note(pages, incident_id):
    [found] = (await get(pages, "/api/incidents?since=0")).json()["incidents"]
    assert found["title"].startswith("tiny·fp32·2 on local 20.0 % slower since ")
    assert (found["state"], found["may_edit"], len(found["recent"])) == ("open", True, 9)
    assert [cell["state"] for cell in found["cells"]] == ["suspected"]

    answer = await post(pages, f"/api/incidents/{incident_id}", json={"note": "a bad switch"})
    assert answer.json()["state"] == "open"
    [found] = (await get(pages, "/api/incidents?since=0")).json()["incidents"]
    assert (found["note"], found["noted_by"]) == ("a bad switch", "somebody")


async def test_an_incident_is_accepted_with_the_level_of_its_cells(pages, store, incident_id):
    asked = {"note": "a new driver", "action": "accept"}
    assert (await post(pages, f"/api/incidents/{incident_id}", json=asked)).json()["state"] == "accepted"
    assert accepted(store, "week-7") == "a new driver (somebody)"
    again = await post(pages, f"/api/incidents/{incident_id}", json=asked)
    assert (again.status_code, again.json()["detail"]) == (
        422,
        f"incident {incident_id} is accepted: only an open or confirmed one can be accepted.",
    )


async def test_an_incident_is_silenced_until_a_day_and_counts_apart_until_then(pages, incident_id):
    path, until = f"/api/incidents/{incident_id}", time.time() + 90 * 86_400
    day = f"{datetime.fromtimestamp(until).astimezone():%Y-%m-%d}"
    asked = {"note": "ticket 4711", "action": "silence", "until": day}
    for wrong in ("2001-09-09", "0001-01-01", "tomorrow"):
        assert (await post(pages, path, json=asked | {"until": wrong})).status_code == 422
    assert (await post(pages, path, json=asked)).json()["state"] == "open"
    [found] = (await get(pages, "/api/incidents?since=0")).json()["incidents"]
    assert (found["silence"], found["note"]) == (f"silenced until {day} by somebody", "ticket 4711")
    compared = (await get(pages, "/api/comparison?since=0")).json()
    assert f"0 slower, 0 faster, 0 unchanged, 1 silenced until {day}" in compared["sentence"]

    ended = await post(pages, path, json={"note": "it is replaced", "action": "end silence"})
    assert ended.json()["state"] == "open"
    assert "1 slower" in (await get(pages, "/api/comparison?since=0")).json()["sentence"]
    again = await post(pages, path, json={"note": "once more", "action": "end silence"})
    assert (again.status_code, again.json()["detail"]) == (422, f"incident {incident_id} is not silenced.")


@pytest.mark.long
async def test_an_incident_is_changed_by_those_who_may_edit_its_runs_and_seen_by_those_who_may_read_them(
    pages, store, incident_id, auth_manager
):
    path, asked = f"/api/incidents/{incident_id}", {"note": "why", "action": "accept"}
    assert (await post(pages, path, json={"note": " "})).status_code == 422
    assert (await post(pages, path, json=asked, headers={"Sec-Fetch-Site": "same-site"})).status_code == 403
    auth_manager.editable.clear()
    assert (await post(pages, path, json=asked)).status_code == 403
    auth_manager.readable.clear()
    assert (await post(pages, path, json=asked)).status_code == 404
    assert (await get(pages, "/api/incidents?since=0")).json()["incidents"] == []
    assert accepted(store, "week-7") == ""


@pytest.mark.parametrize("action", ["note", "accept", "silence"])
async def test_an_incident_with_cells_that_a_user_may_not_see_is_not_changed_by_that_user(
    pages, store, incident_id, action
):
    """Accepting would also close it for users who see the other cells."""
    [cell] = find_incident(store, incident_id).cells
    cells = [cell.as_json, replace(cell, dag_id="hidden").as_json]
    with write_transaction(store.url) as connection:
        incident_queries.write(connection, incident_id, {"cells": cells})

    answer = await post(pages, f"/api/incidents/{incident_id}", json={"note": "why", "action": action})

    assert answer.status_code == 403
    [found] = (await get(pages, "/api/incidents?since=0")).json()["incidents"]
    assert (found["state"], found["note"], found["may_edit"]) == ("open", "", False)
    assert accepted(store, "week-7") == ""


async def test_a_run_has_its_verdict_in_a_sentence(pages, slower):
    answer = (await get(pages, f"/api/runs/{slower}")).json()
    assert answer["sentence"] == "1.2 s, 20.0 % slower than usual (1 s over 7 runs), suspected"
    assert (await get(pages, "/api/runs/week-2")).json()["sentence"].startswith("1 s, insufficient history")


async def test_runs_of_no_dag_are_accepted_on_the_command_line(pages, store, publish, make_result):
    outside = make_result("x").submitted.provenance.model_copy(update={"dag_id": None, "dag_run_id": None})
    publish("by hand", provenance=outside)

    answer = await post(pages, "/api/accept", json={"job_name": "by hand", "note": "why"})

    assert (answer.status_code, "steptime results accept" in answer.text) == (403, True)


async def test_two_sets_of_runs_are_compared(pages, publish, secret, auth_manager):
    publish("slow", step_times=[1.1] * 20, environment={"NCCL_ALGO": "Ring"})
    publish("fast", step_times=[1.0] * 20)
    hidden = secret.model_copy(update={"environment": {"NCCL_ALGO": "Ring"}})
    publish("hidden", step_times=[9.0] * 20, provenance=hidden)
    answer = (await get(pages, "/api/compare", params={"a": "NCCL_ALGO=", "b": "NCCL_ALGO=Ring;"})).json()
    [row] = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
    assert (row["a_job"], row["b_job"], row["b_runs"]) == ("fast", "slow", 1)
    assert row["difference_percent"] == pytest.approx(10)
    assert answer["choices"]["cluster"] == ["local"]
    assert "sentence" not in (await get(pages, "/api/compare", params={"a": "gpus=2"})).json()
    for query, complaint in (
        ({"a": "gpus=2", "b": "what"}, "'what' is no condition"),
        ({"a": "node=h1", "b": "gpus=2"}, "set A (node=h1) has no valid run"),
        ({"a": "gpus=2", "b": "gpus=2", "by": "speed"}, "by "),
        ({"a": "gpus=2", "b": "x" * 1001}, "b "),
    ):
        refused = await get(pages, "/api/compare", params=query)
        assert refused.status_code == 422
        assert complaint in refused.json()["detail"]
    auth_manager.readable = set()
    assert (await get(pages, "/api/compare", params={"a": "gpus=2", "b": "gpus=2"})).status_code == 422
