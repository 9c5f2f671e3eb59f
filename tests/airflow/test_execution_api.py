"""The API of tasks and triggers, with its newest versions alone."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.service

PROGRAM = """
def found(*what):
    print("found:", *what)

from steptime.airflow import execution_api
from airflow.api_fastapi.execution_api import versions

before = versions.bundle
changes = [change for version in before.versions for change in version.changes]
execution_api.VersionBundle, of_cadwyn = None, execution_api.VersionBundle  # as where it has another name
try:
    execution_api.keep_newest_versions()
except TypeError:
    found(versions.bundle is before, {change._bound_version_bundle for change in changes} == {before})
execution_api.VersionBundle = of_cadwyn
execution_api.keep_newest_versions()

from airflow.api_fastapi.execution_api.app import InProcessExecutionAPI
from airflow.sdk.api.client import API_VERSION
from fastapi.testclient import TestClient

app = InProcessExecutionAPI().app
answer = TestClient(app).get("/health", headers={"Airflow-API-Version": API_VERSION})
found(answer.status_code, app.versions.versions[0].value == API_VERSION)
found(len(before.versions), len(app.versions.versions))

execution_api.make_versions_at_start()
from airflow.api_fastapi.app import create_app

execution = next(route.app for route in create_app().routes if getattr(route, "path", "") == "/execution")
found(execution._cadwyn_initialized)
"""


def test_the_api_answers_in_the_version_of_this_airflow() -> None:
    """In a process of its own, as it is changed for good; where that fails nothing is changed."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = [line.removeprefix("found: ") for line in ran.stdout.splitlines() if line.startswith("found: ")]
    assert found == ["True True", "200 True", "9 3", "True"]
