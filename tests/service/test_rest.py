import socket

import pytest

from steptime.errors import SystemFailure, UserError
from steptime.service import rest
from steptime.service.rest import AirflowClient, DagRun, LogLine, TaskInstance

from . import airflow_openapi

RUN = {"dag_id": "steptime_llama3.1-25.04", "dag_run_id": "r 1+2", "state": "running"}


@pytest.fixture
def client(api):
    with AirflowClient(api.url + "/", "ada", "secret") as client:
        yield client


def test_logs_in_anew_when_the_token_has_expired(api, client):
    tokens = iter(["old", "new"])
    api.answers["POST /auth/token"] = lambda _: (201, {"access_token": next(tokens)})
    api.answers["GET /api/v2/dags/steptime_llama3.1-25.04/dagRuns/r 1+2"] = lambda _: (
        (200, RUN) if api.requests[-1][2] == "Bearer new" else (401, {"detail": "expired"})
    )
    assert client.dag_run("steptime_llama3.1-25.04", "r 1+2").state == "running"


def test_a_lost_reply_does_not_trigger_twice(api, client):
    api.answers["GET /api/v2/dags/steptime_llama3.1-25.04"] = (
        200,
        {"dag_id": "steptime_llama3.1-25.04", "is_paused": False},
    )

    def stored_but_broken(body):
        api.answers[f"GET /api/v2/dags/steptime_llama3.1-25.04/dagRuns/{body['dag_run_id']}"] = (200, RUN)
        return 502, b"<html>"

    api.answers["POST /api/v2/dags/steptime_llama3.1-25.04/dagRuns"] = stored_but_broken
    assert client.trigger("steptime_llama3.1-25.04", {}).state == "running"
    assert len(api.asked("POST /api/v2/dags/steptime_llama3.1-25.04/dagRuns")) == 1


def test_a_dag_run_is_marked_again_if_airflows_database_was_locked(api, client, monkeypatch):
    monkeypatch.setattr(rest, "_MARKED_WITHIN_S", 300.0)  # long enough on a busy machine
    path = "PATCH /api/v2/dags/steptime_llama3.1-25.04/dagRuns/r 1+2"
    run = DagRun.model_validate(RUN)
    locked = (500, {"detail": {"reason": "Database error"}})
    api.answers[path] = lambda _: locked if len(api.asked(path)) < 3 else (200, RUN | {"state": "failed"})
    client.mark_failed(run)
    assert len(api.asked(path)) == 3
    monkeypatch.setattr(rest, "_MARKED_WITHIN_S", 0.5)
    api.answers[path] = locked
    with pytest.raises(SystemFailure, match="500"):
        client.mark_failed(run)


def test_a_new_workloads_dag_is_read_at_once(api, client):
    known = {"dag_id": "steptime_sweep", "is_paused": False, "file_token": "one.file"}
    api.answers["GET /api/v2/dags"] = (200, {"dags": [known], "total_entries": 1})

    def read(_):
        api.answers["GET /api/v2/dags/steptime_gpt5-26.01"] = (
            200,
            {**known, "dag_id": "steptime_gpt5-26.01"},
        )
        return 201, None

    api.answers["PUT /api/v2/parseDagFile/one.file"] = read
    api.answers["POST /api/v2/dags/steptime_gpt5-26.01/dagRuns"] = (200, RUN)
    assert client.trigger("steptime_gpt5-26.01", {}, patience_s=300).state == "running"


def test_who_may_not_ask_for_that_waits_for_airflows_next_time(api, client):
    known = {"dag_id": "steptime_sweep", "is_paused": False, "file_token": "one.file"}
    api.answers["GET /api/v2/dags"] = (200, {"dags": [known], "total_entries": 1})
    api.answers["PUT /api/v2/parseDagFile/one.file"] = (403, {"detail": "Forbidden"})
    api.answers["GET /api/v2/importErrors"] = (200, {"import_errors": [], "total_entries": 0})
    with pytest.raises(UserError, match="appears within five minutes"):
        client.trigger("steptime_gpt5-26.01", {}, patience_s=0.1)


