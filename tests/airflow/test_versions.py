"""Features that steptime adds where a release of Airflow lacks them."""

from typing import Any

import airflow.sdk
import pytest

from steptime.airflow.versions import ListedVariable


def test_variables_are_listed_although_another_task_overwrites_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: dict[str, str] = {}
    overwritten = [{ListedVariable.INDEX: "ours_theirs"}]

    def pause(_: float) -> None:
        kept.update(overwritten.pop() if overwritten else {})

    def keep(_: type, key: str, value: Any, **__: Any) -> None:
        kept[key] = value

    monkeypatch.setattr(airflow.sdk.Variable, "set", classmethod(keep))
    monkeypatch.setattr(
        airflow.sdk.Variable, "get", classmethod(lambda _, key, default: kept.get(key, default))
    )
    monkeypatch.setattr("steptime.waiting.time.sleep", pause)

    assert ListedVariable.keys("ours_") == []
    ListedVariable.set("ours_1", "value")
    ListedVariable.set("other", "value")

    assert kept["ours_1"] == "value"
    assert ListedVariable.keys("ours_") == ["ours_theirs", "ours_1"]
