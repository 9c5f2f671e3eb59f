"""What the operators from a job's log to the store say and hand on."""

from collections.abc import Callable

import pytest
import structlog

from steptime.airflow.base import Submission
from steptime.airflow.result_operators import Reading, ValidateOperator
from steptime.results.models import Result


@pytest.mark.usefixtures("home")
def test_a_failed_warning_is_logged_as_a_warning_and_does_not_reject(
    make_result: Callable[..., Result],
) -> None:
    noisy = make_result("noisy", step_times=[0.2, 0.6] * 10)
    reading = Reading(
        submission=Submission(run=noisy.run, job=noisy.job, provenance=noisy.provenance),
        status=noisy.status,
        log=noisy.log,
        measurement=noisy.measurement,
    )

    with structlog.testing.capture_logs() as said:
        judged = ValidateOperator(task_id="validate", reading=reading.model_dump(mode="json")).execute({})

    assert Result.model_validate(judged).verdict.valid
    told = {line["event"]: line["log_level"] for line in said if line["event"].startswith(("✓", "!", "✗"))}
    [(warning, level)] = [(event, level) for event, level in told.items() if level != "info"]
    assert level == "warning"
    assert warning.startswith("! step_times_steady: ")