def test_of_a_dag_that_airflow_lacks_it_is_said_when_it_appears(api, client):
    api.answers["GET /api/v2/importErrors"] = (200, {"import_errors": [], "total_entries": 0})
    with pytest.raises(UserError) as refused:
        client.trigger("llama32", {})
    assert str(refused.value) == (
        "Airflow has no DAG 'llama32'. The DAG of a new workload appears within five minutes, if its file is "
        "in the config/ that Airflow reads and a cluster there can run it"
    )


@pytest.mark.parametrize(
    "known",
    [(404, {"detail": "not found"}), (200, {"dag_id": "glm45", "is_paused": False, "is_stale": True})],
)
def test_of_a_dag_whose_file_airflow_could_not_read_the_reason_is_given(api, client, known):
    api.answers["GET /api/v2/dags/glm45"] = known
    broken = {
        "filename": "glm45.py",
        "timestamp": "2026-11-28T10:00:00Z",
        "stack_trace": "Traceback:\n  …\nBrokenFiles: glm.yaml, line 3: missing.",
    }
    api.answers["GET /api/v2/importErrors"] = (200, {"import_errors": [broken], "total_entries": 1})
    with pytest.raises(UserError) as refused:
        client.trigger("glm45", {})
    assert str(refused.value) == (
        "Airflow has no DAG 'glm45', and could not read glm45.py (BrokenFiles: glm.yaml, line 3: missing.): "
        "correct what this names; Airflow reads it again within five minutes, or at once when the DAG file "
        "is touched"
    )


def test_of_an_error_of_airflow_its_first_line_is_given_and_not_its_links(api, client):
    error = "airflow.sdk.exceptions.AirflowTaskTimeout: DagBag import timeout for /dags/glm45.py after 30.0s."
    broken = {
        "filename": "glm45.py",
        "timestamp": "2026-11-28T10:00:00Z",
        "stack_trace": "Traceback (most recent call last):\n"
        '  File "/dags/glm45.py", line 3, in <module>\n    from steptime.airflow.dags import make_dags\n'
        f"{error}\nPlease take a look at these docs to improve your DAG import time:\n"
        "* https://airflow.apache.org/best-practices.html#reducing-dag-complexity, PID: 563\n",
    }
    api.answers["GET /api/v2/importErrors"] = (200, {"import_errors": [broken], "total_entries": 1})
    assert client.import_errors() == {"glm45.py": error}


@pytest.mark.long
def test_a_dag_that_airflow_has_not_read_yet_is_waited_for(api, client):
    api.answers["GET /api/v2/dags"] = (200, {"dags": [], "total_entries": 0})
    looks = iter(
        [(404, {"detail": "not found"}), (200, {"dag_id": "steptime_llama3.1-25.04", "is_paused": False})]
    )
    api.answers["GET /api/v2/dags/steptime_llama3.1-25.04"] = lambda _: next(looks)
    api.answers["POST /api/v2/dags/steptime_llama3.1-25.04/dagRuns"] = lambda body: (200, {**RUN, **body})
    assert client.trigger("steptime_llama3.1-25.04", {}, patience_s=60).dag_id == "steptime_llama3.1-25.04"


def test_a_paused_dag_is_not_triggered(api, client):
    api.answers["GET /api/v2/dags/steptime_llama3.1-25.04"] = (
        200,
        {"dag_id": "steptime_llama3.1-25.04", "is_paused": True},
    )
    with pytest.raises(UserError, match=r"'steptime_llama3.1-25.04' is paused: unpause it at http://"):
        client.trigger("steptime_llama3.1-25.04", {})


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (
            (400, {"detail": "param n: 0 is too small\n\nschema: …"}),
            UserError,
            "refuses GET .*: param n: 0 is too small$",
        ),
        (
            (422, {"detail": [{"loc": ["body", "x"], "msg": "Field required"}]}),
            UserError,
            "body.x: Field required$",
        ),
        ((403, {"detail": "Forbidden"}), UserError, "refuses GET .*: Forbidden$"),
        ((404, {"detail": "no such run"}), UserError, "no such run$"),
        ((500, {"detail": "locked"}), SystemFailure, "500 Internal Server Error, locked$"),
        ((502, b"<html>"), SystemFailure, "502 Bad Gateway$"),
        ((200, b"<html>"), SystemFailure, r"without JSON \(is this an Airflow\?\)"),
    ],
    ids=["validation", "422", "forbidden", "missing", "server error", "proxy error", "no Airflow"],
)
def test_errors_are_one_sentence(api, client, answer, error, sentence):
    api.answers["GET /api/v2/dags/steptime_llama3.1-25.04/dagRuns/r1"] = answer
    with pytest.raises(error, match=sentence):
        client.dag_run("steptime_llama3.1-25.04", "r1")


