"""Two Airflows on one cluster folder and account with equal DAG run ids, and data of older installations."""

import asyncio
import re
from contextlib import contextmanager
from threading import Barrier

import pytest
import stored
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from steptime.airflow import installation
from steptime.clusters.base import Installation, JobState
from steptime.errors import SystemFailure
from steptime.store.run_models import Submission
from steptime.store.run_queries import Store

from .conftest import (
    Variables,
    names_of,
    state_of,
    submit_task,
    submitted_job,
    task_of,
    trigger_of,
    wait_task,
)


@pytest.fixture
def submit(a_run, staged):
    """Return a function that makes one try of `submit` in a context, for a run that never ends."""

    def try_once(context):
        task = submit_task(a_run(STAND_IN="hang"), staged)
        return Submission.model_validate(submitted_job(task.execute(context)))

    return try_once


@pytest.fixture
def other(make_context, monkeypatch):
    """Return a context manager that acts as another Airflow and yields a context of the same task there."""

    @contextmanager
    def there():
        with monkeypatch.context() as patched:
            patched.setattr(installation, "Variable", Variables())
            patched.setenv("AIRFLOW__API__BASE_URL", "http://staging.example")
            yield make_context()

    return there


def test_an_installation_has_the_address_of_its_airflow_and_the_id_that_was_there_first(
    variables, monkeypatch
):
    """Two tasks that create the id at the same time end up with the same one."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow.example/")
    made = installation.this_installation()
    assert (made.address, [*variables.kept.values()]) == (
        "http://airflow.example",
        ["http://airflow.example"],
    )
    variables.kept |= {f"{installation.KEY_PREFIX}{name}": "" for name in ("0", "z")} | {"another": ""}
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")

    assert installation.this_installation() == Installation(id="0", address="an Airflow without base_url")


@pytest.mark.long
def test_in_a_copy_of_the_database_the_jobs_of_the_first_are_left_alone(
    submit,
    make_context,
    other,
    airflow_says,
    cluster,
    capsys,
):
    """A staging Airflow made from production's backup, with the same metrics store, ends none of its jobs."""
    ours = submit(make_context())
    handed_on = ours.model_dump(mode="json")
    assert ours.job.installation is not None
    trigger = trigger_of(handed_on, make_context())
    with other() as there:
        task_of("performance.end").execute(there)
        with pytest.raises(AirflowFailException, match="no job was submitted for this run"):
            wait_task(handed_on).execute(there)
        airflow_says("failed")
        trigger.task_instance = there["ti"]
        asyncio.run(trigger.on_kill())
        told = rf"{ours.job.name}' .* belongs to another Airflow with steptime, .*{ours.job.installation.id}"
        assert re.search(rf"is not ended: job '{told}", capsys.readouterr().out)
        theirs = submit(there)
        assert theirs.job.name != ours.job.name
        assert theirs.job.directory != ours.job.directory
        task_of("performance.end").execute(there)
        assert state_of(cluster, theirs.job.name) is JobState.CANCELLED
    assert state_of(cluster, ours.job.name).is_live
    assert submit(make_context()).job == ours.job


@pytest.mark.usefixtures("home")
def test_a_dag_run_is_not_judged_by_the_result_of_another_installation_that_shares_the_store(
    planned, make_context, make_result
):
    context = make_context()
    report = task_of("report", plan=names_of(planned()))

    def publish(name, whose):
        result = make_result(name, gpus=1, dag_run_id=context["ti"].run_id)
        job = result.job.model_copy(update={"installation": whose})
        store = Store()
        stored.write(store, make_result(name, gpus=1, dag_run_id=context["ti"].run_id, job=job))

    publish("theirs", Installation(id="f00", address="http://production.example"))
    with pytest.raises(AirflowFailException, match="1 of 1 planned runs have no valid result"):
        report.execute(context)
    publish("ours", installation.this_installation())
    report.execute(context)


def test_tasks_that_begin_at_once_on_a_new_installation_never_take_each_other_for_another_ones(
    variables, monkeypatch
):
    """Both tasks look for an id before either has created one."""
    looked = Barrier(2, timeout=60)
    keys, met = variables.keys, []

    def keys_at_once(prefix):
        known = keys(prefix)
        if len(met) < 2:
            met.append(known)
            looked.wait()
        return known

    monkeypatch.setattr(variables, "keys", keys_at_once)

    async def begin():
        return await asyncio.gather(*(asyncio.to_thread(installation.this_installation) for _ in range(2)))

    begun = asyncio.run(begin())

    assert met == [[], []]
    assert all(installation.is_this(installation_id) for installation_id in begun)
    later = installation.this_installation()
    assert later.id == min(key.removeprefix(installation.KEY_PREFIX) for key in variables.kept)
    assert len(variables.kept) == 2


def test_an_airflow_that_does_not_answer_is_given_no_second_id(variables, monkeypatch):
    def no_answer(prefix):
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"prefix": prefix}))

    first = installation.this_installation()
    with monkeypatch.context() as patched:
        patched.setattr(variables, "keys", no_answer)
        with pytest.raises(SystemFailure, match="Airflow did not list its Variables"):
            installation.this_installation()
    assert installation.this_installation() == first
    assert len(variables.kept) == 1
