"""Notifiers: what they receive, what is refused, and what fails loudly."""

import json
import time
from typing import ClassVar

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException
from mail_server import mail_server
from stored import publish

from steptime.airflow.notifications import Event, broken_notifications, load_notifications, notify
from steptime.airflow.result_operators import FAILURE_KEY
from steptime.errors import UserError
from steptime.store.run_queries import Store

from .conftest import names_of, task_of

SENTENCE = "tiny·fp32·1 on local is slower by 4.5 %, as two confirmation runs confirm"


@pytest.fixture
def ask_for(home):
    """Return a function that writes `config/notifications.yaml`."""

    def write(*notifications):
        file = home.parent / "config" / "notifications.yaml"
        file.unlink(missing_ok=True)
        file.write_text(json.dumps({"notifications": notifications}))

    return write


@pytest.fixture
def told():
    """Return a list that gets what is logged as an error."""
    return []


@pytest.fixture
def send(make_context, told):
    def send(event=Event.INCIDENT_CONFIRMED):
        notify(event, SENTENCE, make_context(), lambda line, *values: told.append(line % values))

    return send


@pytest.fixture
def mails(monkeypatch):
    """Yield the mails that the mail server of Airflow's SMTP connection has received."""
    with mail_server() as (mails, port):
        plain = {"disable_ssl": True, "disable_tls": True}
        connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": plain}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
        yield mails


class Keeps(BaseNotifier):
    """A notifier that keeps what it receives."""

    kept: ClassVar[list[tuple[str, str, str]]] = []

    def notify(self, context):
        self.kept.append((context["event"], context["sentence"], context["address"]))


@pytest.fixture
def kept():
    """Return what `Keeps` receives in this test: event, sentence and address."""
    Keeps.kept.clear()
    return Keeps.kept


def keeps(*events):
    return {"events": events or ["incident confirmed"], "notifier": f"{__name__}.Keeps"}


def test_a_notifier_is_told_of_its_events_only(ask_for, send, told, kept):
    ask_for(keeps() | {"arguments": {"password": ""}})
    load_notifications()  # without a value it is no secret
    ask_for(keeps())
    send()
    send(Event.INCIDENT_OPENED)

    [(event, sentence, address)] = kept
    assert (event, sentence, told) == ("incident confirmed", SENTENCE, [])
    assert address.endswith("/dags/steptime_llama3.1-25.04/runs/manual__2026-11-21")


class Fails(BaseNotifier):
    """A notifier that fails with a secret in its message."""

    def notify(self, context):
        raise RuntimeError(f"https://ada:s3cr3t@chat.example.com with {context['sentence']}")


def test_one_that_fails_is_said_loudly_and_stops_no_other(ask_for, send, told, kept):
    fails = {"events": ["incident confirmed"], "notifier": f"{__name__}.Fails"}
    gone = {"events": ["incident confirmed"], "notifier": "no_such_package.Notifier"}
    other = {"events": ["incident confirmed"], "notifier": "json.JSONDecoder"}
    ask_for(fails, gone, other, keeps())
    send()

    assert [line.partition(" did not notify of 'incident confirmed': ")[2] for line in told] == [
        "it raised RuntimeError",
        "the notifier 'no_such_package.Notifier' of config/notifications.yaml cannot be imported: No module "
        "named 'no_such_package'. Install its package where steptime is, or correct the name.",
        "'json.JSONDecoder' of config/notifications.yaml is not an Airflow notifier: name a BaseNotifier.",
    ]
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"events": ["sunrise"]}, "events"),
        ({"arguments": {"password": "x"}}, "password looks like a secret"),
        ({"arguments": {"login": {"pass": ["x"]}}}, "pass looks like a secret"),
        ({"arguments": {"text": "ghp_0123456789abcdef"}}, "text has what looks like an access token"),
        ({"arguments": {"url": "https://ada:s3cr3t@chat.example.com"}}, "url has an address with a password"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(
    ask_for,
    send,
    told,
    wrong,
    sentence,
):
    ask_for(keeps() | wrong)
    with pytest.raises(UserError, match=sentence):
        load_notifications()
    assert sentence in str(broken_notifications())
    send()
    assert told[0].startswith("nobody was notified of 'incident confirmed': ")
    assert "s3cr3t" not in told[0]


class Asks(Keeps):
    """A notifier with an argument that it needs."""

    def __init__(self, to):
        super().__init__()


def test_a_notifier_that_cannot_be_called_is_told_before_any_event(ask_for):
    ask_for(keeps())
    assert broken_notifications() is None
    event = {"events": ["run failed"]}
    ask_for(event | {"notifier": "no_such_package.Notifier"}, event | {"notifier": f"{__name__}.Asks"})
    gone, asks = str(broken_notifications()).split("\n")
    assert "the notifier 'no_such_package.Notifier' of config/notifications.yaml cannot be imported" in gone
    assert asks.endswith("of config/notifications.yaml cannot be called: missing a required argument: 'to'.")


LEVELS = [1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 1.001, 1.06, 1.061, 1.058, 1.06]
"""Mean step times in seconds; the eighth is slower, and the next two confirm that."""


@pytest.fixture
def runs(make_result):
    return [
        make_result(f"run-{number}", step_times=[level] * 20, submitted_at=time.time() - 3600 + number)
        for number, level in enumerate(LEVELS)
    ]


class Dies(BaseNotifier):
    """A notifier whose worker is killed: it raises no `Exception`, as when Airflow ends its task."""

    def notify(self, context):
        raise SystemExit("killed")


def test_what_a_killed_report_has_not_told_its_retry_tells_once(
    ask_for,
    make_context,
    planned,
    kept,
    runs,
):
    task = task_of("report", plan=names_of(planned(), runs=()))
    for result in runs[:8]:
        publish(Store(), result)
    ask_for({"events": ["incident opened"], "notifier": f"{__name__}.Dies"})
    with pytest.raises(SystemExit, match="killed"):
        task.execute(make_context())

    ask_for(keeps("incident opened"))
    task.execute(make_context())
    task.execute(make_context())  # as after a person cleared the task

    [(_, sentence, _)] = kept
    assert sentence.startswith("Suspected: tiny·fp32·2 on local 5.9 % slower since ")


def test_a_refused_run_is_told(ask_for, make_context, kept):
    ask_for(keeps("run failed"))
    context = make_context() | {"params": {"gpus": "3"}}
    with pytest.raises(SystemExit):
        task_of("check_params").execute(context)

    [(_, sentence, _)] = kept
    assert sentence.startswith("unknown GPU count '3' of llama3.1-25.04 tiny on cpu")


def test_a_failed_run_is_told_with_the_task_that_failed(ask_for, make_context, planned, kept):
    ask_for(keeps("run failed"))
    context = make_context(pushed={FAILURE_KEY: "the disk is full"})
    with pytest.raises(AirflowFailException, match="have no valid result"):
        task_of("report", plan=names_of(planned())).execute(context)

    [(_, sentence, _)] = kept
    assert sentence == (
        "0 of 1 runs have valid results; without: tiny·fp32·1; stage failed: the disk is full"
    )