def test_nobody_there():
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with (
            AirflowClient(url, "ada", "x") as client,
            pytest.raises(SystemFailure, match=f"no Airflow answers at {url}"),
        ):
            client.health()


def test_a_proxy_is_not_asked_for_this_machine(api, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    api.answers["GET /api/v2/monitor/health"] = (200, {"metadatabase": {"status": "healthy"}})
    with AirflowClient(api.url, "ada", "x") as client:
        assert client.health().all_healthy


def test_health_with_heartbeats(api, client):
    api.answers["GET /api/v2/monitor/health"] = (
        200,
        {
            "metadatabase": {"status": "healthy"},
            "scheduler": {"status": "healthy", "latest_scheduler_heartbeat": "2026-11-21T00:00:10+00:00"},
            "triggerer": {"status": None, "latest_triggerer_heartbeat": None},
        },
    )
    health = client.health()
    assert health.components["triggerer"] == "never started"
    assert not health.all_healthy
    beat = health.heartbeats["scheduler"]
    assert health.is_healthy("scheduler", since=beat)
    assert not health.is_healthy("scheduler", since=beat + 1), "a heartbeat from before"
    assert health.is_healthy("metadatabase", since=beat + 1)


def test_the_log_is_that_of_the_latest_try(api, client):
    task = TaskInstance(task_id="wait", state="failed", map_index=3, try_number=2)
    logs = "GET /api/v2/dags/steptime_llama3.1-25.04/dagRuns/r1/taskInstances/wait/logs"
    api.answers[f"{logs}/1"] = (200, {"content": [{"event": "the first try"}]})
    api.answers[f"{logs}/2"] = (200, {"content": [{"event": "the second try"}]})
    assert [line.event for line in client.log("steptime_llama3.1-25.04", "r1", task)] == ["the second try"]


def test_an_address_with_a_login_is_refused_without_showing_it():
    with pytest.raises(UserError, match=r"the address of airflow.example contains a user name") as refused:
        AirflowClient("http://ada:hush@airflow.example:8080", "ada", "x")
    assert "hush" not in str(refused.value)


def test_log_lines_tell_errors_and_whose_they_are():
    line = {
        "event": "Task failed with exception",
        "level": "error",
        "logger": "task",
        "error_detail": [
            {"exc_type": "AirflowException", "exc_value": "job x failed", "frames": []},
            {"exc_type": "SystemFailure", "exc_value": "the cause", "frames": []},
        ],
    }
    assert LogLine.model_validate(line).error == "job x failed"
    assert LogLine(event="lost", level="error").error == "lost"
    assert LogLine(event="Task exited", level="error").error is None, "the line before says why"
    assert LogLine(event="step 3", level="info", logger="steptime.airflow.triggers.TrainingTrigger").is_ours
    assert LogLine(event="step 3", level="info").error is None
    assert not LogLine(event="Filling up the DagBag", logger="airflow.dag_processing").is_ours


DAG = {"dag_id": "llama31", "is_paused": False}


@pytest.fixture
def is_another(monkeypatch):
    """Let what answers not be an Airflow."""
    monkeypatch.setattr(airflow_openapi, "check", lambda *_: None)


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"[]"),
        (200, b"{}"),
        (200, b"null"),
        (200, b'"text"'),
        (200, b'{"dag_id": 5, "dag_run_id": null, "state": []}'),
        (204, b""),
        (302, b""),
        (404, b"<html>default backend - 404</html>"),
        (403, b"<html>blocked</html>"),
        (200, b"<html>log in</html>"),
        (200, b'{"dag_id": "llama'),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("is_another")
