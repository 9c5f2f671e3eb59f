"""Where a trigger keeps how far a log was reported: the XComs of its task, asked for one at a time."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.execution_time.xcom import XCom

from steptime.airflow.log_places import in_xcom


async def test_a_triggerer_is_asked_for_one_place_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of triggers queue behind such requests: with 1,000 waits none came for three minutes."""
    asked: list[str] = []
    under_way = most = 0

    async def answered(run_id: str, **_: object) -> None:
        nonlocal under_way, most
        asked.append(run_id)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    monkeypatch.setattr(XCom, "aget_one", answered)
    monkeypatch.setattr(XCom, "aset", answered)
    instances = [
        cast("Any", SimpleNamespace(dag_id="d", task_id="wait", run_id=f"r{number}", map_index=None))
        for number in range(50)
    ]

    await asyncio.gather(*(in_xcom(instance).find("job") for instance in instances))

    assert sorted(asked) == sorted(instance.run_id for instance in instances)
    assert most == 1
