"""Each event, as its task sends it to a mail server with the example of `config/notifications.yaml`."""

import html
import time

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput
from stored import publish

from steptime import settings
from steptime.airflow import notifications
from steptime.airflow.notifications import Event, load_notifications
from steptime.store.run_queries import Store
from tests.airflow.conftest import names_of, task_of
from tests.airflow.test_notifications import ask_for, mails

from .conftest import SweepTask, of_sweep
from .test_approval_and_report import ONE, TaskInstanceWithId, report

__all__ = ["ask_for", "mails", "report"]  # fixtures

USUAL, SLOW = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 1.001), 1.06
JUDGED = {
    Event.INCIDENT_OPENED: ((SLOW,),),
    Event.INCIDENT_CONFIRMED: ((SLOW, SLOW, SLOW),),
    Event.INCIDENT_DISMISSED: ((SLOW,), (1.0, 1.0)),
    Event.INCIDENT_FIXED: ((SLOW, SLOW, SLOW), (1.0, 1.0)),
}
"""Mean step times in seconds of the runs before each report; only the last report has the news."""
SENTENCES = {
    Event.SWEEP_FINISHED: "sweep night: 1 cell: 0 slower, 0 faster, 0 unchanged, 1 with insufficient",
    Event.INCIDENT_OPENED: "Suspected: tiny·fp32·2 on local 5.9 % slower since ",
    Event.INCIDENT_CONFIRMED: "Confirmed: tiny·fp32·2 on local 5.9 % slower since ",
    Event.INCIDENT_DISMISSED: "Not confirmed by confirmation runs: tiny·fp32·2 on local 5.9 % slower since ",
    Event.INCIDENT_FIXED: "Fixed: tiny·fp32·2 on local 5.9 % slower since ",
    Event.RUN_FAILED: "0 of 1 runs have valid results; without: tiny·fp32·1",
    Event.APPROVAL_WAITING: "Start sweep night? 2 jobs, at most 0.50 GPU-hours; no history and no",
}


def example():
    """Return the notifications that the shipped file shows in comments."""
    _, _, comments = (settings.shipped("config") / "notifications.yaml").read_text().partition("[]\n")
    return yaml.safe_load("\n".join(line[1:] for line in comments.splitlines()))


@pytest.fixture
def happens(
    make_context,
    check,
    task,
    report,
    planned,
    make_result,
    monkeypatch,
):
    """Return a function that makes an event happen in its task."""
    monkeypatch.setattr("airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **_: None)

    def reports(*reports):
        """Publish runs before each report; only the last report notifies."""
        asked, began = load_notifications(), time.time() - 3600
        plan = names_of(planned(), runs=())
        numbers = iter(range(100))
        for index, levels in enumerate(((*USUAL, *reports[0]), *reports[1:]), start=1):
            for level in levels:
                number = next(numbers)
                result = make_result(f"run-{number:02}", step_times=[level] * 20, submitted_at=began + number)
                publish(Store(), result)
            is_last = index == len(reports)
            monkeypatch.setattr(
                notifications, "load_notifications", lambda last=is_last: asked if last else ()
            )
            task_of("report", plan=plan).execute(make_context())

    def finishes():
        publish(Store(), of_sweep(make_result("of-the-sweep", gpus=1), ONE))
        report(checked=check(runs=[{"workload": "llama3.1", "gpus": 1}]))

    def fails():
        with pytest.raises(AirflowFailException):
            task_of("report", plan=names_of(planned())).execute(make_context())

    def waits():
        checked = check(approval_above_gpu_hours=0.2)
        with pytest.raises(TaskAwaitingInput):
            task("approve", checked=checked).execute(
                {"ti": SweepTask(), "task_instance": TaskInstanceWithId()}
            )

    others = {Event.SWEEP_FINISHED: finishes, Event.RUN_FAILED: fails, Event.APPROVAL_WAITING: waits}

    def happen(event):
        if event in JUDGED:
            reports(*JUDGED[event])
        else:
            others[event]()

    return happen


def test_the_example_names_every_event():
    assert {event for part in example() for event in part["events"]} == set(Event)


@pytest.mark.long
@pytest.mark.parametrize("event", Event)
def test_the_example_mails_each_event_once(event, ask_for, happens, mails):
    ask_for(*example())

    happens(event)

    [mail] = mails
    dag_id = "steptime_llama3.1-25.04" if event in (*JUDGED, Event.RUN_FAILED) else SweepTask.dag_id
    assert (mail["Subject"], mail["To"]) == (f"steptime: {event}", "team@example.com")
    sentence, _, link = body(mail).partition(" <a href=")
    assert html.unescape(sentence).startswith(SENTENCES[event])
    assert link.endswith(f'/dags/{dag_id}/runs/{html.escape(SweepTask.run_id)}">its run</a>')


def body(mail):
    """Return the text of a mail that has one part."""
    [part] = [section for section in mail.walk() if not section.is_multipart()]
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content.decode().strip()