def test_an_answer_that_is_not_airflows_is_believed_by_nobody(api, client, answer):
    run = "GET /api/v2/dags/llama31/dagRuns/r 1+2"
    api.answers |= {run: answer, f"{run}/taskInstances": answer, "GET /api/v2/dags": answer}
    api.answers["GET /api/v2/importErrors"] = answer
    task = TaskInstance(task_id="a", map_index=-1, state=None, try_number=1)
    api.answers[f"{run}/taskInstances/a/logs/1"] = answer
    for ask in (
        lambda: client.dag_run("llama31", "r 1+2"),
        lambda: client.dag_run_if_any("llama31", "r 1+2"),
        lambda: client.task_instances("llama31", "r 1+2"),
        lambda: client.log("llama31", "r 1+2", task),
        lambda: client.find_dag_run("r 1+2", tag="x"),
        client.dags,
        client.import_errors,
    ):
        with pytest.raises(SystemFailure):
            ask()


@pytest.mark.parametrize(
    "answer",
    [(200, []), (200, {"a": None}), (200, {"a": {}}), (200, {"a": {"status": 5, "latest_a_heartbeat": "x"}})],
)
@pytest.mark.usefixtures("is_another")
def test_health_of_another_form(api, client, answer):
    api.answers["GET /api/v2/monitor/health"] = (200, answer)
    with pytest.raises(SystemFailure, match="is not Airflow's API"):
        client.health()


@pytest.mark.parametrize("token", [(200, b"{}"), (200, b"[]"), (401, b"<html>"), (200, b'{"token": "x"}')])
def test_a_login_page_of_a_proxy_is_no_refused_password(api, client, token):
    api.answers["POST /auth/token"] = token
    with pytest.raises(SystemFailure):
        client.dags()


HEALTHY = {"metadatabase": {"status": "healthy"}}
REFUSED = (401, {"detail": "Invalid credentials"})


@pytest.mark.parametrize("status", ["unhealthy", None])
def test_a_login_that_fails_with_the_database_is_no_refused_password(api, client, status):
    api.answers["POST /auth/token"] = REFUSED
    api.answers["GET /api/v2/monitor/health"] = (200, {"metadatabase": {"status": status}})
    told = "can log nobody in, as its database is (unhealthy|never started)$"
    with pytest.raises(SystemFailure, match=told):
        client.dags()
    assert len(api.asked("POST /auth/token")) == 1


def test_a_login_is_tried_once_more_when_the_database_is_healthy(api, client):
    answers = iter([REFUSED, (201, {"access_token": "first"})])
    api.answers["POST /auth/token"] = lambda _: next(answers)
    api.answers["GET /api/v2/monitor/health"] = (200, HEALTHY)
    api.answers["GET /api/v2/dags"] = (200, {"dags": [], "total_entries": 0})
    assert client.dags() == []


def test_a_password_that_is_refused_beside_a_healthy_database_is_the_users_error(api, client):
    api.answers["POST /auth/token"] = REFUSED
    api.answers["GET /api/v2/monitor/health"] = (200, HEALTHY)
    with pytest.raises(UserError, match="refuses the password of 'ada'"):
        client.dags()
    assert len(api.asked("POST /auth/token")) == 2


@pytest.mark.parametrize(
    "lookup", [(401, {"detail": "expired"}), (403, {"detail": "no"}), (422, {"detail": "no"})]
)
@pytest.mark.parametrize("posted", [(502, b"<html>"), (200, b"[]"), (204, b""), (200, b"{"), (302, b"")])
@pytest.mark.usefixtures("is_another")
def test_after_a_trigger_that_may_have_taken_effect_nothing_is_the_users_error(api, client, posted, lookup):
    api.answers["GET /api/v2/dags/llama31"] = (200, DAG)

    def stored(body):
        api.answers[f"GET /api/v2/dags/llama31/dagRuns/{body['dag_run_id']}"] = lookup
        return posted

    api.answers["POST /api/v2/dags/llama31/dagRuns"] = stored
    with pytest.raises(SystemFailure, match="did not say whether it started the DAG run steptime_run__"):
        client.trigger("llama31", {})


@pytest.mark.usefixtures("is_another")
def test_pages_without_end_are_given_up(api, client, monkeypatch):
    monkeypatch.setattr(rest, "_MOST_PAGES", 3)
    api.answers["GET /api/v2/dags"] = (200, {"dags": [DAG], "total_entries": 10**9})
    with pytest.raises(SystemFailure, match="more than 3 entries"):
        client.dags()
