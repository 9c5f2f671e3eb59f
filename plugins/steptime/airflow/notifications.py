"""Notifications: the notifiers of `config/notifications.yaml`, called by tasks when an event occurs.

If a notifier fails, the task logs an error; the run is not affected.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Annotated, Any

from airflow.sdk import BaseNotifier, BaseOperator, Context
from pydantic import Field, JsonValue, field_validator

from steptime.airflow.links import dag_run_address
from steptime.errors import BrokenFiles, SystemFailure, UserError
from steptime.frozen import Frozen
from steptime.judging.incident_updates import update_incidents
from steptime.judging.incidents import mark_notified
from steptime.recipes.config_files import load_each, load_yaml_model
from steptime.recipes.environment import find_secret, is_secret_name
from steptime.refusals import matching
from steptime.settings import config_file
from steptime.store.database import wait_for_store
from steptime.store.run_queries import Store


class Event(StrEnum):
    """The events that people can be notified of."""

    SWEEP_FINISHED = "sweep finished"
    INCIDENT_OPENED = "incident opened"
    INCIDENT_CONFIRMED = "incident confirmed"
    INCIDENT_DISMISSED = "incident dismissed"
    INCIDENT_FIXED = "incident fixed"
    RUN_FAILED = "run failed"
    APPROVAL_WAITING = "approval waiting"


class Notification(Frozen):
    """One notifier, and the events for which it is called."""

    events: tuple[Event, ...] = Field(min_length=1)
    notifier: Annotated[
        str, matching(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", "the path of a class, as in package.module.Notifier")
    ]
    """Path of a class of Airflow's `BaseNotifier`."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the notifier; its templates may use `event`, `sentence` and `address`."""

    @field_validator("arguments")
    @classmethod
    def _without_secrets(cls, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name, value in _texts(arguments):
            if value and (problem := "looks like a secret" if is_secret_name(name) else find_secret(value)):
                raise ValueError(
                    f"{name} {problem}: keep it in an Airflow connection, and name that connection"
                )
        return arguments


class Notifications(Frozen):
    """The content of `config/notifications.yaml`."""

    notifications: tuple[Notification, ...] = ()


def _texts(arguments: JsonValue, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in JSON at any depth, each with the name of the nearest mapping's key."""
    if isinstance(arguments, str):
        yield name, arguments
    elif isinstance(arguments, dict):
        for key, value in arguments.items():
            yield from _texts(value, key)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _texts(value, name)


def load_notifications() -> tuple[Notification, ...]:
    """Load `config/notifications.yaml`; () if there is no such file. Raises UserError if it is broken."""
    file = config_file("notifications.yaml")
    return load_yaml_model(file, Notifications).notifications if file.is_file() else ()


def broken_notifications() -> BrokenFiles | None:
    """Return the mistakes in `config/notifications.yaml`, and notifiers that cannot be called; or None."""
    loaded, broken = load_each(("notifications",), lambda _: load_notifications())
    if broken is not None:
        return broken
    [configured] = loaded
    by_notifier = {notification.notifier: notification for notification in configured}
    return load_each(by_notifier, lambda notifier: _check_arguments(by_notifier[notifier]))[1]


def _check_arguments(notification: Notification) -> None:
    try:
        signature(_notifier_class(notification.notifier)).bind(**notification.arguments)
    except TypeError as problem:
        raise UserError(
            f"the notifier '{notification.notifier}' of config/notifications.yaml cannot be called: "
            f"{problem}."
        ) from None


def notify(event: Event, sentence: str, context: Context, error: Callable[..., None]) -> None:
    """Call each notifier that is configured for an event, from a task; failures are logged with `error`."""
    try:
        configured = [notification for notification in load_notifications() if event in notification.events]
    except UserError as problem:
        error("nobody was notified of '%s': %s", event, problem)
        return
    if not configured:
        return
    ti = context["ti"]
    news = {"event": event.value, "sentence": sentence, "address": dag_run_address(ti.dag_id, ti.run_id)}
    for notification in configured:
        try:
            _call(notification, {**context, **news})
        except (UserError, SystemFailure) as problem:
            error("%s did not notify of '%s': %s", notification.notifier, event, problem)
        except Exception as problem:  # somebody else's code, whose messages may hold addresses with secrets
            kind = type(problem).__name__
            error("%s did not notify of '%s': it raised %s", notification.notifier, event, kind)


def notify_of_incidents(task: BaseOperator, context: Context) -> None:
    """Update the stored incidents, and notify people once of each that opened or changed its state.

    An incident is a group of series that got slower or faster together (`judging.incidents`). If the task
    dies before all notifications are sent, the next call sends the others.
    """
    store, warn = Store(), task.log.warning
    for incident in wait_for_store(lambda: update_incidents(store), warn):
        event = Event.INCIDENT_OPENED if incident.state == "open" else Event(f"incident {incident.state}")
        task.log.info("%s: %s", event, incident.sentence)
        notify(event, incident.sentence, context, task.log.error)
        wait_for_store(partial(mark_notified, store, incident), warn)


def _call(notification: Notification, context: Mapping[str, Any]) -> None:
    arguments: dict[str, Any] = dict(notification.arguments)
    notifier = _notifier_class(notification.notifier)(**arguments)
    given: Any = dict(context)
    notifier.render_template_fields(given)
    notifier.notify(given)  # not called as a function: that hides what goes wrong


def _notifier_class(path: str) -> type[BaseNotifier]:
    module, _, name = path.rpartition(".")
    try:
        notifier = getattr(import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise UserError(
            f"the notifier '{path}' of config/notifications.yaml cannot be imported: {problem}. "
            "Install its package where steptime is, or correct the name."
        ) from None
    if not (isinstance(notifier, type) and issubclass(notifier, BaseNotifier)):
        raise UserError(
            f"'{path}' of config/notifications.yaml is not an Airflow notifier: name a BaseNotifier."
        )
    return notifier
