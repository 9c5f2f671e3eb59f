"""The API of tasks and triggers, with its newest versions alone."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.service

PROGRAM = """
from steptime.airflow.execution_api import keep_newest_versions
from airflow.api_fastapi.execution_api.versions import bundle as before

keep_newest_versions()

from airflow.api_fastapi.execution_api.app import InProcessExecutionAPI
from airflow.sdk.api.client import API_VERSION
from fastapi.testclient import TestClient

app = InProcessExecutionAPI().app
answer = TestClient(app).get("/health", headers={"Airflow-API-Version": API_VERSION})
print(answer.status_code, app.versions.versions[0].value == API_VERSION)
print(len(before.versions), len(app.versions.versions))
"""


def test_the_api_answers_in_the_version_of_this_airflow() -> None:
    """In a process of its own, as it is changed for good."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-2:] == ["200 True", "9 3"]
