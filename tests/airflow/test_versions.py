"""Features that steptime adds where a release of Airflow lacks them."""

from datetime import UTC, datetime

import airflow.sdk
import pytest
from airflow.timetables import trigger
from airflow.timetables.base import TimeRestriction

from steptime.airflow.versions import ListedVariable, cron_timetable


def test_variables_are_listed_although_another_task_overwrites_the_list(
    monkeypatch,
):
    kept = {}
    overwritten = [{ListedVariable.INDEX: "ours_theirs"}]

    def pause(_):
        kept.update(overwritten.pop() if overwritten else {})

    def keep(_, key, value, **__):
        kept[key] = value

    monkeypatch.setattr(airflow.sdk.Variable, "set", classmethod(keep))
    monkeypatch.setattr(
        airflow.sdk.Variable, "get", classmethod(lambda _, key, default: kept.get(key, default))
    )
    monkeypatch.setattr("steptime.waiting.time.sleep", pause)

    assert ListedVariable.keys("ours_") == []
    ListedVariable.set("ours_1", "value")
    ListedVariable.set("not_ours_1", "value")

    assert kept["ours_1"] == "value"
    assert ListedVariable.keys("ours_") == ["ours_theirs", "ours_1"]


@pytest.mark.parametrize("minute", [0, 1, 59])
def test_a_schedule_begins_with_the_next_time(monkeypatch, minute):
    """Airflow's default also runs the time just past, in the first tenth of the period after it."""
    declared = cron_timetable("0 5 * * *")
    schedule = trigger.CronTriggerTimetable(
        "0 5 * * *", timezone="UTC", run_immediately=declared.run_immediately
    )
    now = datetime(2026, 11, 29, 5, minute, 30, tzinfo=UTC)
    monkeypatch.setattr(trigger, "utcnow", lambda: now)
    first = schedule.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(None, None, catchup=False)
    )
    assert first is not None
    assert first.run_after == datetime(2026, 11, 30, 5, tzinfo=UTC)
